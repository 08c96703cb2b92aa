"""DP: the storage is replicated; lookups are local, gradients are all-reduced.

Row gradients are all-reduced in a compact buffer that holds the rows touched on any
device, so that a large table costs what the batch touches, not its size. A table that
is smaller than that is all-reduced as a whole. One device reduces nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import (
    Implementation,
    RowGroups,
    group_rows,
    group_targets,
    pooled_lookup,
    sum_groups,
)

from embark_jax.embedding.cluster import RowGradients
from embark_jax.embedding.exchange import gather, own_part, sum_over_devices
from embark_jax.embedding.indexing import StorageIndex


class DataParallelRoute(NamedTuple):
    """Attributes:
    slot: ``[batch, entries]`` row of each entry; ``slots`` where padded.
    weight: ``[batch, entries]`` or None.
    groups: the entries grouped by their places in the all-reduced buffer.
    touched: ``[rows]`` slot of each row of that buffer; out of range where unused.
    """

    slot: jax.Array
    weight: jax.Array | None
    groups: RowGroups
    touched: jax.Array


class DataParallel:
    """The DP cluster of one storage; see ``cluster.Cluster``."""

    def __init__(self, index: StorageIndex, implementation: Implementation):
        self.index = index
        self.implementation: Implementation = implementation

    def route(self, ids, weights):
        _, _, slot = self.index.expand(ids)
        groups, touched = self._group(slot.reshape(-1))
        weight = None if weights is None else weights[:, self.index.entry_column]
        route = DataParallelRoute(slot, weight, groups, touched)
        return route, jnp.zeros((), jnp.int32)

    def _group(self, slot: jax.Array) -> tuple[RowGroups, jax.Array]:
        slots, implementation = self.index.slots, self.implementation
        if self.index.devices == 1:
            groups = group_rows(slot, slots, implementation=implementation)
            return groups, groups.row
        if slots <= slot.shape[0] * self.index.devices:
            used = jnp.zeros(slots, jnp.int32).at[slot].add(1, mode="drop")
            every = jnp.arange(slots, dtype=jnp.int32)
            touched = jnp.where(sum_over_devices(used) > 0, every, slots + every)
            place = slot
        else:
            # For plain XLA: nothing is summed into the groups of all devices.
            everywhere = group_rows(gather(slot), slots, implementation="xla")
            touched = everywhere.row
            place = own_part(everywhere.group)
        size = touched.shape[0]
        return group_targets(place, size, implementation=implementation), touched

    def lookup(self, block, route):
        return pooled_lookup(
            block,
            route.slot,
            route.weight,
            hotness=self.index.hotness,
            implementation=self.implementation,
        )

    def row_gradients(self, gradients, route):
        batch, _, width = gradients.shape
        rows = sum_groups(
            gradients.reshape(-1, width),
            route.groups,
            self.index.entry_bags(batch),
            None if route.weight is None else route.weight.reshape(-1),
            implementation=self.implementation,
        )
        if self.index.devices > 1:
            rows = sum_over_devices(rows)
        return RowGradients(route.touched, rows)

    def mean_square(self, rows, route):
        return None
