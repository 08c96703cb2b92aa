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
from embark_jax.plans.plan import MESH_AXES
from embark_jax.plans.tables import PADDING_ID

ITEMS_AT_ONCE = 8192
"""Items of a device that are scored at once, and ``USERS_AT_ONCE`` users by them: 8 MiB
of scores."""
USERS_AT_ONCE = 256


class ItemIndex:
    """The vectors of all items, sharded over the devices. In a run of several processes
    all must give the same arguments, here and to each method, and all get the results.

    Args:
      ids: ``[items]`` ids of the items.
      vectors: ``[items, dim]`` vectors of the items.
      mesh: mesh of the devices.

    Raises:
      ValueError: if shapes differ, or there are no items.
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
        vectors = np.asarray(vectors, np.float32)
        self._vectors = shard_rows(vectors, mesh, self._block)

    def search(self, users: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Finds the K items with the largest dot product with each user's vector.

        Args:
          users: ``[users, dim]`` vectors of the users.
          k: number of items for each user; at most all.

        Returns:
          ids ``[users, k]``, the best first; and their products. Of items with the same
          product the first of the index come first: to measure, take ``ranks``, which
          does not depend on the order of the index.

        Raises:
          ValueError: if there are fewer items, or vectors have another width.
        """
        dim = self._vectors.shape[1]
        if np.ndim(users) != 2 or np.shape(users)[1] != dim:
            raise ValueError(
                f"users have shape {np.shape(users)}, must be [users, {dim}]"
            )
        if not 0 < k <= len(self._ids):
            raise ValueError(f"k is {k}, must be from 1 to the {len(self._ids)} items")
        search = _search(self._mesh, k, len(self._ids))
        indices, scores = search(np.asarray(users, np.float32), self._vectors)
        return self._ids[np.asarray(indices)], np.asarray(scores)

    def ranks(
        self, users: np.ndarray, items: np.ndarray, seen: np.ndarray | None = None
    ) -> Ranks:
        """Returns how many items come before the one that each user met, and how many
        others have the same product with the user's vector.

        Args:
          users: ``[users, dim]`` vectors of the users.
          items: ``[users]`` the id of the item that each one met.
          seen: ``[users, seen]`` ids of items that do not count for a user, padded with
            -1; the item itself counts, whether it is among them or not.

        Raises:
          ValueError: if shapes differ, an item is not in the index, or a product with
            it is not finite.
        """
        items = np.asarray(items)
        seen = np.empty((len(items), 0), int) if seen is None else np.asarray(seen)
        dim = self._vectors.shape[1]
        if np.shape(users) != (len(items), dim) or len(seen) != len(items):
            raise ValueError(
                f"users have shape {np.shape(users)}, items {items.shape} and seen "
                f"{seen.shape}, must be [users, {dim}], [users] and [users, seen]"
            )
        targets = self._indices(items)
        if (targets < 0).any():
            raise ValueError(f"item {items[targets < 0][0]} is not in the index")
        seen = np.where(seen == items[:, None], PADDING_ID, seen)
        inputs = np.asarray(users, np.float32), targets, self._indices(seen)
        missing = -len(items) % USERS_AT_ONCE  # one shape, one program
        inputs = [np.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))) for x in inputs]
        rank = _rank(self._mesh, self._block, len(self._ids))
        results = []
        for first in range(0, len(items), USERS_AT_ONCE):
            block = (x[first : first + USERS_AT_ONCE] for x in inputs)
            results.append([np.asarray(x) for x in rank(*block, self._vectors)])
        before, equal, scores = (
            np.concatenate(of_all)[: len(items)]
            for of_all in zip(*results, strict=True)
        )
        if not np.isfinite(scores).all():
            raise ValueError("a product of user and item is not finite")
        return Ranks(before, equal)

    def _indices(self, ids: np.ndarray) -> np.ndarray:
        """Returns the places of ids in the index, -1 for those that it lacks."""
        order = np.argsort(self._ids, kind="stable")
        sorted_ids = self._ids[order]
        where = np.minimum(np.searchsorted(sorted_ids, ids), len(order) - 1)
        return np.where(sorted_ids[where] == ids, order[where], -1).astype(np.int32)


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
    """Returns ``(users [n, dim], targets [n], seen [n, s], vectors) -> (before [n],
    equal [n], scores [n] of the targets)``, compiled; targets and seen ones are
    indices."""

    def of_device(users, targets, seen, vectors):
        count = len(vectors)
        first = lax.axis_index(MESH_AXES) * count
        blocks = vectors.reshape(-1, block, vectors.shape[1])
        starts = first + jnp.arange(0, count, block)
        everyone = jnp.arange(len(users))[:, None]

        def scores_of(start, block_vectors):
            """Returns scores ``[n, block]``, and the items' indices ``[1, block]``."""
            scores = jnp.einsum("ud,id->ui", users, block_vectors, precision="highest")
            indices = (start + jnp.arange(block))[None]
            inside = (seen >= start) & (seen < start + block)
            columns = jnp.where(inside, seen - start, block)
            scores = scores.at[everyone, columns].set(-jnp.inf, mode="drop")
            return jnp.where(indices < items, scores, -jnp.inf), indices

        def add_target(total, inputs):
            scores, indices = scores_of(*inputs)
            own = jnp.where(indices == targets[:, None], scores, 0)
            return total + own.sum(axis=1), None

        def add_others(totals, inputs):
            scores, indices = scores_of(*inputs)
            is_before = scores > target[:, None]
            is_equal = (scores == target[:, None]) & (indices != targets[:, None])
            counts = (x.sum(axis=1, dtype=jnp.int32) for x in (is_before, is_equal))
            return jax.tree.map(jnp.add, totals, tuple(counts)), None

        zeros = jnp.zeros(len(users))
        target, _ = lax.scan(add_target, zeros, (starts, blocks))
        target = lax.psum(target, MESH_AXES)
        zeros = jnp.zeros(len(users), jnp.int32)
        totals, _ = lax.scan(add_others, (zeros, zeros), (starts, blocks))
        return *lax.psum(totals, MESH_AXES), target

    return _on_each(mesh, of_device, inputs=3)


@functools.lru_cache(maxsize=8)
def _search(mesh: Mesh, k: int, items: int):
    """Returns ``(users [n, dim], vectors) -> (places [n, k], scores [n, k])``,
    compiled."""

    def of_device(users, vectors):
        shard, count = lax.axis_index(MESH_AXES), len(vectors)
        scores = jnp.einsum("ud,id->ui", users, vectors, precision="highest")
        indices = shard * count + jnp.arange(count)
        scores = jnp.where(indices[None] < items, scores, -jnp.inf)
        best, where = lax.top_k(scores, min(k, count))
        best, indices = (
            lax.all_gather(shard_best, MESH_AXES, axis=1, tiled=True)
            for shard_best in (best, indices[where])
        )
        best, where = lax.top_k(best, k)
        return jnp.take_along_axis(indices, where, axis=1), best

    return _on_each(mesh, of_device, inputs=1)


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
