"""Exact search over all items, on all devices of the mesh.

Each device scores its share of the items. Of a search only its own best K travel; of
ranks only two numbers: how many items come before the one that was met, and how many
are equal to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.metrics.ranking import Ranks
from embark_jax.metrics.ties import NEAR
from embark_jax.plans.plan import MESH_AXES
from embark_jax.plans.tables import PADDING_ID

ITEMS_AT_ONCE = 8192
"""Items of a device that are scored at once, and ``USERS_AT_ONCE`` users by them: 8 MiB
of scores."""
USERS_AT_ONCE = 256
NEVER = np.iinfo(np.int32).max
"""Number of items before one that is not found."""


class ItemIndex:
    """The vectors of all items, sharded over the devices. In a run of several processes
    all must give the same arguments, here and to each method, and all get the results.

    Args:
      ids: ``[items]`` ids of the items.
      vectors: ``[items, dim]`` vectors of the items.
      mesh: mesh of the devices.

    Raises:
      ValueError: if shapes differ, there are no items, an id is there twice, or a
        vector is not finite.
    """

    def __init__(self, ids: np.ndarray, vectors: np.ndarray, mesh: Mesh):
        if (
            np.ndim(vectors) != 2
            or np.shape(ids) != np.shape(vectors)[:1]
            or not len(ids)
        ):
            raise ValueError(
                f"ids have shape {np.shape(ids)} and vectors {np.shape(vectors)}, must "
                "be [items] and [items, dim], with at least one item"
            )
        self._block = min(ITEMS_AT_ONCE, -(-len(ids) // mesh.size))
        self._ids, self._mesh = np.asarray(ids), mesh
        self._order = np.argsort(self._ids, kind="stable")
        ordered = self._ids[self._order]
        if (twice := ordered[1:][ordered[1:] == ordered[:-1]]).size:
            raise ValueError(f"id {twice[0]} is there twice, must be that of one item")
        vectors = np.asarray(vectors, np.float32)
        _check_finite("vector of item", self._ids, vectors)
        self._vectors = shard_rows(vectors, mesh, self._block)

    def search(
        self, users: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the K items with the largest dot product with each user's vector.

        Args:
          users: ``[users, dim]`` vectors of the users.
          k: number of items for each user; at most all.
          exclude: ``[users, n]`` ids of items that a user does not get, such as those
            seen before, padded with -1; others than those of the index do not matter.

        Returns:
          ids ``[users, k]``, the best first; and their products. Where fewer items are
          left, -1 and -inf fill the rest. Of items with the same product the first of
          the index come first: to measure, take ``ranks``, which does not depend on the
          order of the index.

        Raises:
          ValueError: if there are fewer items, vectors have another width or are not
            finite, or shapes differ.
        """
        users, exclude = self._checked(users, exclude)
        if not 0 < k <= len(self._ids):
            raise ValueError(f"k is {k}, must be from 1 to the {len(self._ids)} items")
        search = _search(self._mesh, k, self._block, len(self._ids))
        indices, scores = self._in_blocks(search, users, self._indices(exclude))
        indices, scores = indices.reshape(-1, k), scores.reshape(-1, k)
        return np.where(np.isneginf(scores), PADDING_ID, self._ids[indices]), scores

    def ranks(
        self, users: np.ndarray, items: np.ndarray, seen: np.ndarray | None = None
    ) -> Ranks:
        """Returns how many items come before the one that each user met, and how many
        others have the same product with the user's vector, to within ``ties.NEAR`` of
        it.

        Args:
          users: ``[users, dim]`` vectors of the users.
          items: ``[users]`` the id of the item that each one met.
          seen: ``[users, seen]`` ids of items that a user does not get, padded with
            -1. An item among them is never found: ``NEVER`` items are before it.

        Raises:
          ValueError: if shapes differ, vectors are not finite, or an item is not in the
            index.
        """
        users, seen = self._checked(users, seen)
        items = np.asarray(items)
        if items.shape != (len(users),):
            raise ValueError(
                f"items have shape {items.shape}, must be one for each of the "
                f"{len(users)} users"
            )
        targets = self._indices(items)
        if (targets < 0).any():
            raise ValueError(f"item {items[targets < 0][0]} is not in the index")
        rank = _rank(self._mesh, self._block, len(self._ids))
        before, equal = self._in_blocks(rank, users, self._indices(seen), targets)
        is_seen = (seen == items[:, None]).any(axis=1)
        return Ranks(np.where(is_seen, NEVER, before), np.where(is_seen, 0, equal))

    def _checked(
        self, users: np.ndarray, seen: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the users' vectors and what they have seen; raises ``ValueError`` if
        these are not as ``search`` and ``ranks`` say."""
        users, dim = np.asarray(users, np.float32), self._vectors.shape[1]
        seen = np.empty((len(users), 0), int) if seen is None else np.asarray(seen)
        if users.ndim != 2 or users.shape[1] != dim or len(seen) != len(users):
            raise ValueError(
                f"users have shape {users.shape} and items that they have seen "
                f"{seen.shape}, must be [users, {dim}] and [users, seen]"
            )
        _check_finite("vector of user", np.arange(len(users)), users)
        return users, seen

    def _in_blocks(self, function: Callable, *inputs: np.ndarray) -> list[np.ndarray]:
        """Calls a compiled function for blocks of users, of one shape, and returns its
        results for all of them."""
        users = len(inputs[0])
        missing = -users % USERS_AT_ONCE if users else USERS_AT_ONCE
        filled = [np.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))) for x in inputs]
        results = []
        for first in range(0, users + missing, USERS_AT_ONCE):
            block = (x[first : first + USERS_AT_ONCE] for x in filled)
            results.append([np.asarray(x) for x in function(*block, self._vectors)])
        return [np.concatenate(of_all)[:users] for of_all in zip(*results, strict=True)]

    def _indices(self, ids: np.ndarray) -> np.ndarray:
        """Returns the places of ids in the index, -1 for those that it lacks."""
        places = np.searchsorted(self._ids, ids, sorter=self._order)
        where = self._order[np.minimum(places, len(self._order) - 1)]
        return np.where(self._ids[where] == ids, where, -1).astype(np.int32)


def _check_finite(what: str, ids: np.ndarray, vectors: np.ndarray) -> None:
    """Raises ``ValueError`` for the first vector that is not finite in float32."""
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        raise ValueError(f"{what} {ids[bad][0]} is not finite ({bad.sum():,} such)")


def shard_rows(rows: np.ndarray, mesh: Mesh, multiple: int = 1) -> jax.Array:
    """Puts ``[n, dim]`` on the devices of a mesh, padded with rows of zeros, so that
    each has the same number of rows, a multiple of ``multiple``. All processes give the
    same rows."""
    missing = -len(rows) % (mesh.size * multiple)
    filled = np.pad(rows, ((0, missing), (0, 0)))
    sharding = NamedSharding(mesh, PartitionSpec(MESH_AXES))
    return jax.make_array_from_callback(filled.shape, sharding, filled.__getitem__)


@functools.lru_cache(maxsize=8)
def _rank(mesh: Mesh, block: int, items: int):
    """Returns ``(users [n, dim], seen [n, s], targets [n], vectors) -> (before [n],
    equal [n])``, compiled; targets and seen ones are indices."""

    def of_device(users, seen, targets, vectors):
        blocks = _blocks(vectors, block)

        def add_target(total, inputs):
            scores, indices = _scores(users, *inputs)
            own = jnp.where(indices == targets[:, None], scores, 0)
            return total + own.sum(axis=1), None

        def add_others(totals, inputs):
            scores, indices = _scores(users, *inputs)
            scores = _without(scores, indices, seen, items)
            is_near = jnp.abs(scores - target[:, None]) <= near[:, None]
            is_before = (scores > target[:, None]) & ~is_near
            is_equal = is_near & (indices != targets[:, None])
            counts = (x.sum(axis=1, dtype=jnp.int32) for x in (is_before, is_equal))
            return jax.tree.map(jnp.add, totals, tuple(counts)), None

        zeros = jnp.zeros(len(users))
        target, _ = lax.scan(add_target, zeros, blocks)
        target = lax.psum(target, MESH_AXES)
        near = NEAR * jnp.abs(target)
        zeros = jnp.zeros(len(users), jnp.int32)
        totals, _ = lax.scan(add_others, (zeros, zeros), blocks)
        return lax.psum(totals, MESH_AXES)

    return _on_each(mesh, of_device, inputs=3)


@functools.lru_cache(maxsize=8)
def _search(mesh: Mesh, k: int, block: int, items: int):
    """Returns ``(users [n, dim], seen [n, s], vectors) -> (places [n, k], scores
    [n, k])``, compiled; seen ones are indices."""

    def of_device(users, seen, vectors):
        def add_block(best, inputs):
            places, best_scores = best
            scores, indices = _scores(users, *inputs)
            scores = _without(scores, indices, seen, items)
            scores, where = lax.top_k(scores, min(k, block))
            return _best(k, [places, indices[0, where]], [best_scores, scores]), None

        shape = len(users), k
        none = jnp.zeros(shape, jnp.int32), jnp.full(shape, -jnp.inf)
        best, _ = lax.scan(add_block, none, _blocks(vectors, block))
        places, scores = (
            lax.all_gather(x, MESH_AXES, axis=1, tiled=True) for x in best
        )
        return _best(k, [places], [scores])

    return _on_each(mesh, of_device, inputs=2)


def _best(k, places, scores):
    """Returns the ``[n, k]`` places with the best scores of several arrays ``[n, …]``,
    and their scores; of equal ones the first."""
    scores, where = lax.top_k(jnp.concatenate(scores, axis=1), k)
    places = jnp.concatenate(places, axis=1)
    return jnp.take_along_axis(places, where, axis=1), scores


def _blocks(vectors, block):
    """Returns the indices of the first vectors of a device's blocks, and the blocks."""
    count = len(vectors)
    starts = lax.axis_index(MESH_AXES) * count + jnp.arange(0, count, block)
    return starts, vectors.reshape(-1, block, vectors.shape[1])


def _scores(users, start, vectors):
    """Returns scores ``[n, items]`` of vectors, of which the first has the index
    ``start``, and their indices ``[1, items]``."""
    scores = jnp.einsum("ud,id->ui", users, vectors, precision="highest")
    return scores, (start + jnp.arange(len(vectors)))[None]


def _without(scores, indices, seen, items):
    """Returns scores with -inf for the indices in ``seen`` ``[n, s]``, and for those of
    no item."""
    columns = seen - indices[0, 0]
    inside = (columns >= 0) & (columns < scores.shape[1])
    columns = jnp.where(inside, columns, scores.shape[1])
    everyone = jnp.arange(len(scores))[:, None]
    scores = scores.at[everyone, columns].set(-jnp.inf, mode="drop")
    return jnp.where(indices < items, scores, -jnp.inf)


def _on_each(mesh: Mesh, of_device: Callable, inputs: int) -> Callable:
    """Compiles a function of ``inputs`` whole arrays and, last, a device's share of the
    vectors; its results are alike on all devices."""
    whole = PartitionSpec()
    return jax.jit(
        jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(*[whole] * inputs, PartitionSpec(MESH_AXES)),
            out_specs=whole,
            check_vma=False,  # it does not see that sums and gathered values are alike
        )
    )
