"""DP: the storage is replicated; lookups are local, gradients are all-reduced.

They are summed in one buffer, which holds every row of a table that has no more rows
here than the batch has ids for it; of other tables it holds the rows that any device
touches, so that many rows cost what the batch touches, not their number. Devices tell
each other which rows they touch in the all-reduce that the step has for its capacities.
One device sums nothing. The sum has the format of the dense gradients' sums: it travels
in one collective with them, and in another it would wait for a latency of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import (
    Implementation,
    RowGroups,
    group_rows,
    group_targets,
    pooled_lookup,
)

from embark_jax.embedding.cluster import (
    RowGradients,
    Summands,
    sum_up,
    weights_of_requests,
)
from embark_jax.embedding.exchange import (
    Exchange,
    own_share,
    own_share_alone,
    sum_over_devices,
)
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.plans.collectives import summed_whole
from embark_jax.plans.options import DenseWire
from embark_jax.plans.wire import Wire


class DataParallelRoute(NamedTuple):
    """The route of a DP storage.

    Attributes:
      slot: ``[batch, requests]`` slot of each request; ``slots`` where padded.
      weight: ``[batch, requests]`` weight of each request, or None.
      groups: requests grouped by their rows in the all-reduced buffer.
      touched: ``[rows]`` slot of each row of that buffer; out of range where unused.
    """

    slot: jax.Array
    weight: jax.Array | None
    groups: RowGroups
    touched: jax.Array


class DataParallel:
    """The DP cluster of one storage; see ``cluster.Cluster``."""

    def __init__(
        self,
        index: StorageIndex,
        exchange: Exchange,
        batch: int,
        capacity: int,
        wire: Wire,
        implementation: Implementation,
    ):
        self.index = index
        self.wire: DenseWire = wire.sums
        self.implementation: Implementation = implementation
        batch_ids: dict[str, int] = {}
        for feature in index.features:
            name, hotness = feature.feature.table, feature.feature.hotness
            ids = batch * index.devices * hotness
            batch_ids[name] = batch_ids.get(name, 0) + ids
        # Tables that are summed whole: buffer rows of their first rows, and how far
        # their slots lie behind those; the latter for each id column, too.
        first_row = []
        behind = []
        self._buffer_rows = 0
        column_behind = np.zeros(index.columns, np.int32)
        column_whole = np.zeros(index.columns, bool)
        for rows in index.storage.ranges:
            table = rows.table.name
            if not summed_whole(rows.rows, batch_ids[table]):
                continue
            first_row.append(self._buffer_rows)
            behind.append(index.storage.first_slots[table][0, 0] - self._buffer_rows)
            self._buffer_rows += rows.rows
            for feature in index.features:
                if feature.feature.table == table:
                    column_whole[feature.columns] = True
                    column_behind[feature.columns] = behind[-1]
        self._first_row = np.array(first_row, np.int32)
        self._behind = np.array(behind, np.int32)
        self._whole = np.flatnonzero(column_whole)
        self._listed = np.flatnonzero(~column_whole)
        self._column_behind = column_behind[self._whole]

    def route(self, requests):
        """Returns slots and weights, and ``[buffer rows + …]``: the rows of tables
        summed whole that this device uses, and its slots in the other tables."""
        _, _, slot = self.index.expand(requests.ids)
        weight = weights_of_requests(self.index, requests)
        used = jnp.zeros(self._buffer_rows, jnp.int32)
        if self.index.devices > 1:
            used = used.at[self._buffer_row(slot)].set(1, mode="drop")
        if self.index.devices > 1 and self._listed.size:
            listed = own_share_alone(slot[:, self._listed].reshape(-1))
            used = jnp.concatenate([used, listed])
        return (slot, weight), used

    def finish(self, route, largest) -> DataParallelRoute:
        slot, weight = route
        groups, touched = self._group(slot, largest)
        return DataParallelRoute(slot, weight, groups, touched)

    def _group(
        self, slot: jax.Array, largest: jax.Array
    ) -> tuple[RowGroups, jax.Array]:
        slots, implementation = self.index.slots, self.implementation
        if self.index.devices == 1:
            groups = group_rows(
                slot.reshape(-1),
                slots,
                max_groups=self.index.max_rows(len(slot)),
                implementation=implementation,
            )
            return groups, groups.row
        used, listed = jnp.split(largest, [self._buffer_rows])
        buffer_rows = [self._buffer_row(slot)]
        touched = [jnp.where(used > 0, self._slots_of_buffer(), slots)]
        if self._listed.size:
            everywhere = group_rows(listed, slots, implementation=implementation)
            listed_rows = own_share(everywhere.group).reshape(-1, self._listed.size)
            buffer_rows.append(self._buffer_rows + listed_rows)
            touched.append(everywhere.row)
        in_order = np.argsort(np.concatenate([self._whole, self._listed]))
        target = jnp.concatenate(buffer_rows, axis=1)[:, in_order].reshape(-1)
        rows = jnp.concatenate(touched)
        size = rows.shape[0]
        return group_targets(target, size, implementation=implementation), rows

    def _buffer_row(self, slot: jax.Array) -> jax.Array:
        """Returns ``[batch, …]``: the buffer row of each request of tables that are
        summed whole; out of range where padded."""
        slot = slot[:, self._whole]
        behind = jnp.asarray(self._column_behind)[None]
        nowhere = jnp.iinfo(jnp.int32).max
        return jnp.where(slot < self.index.slots, slot - behind, nowhere)

    def _slots_of_buffer(self) -> jax.Array:
        """Returns the slots ``[buffer rows]`` of tables that are summed whole."""
        row = jnp.arange(self._buffer_rows, dtype=jnp.int32)
        if not self._buffer_rows:
            return row
        table = jnp.searchsorted(jnp.asarray(self._first_row), row, side="right")
        return row + jnp.asarray(self._behind)[table - 1]

    def touched(self, route):
        return route.touched

    def lookup(self, block, route):
        return pooled_lookup(
            block,
            route.slot,
            route.weight,
            hotness=self.index.hotness,
            implementation=self.implementation,
        )

    def summands(self, gradients, route):
        return self._summands(gradients, route) if self.index.devices == 1 else None

    def _summands(self, gradients: jax.Array, route: DataParallelRoute) -> Summands:
        batch, _, width = gradients.shape
        return Summands(
            route.groups,
            gradients.reshape(-1, width),
            self.index.request_bags(batch),
            None if route.weight is None else route.weight.reshape(-1),
        )

    def row_gradients(self, gradients, route):
        rows = sum_up(self._summands(gradients, route), self.implementation)
        if self.index.devices > 1:
            with jax.named_scope("gradient exchange"):
                rows = sum_over_devices(rows, self.wire)
        return RowGradients(route.touched, rows)

    def mean_square(self, rows, route):
        return None
