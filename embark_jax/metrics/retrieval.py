"""Exact search over all items, on all devices of the mesh, and its quality.

Each device scores its share of the items. Of a search only its own best K travel; of
ranks only the number of items that come before the one that was met.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.data import Batch
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
          ids ``[users, k]``, the best first, and the first item before its equals; and
          their products.

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
    ) -> np.ndarray:
        """Returns how many items come before the one that each user met.

        An item comes before another if its product with the user's vector is larger, or
        if it is equal and the item is further ahead in the index, as in ``search``.

        Args:
          users: ``[users, dim]`` vectors of the users.
          items: ``[users]`` the id of the item that each one met.
          seen: ``[users, seen]`` ids of items that do not count for a user, padded with
            -1; the item itself counts, whether it is among them or not.

        Returns:
          ``[users]`` int32 ranks, 0 for the best.

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
        rank = _rank(self._mesh, self._block, len(self._ids))
        ranks, scores = [], []
        for first in range(0, len(items), USERS_AT_ONCE):
            users_at_once = [x[first : first + USERS_AT_ONCE] for x in inputs]
            missing = USERS_AT_ONCE - len(users_at_once[0])  # one shape, one program
            padded = (
                np.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1)))
                for x in users_at_once
            )
            ranks_at_once, scores_at_once = rank(*padded, self._vectors)
            ranks.append(np.asarray(ranks_at_once)[: USERS_AT_ONCE - missing])
            scores.append(np.asarray(scores_at_once)[: USERS_AT_ONCE - missing])
        if not np.isfinite(np.concatenate(scores)).all():
            raise ValueError("a product of user and item is not finite")
        return np.concatenate(ranks)

    def _indices(self, ids: np.ndarray) -> np.ndarray:
        """Returns the places of ids in the index, -1 for those that it lacks."""
        order = np.argsort(self._ids, kind="stable")
        sorted_ids = self._ids[order]
        where = np.minimum(np.searchsorted(sorted_ids, ids), len(order) - 1)
        return np.where(sorted_ids[where] == ids, order[where], -1).astype(np.int32)


def shard_rows(rows: np.ndarray, mesh: Mesh, multiple: int = 1) -> jax.Array:
    """Puts ``[n, dim]`` on the devices of a mesh, filled up with rows of zeros, so that
    each has the same number of rows, a multiple of ``multiple``. All processes give the
    same rows."""
    missing = -len(rows) % (mesh.size * multiple)
    filled = np.pad(rows, ((0, missing), (0, 0)))
    sharding = NamedSharding(mesh, PartitionSpec(MESH_AXES))
    return jax.make_array_from_callback(filled.shape, sharding, filled.__getitem__)


def at_k(ranks: np.ndarray, cutoffs: Sequence[int]) -> dict[str, float]:
    """Returns the hit rate ``hr@K`` and ``ndcg@K`` of ranks, for each cutoff K.

    Of one item for each user, a hit is a rank below K, whose gain is
    ``1 / log2(rank + 2)`` (https://arxiv.org/abs/1808.09781, section IV-B).

    Raises:
      ValueError: if there are no ranks.
    """
    ranks = np.asarray(ranks)
    if not ranks.size:
        raise ValueError("there are no ranks")
    gains = 1 / np.log2(ranks + 2.0)
    metrics = {}
    for k in cutoffs:
        metrics[f"hr@{k}"] = float(np.mean(ranks < k))
        metrics[f"ndcg@{k}"] = float(np.mean(np.where(ranks < k, gains, 0)))
    return metrics


@functools.lru_cache(maxsize=8)
def _rank(mesh: Mesh, block: int, items: int):
    """Returns ``(users [n, dim], targets [n], seen [n, s], vectors) -> (ranks [n],
    scores [n] of the targets)``, compiled; targets and seen ones are indices."""

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

        def add_before(total, inputs):
            scores, indices = scores_of(*inputs)
            is_equal = (scores == target[:, None]) & (indices < targets[:, None])
            before = (scores > target[:, None]) | is_equal
            return total + before.sum(axis=1, dtype=jnp.int32), None

        zeros = jnp.zeros(len(users))
        target, _ = lax.scan(add_target, zeros, (starts, blocks))
        target = lax.psum(target, MESH_AXES)
        zeros = jnp.zeros(len(users), jnp.int32)
        ranks, _ = lax.scan(add_before, zeros, (starts, blocks))
        return lax.psum(ranks, MESH_AXES), target

    whole = PartitionSpec()
    return jax.jit(
        jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(whole, whole, whole, PartitionSpec(MESH_AXES)),
            out_specs=(whole, whole),
            check_vma=False,  # sums over devices are alike on all of them
        )
    )


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

    whole = PartitionSpec()
    return jax.jit(
        jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(whole, PartitionSpec(MESH_AXES)),
            out_specs=(whole, whole),
            check_vma=False,  # gathered values are alike on all devices
        )
    )


def items_of(
    batches: Iterable[Batch], item: str, features: Sequence[str]
) -> list[Batch]:
    """Yields each unique item of some batches once, as samples without a user.

    Args:
      batches: batches of a dataset.
      item: feature, of one id a sample, that says which item it is.
      features: features of the item, ``item`` among them; others become empty bags.

    Returns:
      Batches no larger than those given.
    """
    seen: set[int] = set()
    batches_of_items = []
    for batch in batches:
        ids, first_samples = np.unique(batch.ids[item][:, 0], return_index=True)
        fresh = [
            p
            for i, p in zip(ids, first_samples, strict=True)
            if i not in seen and i >= 0
        ]
        seen.update(int(i) for i in ids)
        if not fresh:
            continue
        chosen = {
            name: ids_of_feature[fresh]
            if name in features
            else np.full_like(ids_of_feature[fresh], PADDING_ID)
            for name, ids_of_feature in batch.ids.items()
        }
        batches_of_items.append(
            dataclasses.replace(
                batch,
                dense=np.zeros_like(batch.dense[fresh]),
                ids=chosen,
                labels=batch.labels[fresh],
                weights={},
                sample_weights=None
                if batch.sample_weights is None
                else batch.sample_weights[fresh],
            )
        )
    return batches_of_items
