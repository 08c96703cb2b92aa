"""Static index arrays of one storage: they say where each id of all features goes.

All devices run one program, so what differs between tables and owners is data here,
never code; the compiled step does not grow with the number of features.

A sample has one *bag* of each pooled feature, and of a sequence (pooling "none") one
for each of its ids. An *output* is what a bag is pooled into, in one column shard:
``[batch, width]``. A *request* is an id of a bag, or its padding, once for each column
shard of its table: the unit of routing. A sequence of 3 ids in a table of two column
shards has 3 bags, 6 outputs and 6 requests; pooled, it has 1 bag, 2 outputs and 6
requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.embedding.keys import row_shard_of
from embark_jax.embedding.partial_sums import PartialSums, number_sums
from embark_jax.plans.storage import Storage
from embark_jax.plans.tables import PADDING_ID, FeatureSpec


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureOutputs:
    """The position of a feature's outputs among those of its storage.

    Attributes:
      feature: the feature.
      dim: dim of its table.
      columns: its id columns, among those of the storage.
      first_output, bags, column_shards: its outputs are ``[bags, column_shards]``
        starting at ``first_output``; ``bags`` is the number of bags of a sample.
    """

    feature: FeatureSpec
    dim: int
    columns: slice
    first_output: int
    bags: int
    column_shards: int

    @property
    def outputs(self) -> slice:
        count = self.bags * self.column_shards
        return slice(self.first_output, self.first_output + count)

    def assemble(self, outputs: jax.Array) -> jax.Array:
        """Turns ``[batch, outputs, width]`` of the storage into the feature's ``[batch,
        dim]``; into ``[batch, hotness, dim]`` for a sequence."""
        bags = outputs[:, self.outputs].reshape(-1, self.bags, self.dim)
        return bags if self.feature.pooling == "none" else bags[:, 0]

    def disassemble(self, value: jax.Array) -> jax.Array:
        """Inverts ``assemble``: returns ``[batch, bags * column_shards, width]``."""
        outputs = self.bags * self.column_shards
        return value.reshape(value.shape[0], outputs, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class StorageIndex:
    """Index arrays of one storage; all are NumPy and become constants of the program.

    Attributes:
      storage: the storage that is indexed.
      devices: number of devices in the mesh.
      features: features that read the storage, in order.
      columns: number of id columns of all those features.
      request_column, request_output: ``[requests]`` id column and output of each
        request.
      output_begin, output_end: ``[outputs]`` range of the table's rows that lie here;
        ids of its other rows count as padding.
      output_row_shards: ``[outputs]`` number of row shards of these rows.
      output_first_shard: ``[outputs]`` index of its first shard in the next two.
      partial_sums: partial sums of all devices: one for each shard, output by output.
      shard_first_slot: ``[shards]`` first slot of each shard in its owner's block.
      output_dim: ``[outputs]`` dim of each output's table.
    """

    storage: Storage
    devices: int
    features: tuple[FeatureOutputs, ...]
    columns: int
    request_column: np.ndarray
    request_output: np.ndarray
    output_begin: np.ndarray
    output_end: np.ndarray
    output_row_shards: np.ndarray
    output_first_shard: np.ndarray
    partial_sums: PartialSums
    shard_first_slot: np.ndarray
    output_dim: np.ndarray

    @property
    def requests(self) -> int:
        return len(self.request_column)

    @property
    def outputs(self) -> int:
        return len(self.output_row_shards)

    @property
    def by_key(self) -> bool:
        """Whether this is the storage of a dynamic table."""
        return bool(self.storage.kind.table)

    @property
    def wide(self) -> bool:
        """Whether a table has more rows than 32 bits number."""
        return any(
            rows.table.rows > np.iinfo(np.int32).max for rows in self.storage.ranges
        )

    @property
    def partial(self) -> bool:
        """Whether some rows of a table lie in another storage."""
        return any(rows.rows < rows.table.rows for rows in self.storage.ranges)

    @property
    def slots(self) -> int:
        """Slots of a block, if each row had one."""
        return self.storage.rows_per_device

    @property
    def hotness(self) -> tuple[int, ...]:
        """Requests of each output; they follow each other in a sample."""
        return tuple(np.bincount(self.request_output).tolist())

    @property
    def column_sharded(self) -> bool:
        return self.storage.kind.split

    def max_rows(self, samples: int) -> int:
        """Returns the most unique rows that these samples can ask of one device."""
        rows_by_device = np.zeros(self.devices, np.int64)
        for rows in self.storage.ranges:
            table = rows.table.name
            hotness = [
                f.feature.hotness for f in self.features if f.feature.table == table
            ]
            shard_rows = samples * sum(hotness)
            if not self.by_key:
                shard_rows = min(rows.shard_rows(0), shard_rows)
            np.add.at(rows_by_device, self.storage.owners(table).ravel(), shard_rows)
        return int(rows_by_device.max())

    def expand(
        self, ids: jax.Array, keys: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Finds the owner and slot of every request.

        Args:
          ids: ``[batch, columns]`` int32 or int64, -1 where padded.
          keys: ``[batch, columns, 2]`` keys of a dynamic table. Its slots are not known
            yet: the ids are any numbers below their count that stand for keys.

        Returns:
          ``(shard, owner, slot)``, each ``[batch, requests]`` int32; an request that is
          padding, or whose row lies elsewhere, has owner ``devices`` and slot
          ``slots``. Of a dynamic table the slot is the id, and the count where padded.
        """
        row_shards = self.output_row_shards[self.request_output][None]
        if keys is not None:
            row_shard = row_shard_of(keys, self.storage.ranges[0].row_shards)
            shard = self.output_first_shard[self.request_output][None]
            shard += row_shard.astype(jnp.int32)[:, self.request_column]
            slot, absent = ids[:, self.request_column], ids.size
            owner = jnp.asarray(self.partial_sums.owner)[shard]
            owner = jnp.where(slot >= 0, owner, self.devices)
            return shard, owner, jnp.where(slot >= 0, slot, absent)
        shard = self.output_first_shard[self.request_output][None]
        shard_owner = self.partial_sums.owner
        with jax.enable_x64(ids.dtype == jnp.int64):
            ids = ids[:, self.request_column]
            if self.partial:
                begin = jnp.asarray(
                    self.output_begin[None, self.request_output], ids.dtype
                )
                end = jnp.asarray(self.output_end[None, self.request_output], ids.dtype)
                ids = jnp.where(ids < end, ids - begin, PADDING_ID)
            valid = ids >= 0
            if (row_shards == 1).all():  # all is static but the row
                local_row = ids.astype(jnp.int32)
                owner, first_slot = shard_owner[shard], self.shard_first_slot[shard]
            else:
                row_shard, local_row = find(ids, jnp.asarray(row_shards, ids.dtype))
                local_row = local_row.astype(jnp.int32)
                row_shard = jnp.where(valid, row_shard, 0).astype(jnp.int32)
                shard = jnp.asarray(shard) + row_shard
                owner = jnp.asarray(shard_owner)[shard]
                first_slot = jnp.asarray(self.shard_first_slot)[shard]
        owner = jnp.where(valid, owner, self.devices)
        slot = jnp.where(valid, first_slot + local_row, self.slots)
        return jnp.broadcast_to(shard, slot.shape), owner, slot

    def request_bags(self, batch: int) -> jax.Array:
        """Returns ``[batch * requests]`` bags: ``sample * outputs + output``."""
        sample = jnp.arange(batch, dtype=jnp.int32)[:, None]
        return (sample * self.outputs + jnp.asarray(self.request_output[None])).reshape(
            -1
        )


def index_storage(
    storage: Storage, features: Sequence[FeatureSpec], devices: int
) -> StorageIndex:
    """Builds the index arrays of ``storage`` for the features that read its tables."""
    ranges = {rows.table.name: rows for rows in storage.ranges}
    feature_outputs: list[FeatureOutputs] = []
    request_column: list[int] = []
    request_output: list[int] = []
    output_tables: list[tuple[str, int]] = []
    column = 0
    for feature in features:
        if feature.table not in ranges:
            continue
        rows = ranges[feature.table]
        sequence = feature.pooling == "none"
        outputs = FeatureOutputs(
            feature,
            rows.table.dim,
            slice(column, column + feature.hotness),
            first_output=len(output_tables),
            bags=feature.hotness if sequence else 1,
            column_shards=rows.column_shards,
        )
        for bag in range(outputs.bags):
            ids = [bag] if sequence else range(feature.hotness)
            for k in range(rows.column_shards):
                request_column += [column + i for i in ids]
                request_output += [len(output_tables)] * len(ids)
                output_tables.append((feature.table, k))
        column += feature.hotness
        feature_outputs.append(outputs)

    output_rows = [ranges[table] for table, _ in output_tables]
    row_shards = np.array([rows.row_shards for rows in output_rows], np.int32)
    owners = [storage.owners(table)[:, k] for table, k in output_tables]
    first_slots = [storage.first_slots[table][:, k] for table, k in output_tables]
    shard_output = np.repeat(np.arange(len(output_tables)), row_shards)
    shard_owner = np.concatenate(owners).astype(np.int32)
    return StorageIndex(
        storage,
        devices,
        tuple(feature_outputs),
        columns=column,
        request_column=np.array(request_column, np.int32),
        request_output=np.array(request_output, np.int32),
        output_begin=np.array([rows.begin for rows in output_rows]),
        output_end=np.array([rows.end for rows in output_rows]),
        output_row_shards=row_shards,
        output_first_shard=(np.cumsum(row_shards) - row_shards).astype(np.int32),
        partial_sums=number_sums(
            shard_output, shard_owner, devices, len(output_tables)
        ),
        shard_first_slot=np.concatenate(first_slots).astype(np.int32),
        output_dim=np.array([rows.table.dim for rows in output_rows], np.float32),
    )


def find(ids: Any, row_shards: Any) -> tuple[Any, Any]:
    """Returns ``(row shard, row in it)`` of rows, both shaped like ``ids``.

    Args:
      ids: row numbers, not negative; the result for negative ones is not defined.
      row_shards: number of row shards of each id's table, broadcast against ``ids``.
    """
    row = ids // row_shards
    return ids - row * row_shards, row


def ids_of(row_shard: Any, row: Any, row_shards: Any) -> Any:
    """Inverts ``find``."""
    return row * row_shards + row_shard
