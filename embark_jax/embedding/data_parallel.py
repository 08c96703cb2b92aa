"""DP: the storage is replicated; lookups are local, gradients are all-reduced.

They are summed in one buffer, which holds every row of a table that has no more rows
here than the batch has ids for it; of other tables it holds the rows that any device
touches, so that many rows cost what the batch touches, not their number. Devices tell
each other which rows they touch in the all-reduce that the step has for its capacities.
One device sums nothing. The sum has the format of the dense gradients' sums: it travels
in one collective with them, and in another it would wait for a latency of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import (
    RowGroups,
    group_rows,
    group_targets,
)

from embark_jax.embedding.cluster import (
    Cluster,
    GradientTerms,
    RowGradients,
    flat,
    flat_weights,
    lookup_blocks,
    sum_up,
    weights_of_requests,
)
from embark_jax.embedding.exchange import (
    own_share,
    own_share_alone,
    sum_over_devices,
)
from embark_jax.embedding.indexing import FeatureBlock
from embark_jax.plans.capacities import rows_of
from embark_jax.plans.traffic import summed_whole


class DataParallelRoute(NamedTuple):
    """The route of a DP storage.

    Attributes:
      slot: for each block ``[rows, requests]`` slot of each request; ``slots`` where
        padded.
      weight: for each block ``[rows, requests]`` weight of each request; or None.
      groups: requests grouped by their rows in the all-reduced buffer.
      touched: ``[rows]`` slot of each row of that buffer; out of range where unused.
    """

    slot: list[jax.Array]
    weight: list[jax.Array] | None
    groups: RowGroups
    touched: jax.Array


class _SummedColumns(NamedTuple):
    """How gradients of a block's id columns are summed over the devices.

    Attributes:
      whole: columns of tables that are summed whole.
      behind: for each of these, how far slots lie behind their rows of the buffer.
      listed: the other columns.
    """

    whole: np.ndarray
    behind: np.ndarray
    listed: np.ndarray

    @classmethod
    def of(cls, block: FeatureBlock, behind: Mapping[str, int]) -> _SummedColumns:
        """Returns those of a block, by ``behind`` of the tables summed whole."""
        tables = [""] * block.columns
        for feature in block.features:
            for column in range(feature.columns.start, feature.columns.stop):
                tables[column] = feature.feature.table
        is_whole = np.array([table in behind for table in tables])
        whole, listed = np.flatnonzero(is_whole), np.flatnonzero(~is_whole)
        return cls(
            whole, np.array([behind[tables[c]] for c in whole], np.int32), listed
        )


@dataclasses.dataclass(eq=False)
class DataParallel(Cluster):
    """The DP cluster of one storage; see ``cluster.Cluster``."""

    def __post_init__(self):
        index = self.index
        # Tables that are summed whole: buffer rows of their first rows, and how far
        # their slots lie behind those.
        first_row = []
        behind: dict[str, int] = {}
        self._buffer_rows = 0
        batch_ids = index.batch_ids
        shards = index.storage.shards[["table", "rows", "first_slot"]].tolist()
        for table, rows, first_slot in shards:
            if not summed_whole(rows, batch_ids[table]):
                continue
            first_row.append(self._buffer_rows)
            name = index.storage.tables[table].name
            behind[name] = first_slot - self._buffer_rows
            self._buffer_rows += rows
        self._first_row = np.array(first_row, np.int32)
        self._behind = np.array([*behind.values()], np.int32)
        self._columns = [_SummedColumns.of(block, behind) for block in index.blocks]

    def route(self, requests):
        """Returns slots and weights, and ``[buffer rows + …]``: the rows of tables
        summed whole that this device uses, and its slots in the other tables."""
        slots = [
            block.expand(asked.ids)[2]
            for block, asked in zip(self.index.blocks, requests, strict=True)
        ]
        weight = weights_of_requests(self.index, requests)
        used = jnp.zeros(self._buffer_rows, jnp.int32)
        if self.index.devices > 1:
            for buffer_row in self._buffer_row(slots):
                used = used.at[buffer_row].set(1, mode="drop")
            listed = self._listed(slots)
            if listed.size:
                used = jnp.concatenate([used, own_share_alone(listed)])
        return (slots, weight), used

    def finish(self, route, largest):
        slots, weight = route
        groups, touched, needed = self._group(slots, largest)
        route = DataParallelRoute(slots, weight, groups, touched)
        return route, {rows_of(self.index.storage.name): needed}

    def _group(
        self, slots: list[jax.Array], largest: jax.Array
    ) -> tuple[RowGroups, jax.Array, jax.Array]:
        """Returns the requests by their rows in the buffer, the slots of these, and
        how many rows the buffer needs."""
        out_of_range, implementation = self.index.slots, self.implementation
        if self.index.devices == 1:
            groups = group_rows(
                flat(slots),
                out_of_range,
                max_groups=self.rows,
                implementation=implementation,
            )
            return groups, groups.row, groups.needed[0]
        used, listed = jnp.split(largest, [self._buffer_rows])
        touched = [jnp.where(used > 0, self._slots_of_buffer(), out_of_range)]
        listed_rows = jnp.zeros(0, jnp.int32)
        needed = jnp.int32(self._buffer_rows)
        if listed.size:
            everywhere = group_rows(
                listed,
                out_of_range,
                max_groups=max(1, self.rows - self._buffer_rows),
                implementation=implementation,
            )
            needed += everywhere.needed[0]
            listed_rows = self._buffer_rows + own_share(everywhere.group)
            touched.append(everywhere.row)
        targets = []
        for columns, buffer_row in zip(
            self._columns, self._buffer_row(slots), strict=True
        ):
            requests = len(buffer_row) * len(columns.listed)
            listed, listed_rows = jnp.split(listed_rows, [requests])
            listed = listed.reshape(len(buffer_row), -1)
            order = np.argsort(np.concatenate([columns.whole, columns.listed]))
            targets.append(jnp.concatenate([buffer_row, listed], axis=1)[:, order])
        rows = jnp.concatenate(touched)
        groups = group_targets(flat(targets), len(rows), implementation=implementation)
        return groups, rows, needed

    def _buffer_row(self, slots: list[jax.Array]) -> list[jax.Array]:
        """Returns for each block ``[rows, …]``: the buffer row of each request of
        tables that are summed whole; out of range where padded."""
        nowhere = jnp.iinfo(jnp.int32).max
        buffer_rows = []
        for columns, slot in zip(self._columns, slots, strict=True):
            slot = slot[:, columns.whole]
            behind = jnp.asarray(columns.behind[None])
            valid = slot < self.index.slots
            buffer_rows.append(jnp.where(valid, slot - behind, nowhere))
        return buffer_rows

    def _listed(self, slots: list[jax.Array]) -> jax.Array:
        """Returns the slots of all requests of the other tables, block by block."""
        pairs = zip(self._columns, slots, strict=True)
        return flat([slot[:, columns.listed] for columns, slot in pairs])

    def _slots_of_buffer(self) -> jax.Array:
        """Returns the slots ``[buffer rows]`` of tables that are summed whole."""
        row = jnp.arange(self._buffer_rows, dtype=jnp.int32)
        if not self._buffer_rows:
            return row
        # Unrolled, the search is a few kernels of a GPU; a loop has some for each turn.
        table = jnp.searchsorted(
            jnp.asarray(self._first_row), row, side="right", method="scan_unrolled"
        )
        return row + jnp.asarray(self._behind)[table - 1]

    def lookup(self, storage_block, route, dtype):
        return lookup_blocks(
            self.index,
            storage_block,
            route.slot,
            route.weight,
            dtype,
            self.implementation,
        )

    @property
    def sums_alone(self):
        return self.index.devices == 1

    def gradient_terms(self, gradients, route):
        return GradientTerms(
            route.groups,
            flat(gradients, self.index.storage.width),
            self.index.request_bags(),
            flat_weights(route.weight),
        )

    def row_gradients(self, gradients, route):
        rows = sum_up(self.gradient_terms(gradients, route), self.implementation)
        if not self.sums_alone:
            with jax.named_scope("gradient exchange"):
                rows = sum_over_devices(rows, self.wire.sums)
        return RowGradients(route.touched, rows)
