"""Exact top-K search over all items, on all devices of the mesh.

Each device scores its share of the items, and only its own best K travel.
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


class ItemIndex:
    """The vectors of all items, sharded over the devices.

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
        missing = -len(ids) % mesh.size
        rows = NamedSharding(mesh, PartitionSpec(MESH_AXES))
        self._ids, self._mesh = np.asarray(ids), mesh
        filled = np.pad(np.asarray(vectors, np.float32), ((0, missing), (0, 0)))
        self._vectors = jax.device_put(filled, rows)

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
        indices, scores = search(jnp.asarray(users, jnp.float32), self._vectors)
        return self._ids[np.asarray(indices)], np.asarray(scores)


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
