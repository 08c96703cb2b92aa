"""DP: the storage is replicated; lookups are local, gradients are all-reduced.

They are summed in one buffer. Of a table that has no more rows here than the batch has
ids for it, the buffer holds every row; which of them are touched is told in the
all-reduce that the step has for its capacities. Of other tables the buffer holds the
rows that are touched on any device, gathered from all, so that many rows cost what the
batch touches, not their number. One device sums nothing. Where gradients are
compressed, a table's rows are padded to a multiple of the devices, for each to add up
an equal share.
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

from embark_jax.embedding.cluster import RowGradients, Summands
from embark_jax.embedding.exchange import gather, own_part, sum_over_devices
from embark_jax.embedding.indexing import StorageIndex
from embark_jax.embedding.sharded import sum_up
from embark_jax.planner.cost.collectives import summed_rows, summed_whole
from embark_jax.planner.request.wire import WireFormat


class DataParallelRoute(NamedTuple):
    """Attributes:
    slot: ``[batch, entries]`` row of each entry; ``slots`` where padded.
    weight: ``[batch, entries]`` or None.
    groups: the entries grouped by their places in the all-reduced buffer.
    touched: ``[rows]`` slot of each row of that buffer; out of range where unused,
      once ``with_used`` has said so.
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
        batch: int,
        wire: WireFormat,
        implementation: Implementation,
    ):
        self.index = index
        self.wire: WireFormat = wire
        self.implementation: Implementation = implementation
        batch_ids: dict[str, int] = {}
        for each in index.features:
            name, hotness = each.feature.table, each.feature.hotness
            ids = batch * index.devices * hotness
            batch_ids[name] = batch_ids.get(name, 0) + ids
        # Tables that are summed whole: places of their first rows, and how far their
        # slots lie behind their places; the latter for each id column, too.
        first_place, behind, self._places = [], [], 0
        self._column_behind = np.zeros(index.columns, np.int32)
        self._column_whole = np.zeros(index.columns, bool)
        for rows in index.storage.ranges:
            table = rows.table.name
            if not summed_whole(rows.rows, batch_ids[table]):
                continue
            first_place.append(self._places)
            behind.append(index.storage.first_slots[table][0, 0] - self._places)
            self._places += summed_rows(
                rows.rows, batch_ids[table], index.devices, wire
            )
            for each in index.features:
                if each.feature.table == table:
                    self._column_whole[each.columns] = True
                    self._column_behind[each.columns] = behind[-1]
        self._first_place = np.array(first_place, np.int32)
        self._behind = np.array(behind, np.int32)

    def route(self, ids, weights):
        _, _, slot = self.index.expand(ids)
        groups, touched, used = self._group(slot)
        weight = None if weights is None else weights[:, self.index.entry_column]
        return DataParallelRoute(slot, weight, groups, touched), used

    def with_used(self, route: DataParallelRoute, used: jax.Array) -> DataParallelRoute:
        """The route, once it is known which places any device uses.

        Args:
          route: of ``route``.
          used: ``[places]`` the largest of all devices, of what ``route`` returned.
        """
        whole, listed = jnp.split(route.touched, [len(used)])
        whole = jnp.where(used > 0, whole, self.index.slots)
        return route._replace(touched=jnp.concatenate([whole, listed]))

    def _group(self, slot: jax.Array) -> tuple[RowGroups, jax.Array, jax.Array]:
        """Groups, the slot of each place, and which places of tables that are summed
        whole this device uses."""
        slots, implementation = self.index.slots, self.implementation
        if self.index.devices == 1:
            groups = group_rows(
                slot.reshape(-1),
                slots,
                most=self.index.most_rows(len(slot)),
                implementation=implementation,
            )
            return groups, groups.row, jnp.zeros(0, jnp.int32)
        place, touched, used = [], [], jnp.zeros(self._places, jnp.int32)
        whole = np.flatnonzero(self._column_whole)
        if whole.size:
            behind, nowhere = self._column_behind[whole], jnp.iinfo(jnp.int32).max
            found = slot[:, whole]
            found = jnp.where(found < slots, found - jnp.asarray(behind)[None], nowhere)
            place.append(found)
            touched.append(self._slots_of_places())
            used = used.at[found].set(1, mode="drop")
        listed = np.flatnonzero(~self._column_whole)
        if listed.size:
            # For plain XLA: nothing is summed into the groups of all devices.
            everywhere = group_rows(
                gather(slot[:, listed].reshape(-1)), slots, implementation="xla"
            )
            mine = own_part(everywhere.group).reshape(-1, listed.size)
            place.append(self._places + mine)
            touched.append(everywhere.row)
        in_order = np.argsort(np.concatenate([whole, listed]))
        target = jnp.concatenate(place, axis=1)[:, in_order].reshape(-1)
        rows = jnp.concatenate(touched)
        size = rows.shape[0]
        groups = group_targets(target, size, implementation=implementation)
        return groups, rows, used

    def _slots_of_places(self) -> jax.Array:
        """``[places]`` of tables that are summed whole."""
        place = jnp.arange(self._places, dtype=jnp.int32)
        table = jnp.searchsorted(jnp.asarray(self._first_place), place, side="right")
        return place + jnp.asarray(self._behind)[table - 1]

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
            self.index.entry_bags(batch),
            None if route.weight is None else route.weight.reshape(-1),
        )

    def row_gradients(self, gradients, route):
        rows = sum_up(self._summands(gradients, route), self.implementation)
        if self.index.devices > 1:
            rows = sum_over_devices(rows, self.wire)
        return RowGradients(route.touched, rows)

    def mean_square(self, rows, route):
        return None
