"""Static index arrays of one storage: they say where each id of all features goes.

All devices run one program, so what differs between tables and owners is data here,
never code; the compiled step does not grow with the number of pooled features.

The ids that read a storage lie in *blocks*: one of all pooled features, with a row for
each sample, and one of each sequence (pooling "none"), with a row of one id for each
*event*, wherever its sample ends. A *bag* is the ids of one feature in one row. An
*output* is what a bag is pooled into, in one column shard: ``[rows, width]``. A
*request* is an id of a bag, or its padding, once for each column shard of its table:
the unit of routing. Three ids of a sample in a table of two column shards are 6
requests: pooled, of 1 bag and 2 outputs; in a sequence, of 3 bags and 6 outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.embedding.batch_ids import BatchIds
from embark_jax.embedding.keys import row_shard_of, words_of
from embark_jax.embedding.partial_sums import PartialSums, number_sums
from embark_jax.plans.layout import Storage
from embark_jax.plans.tables import PADDING_ID, FeatureSpec


class Requests(NamedTuple):
    """What the features of a block ask for.

    Attributes:
      ids: ``[rows, columns]`` ids, -1 where padded.
      weights: ``[rows, columns]`` float32, or None if no feature has weights.
    """

    ids: jax.Array
    weights: jax.Array | None


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureOutputs:
    """The position of a feature's outputs among those of its block.

    Attributes:
      feature: the feature.
      columns: its id columns, among those of the block.
      outputs: its outputs, one for each column shard.
    """

    feature: FeatureSpec
    columns: slice
    outputs: slice


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureBlock:
    """Index arrays of one block; all are NumPy and become constants of the program.

    Attributes:
      storage: the storage that is read.
      devices: number of devices in the mesh.
      rows: samples of a device; of a sequence, the events that it has room for.
      room: outputs before those of the features, which nothing is pooled into.
      features: features of the block, in order.
      request_column, request_output: ``[requests]`` id column and output of each
        request.
      shards: records of the shards that each output reads, output by output and row
        shard by row shard.
      first_shard: ``[outputs]`` index in these of its first shard, if it has one.
      partial_sums: partial sums of all devices: one for each of these shards.
    """

    storage: Storage
    devices: int
    rows: int
    room: int
    features: tuple[FeatureOutputs, ...]
    request_column: np.ndarray
    request_output: np.ndarray
    shards: np.ndarray
    first_shard: np.ndarray
    partial_sums: PartialSums

    @property
    def sequence(self) -> bool:
        """Whether its rows are the events of a sequence."""
        return self.features[0].feature.sequence

    @property
    def columns(self) -> int:
        """Number of id columns of all features."""
        return self.features[-1].columns.stop

    @property
    def requests(self) -> int:
        return len(self.request_column)

    @property
    def outputs(self) -> int:
        return len(self.first_shard)

    @property
    def hotness(self) -> tuple[int, ...]:
        """Requests of each output; they follow each other in a row."""
        return tuple(np.bincount(self.request_output).tolist())

    @property
    def request_dim(self) -> np.ndarray:
        """``[requests]`` dim of the table that each reads."""
        dims = [self.storage.tables[t].dim for t in self._of_outputs("table").tolist()]
        return np.array(dims, np.float32)[self.request_output]

    def _of_outputs(self, field: str) -> np.ndarray:
        """Returns ``[outputs]`` what the first shard of each has in a field."""
        return self.shards[field][self.first_shard]

    def expand(self, ids: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Finds the owner of every request, and its row there.

        Args:
          ids: ``[rows, columns]`` int32 or int64, -1 where padded.

        Returns:
          ``(shard, owner, row)``; shard and owner are ``[rows, requests]`` int32. A row
          is known by its slot, ``[rows, requests]`` int32, or in a cached storage by
          its key, ``[rows, requests, 2]`` uint32: the number that a slot would have if
          there was one for each row, or the id of a dynamic table. A request that is
          padding, or whose row lies elsewhere, has owner ``devices`` and slot
          ``rows_per_device`` of the storage.
        """
        storage, cached = self.storage, self.storage.cached
        row_shards = self._of_outputs("stride")[self.request_output][None]
        shard = self.first_shard[self.request_output][None]
        shard_owner = self.shards["owner"].astype(np.int32)
        first_slot = self.shards["first_slot"].astype(np.int64 if cached else np.int32)
        with jax.enable_x64(cached or ids.dtype == jnp.int64):
            ids = ids[:, self.request_column]
            if not storage.dynamic:
                ids = self._own_rows(ids)
            valid = ids != PADDING_ID
            if (row_shards == 1).all():  # all is static but the row
                row, owner, first_slot = ids, shard_owner[shard], first_slot[shard]
            else:
                if storage.dynamic:
                    row = ids
                    row_shard = row_shard_of(words_of(ids), storage.row_shards)
                else:
                    row_shard, row = find(ids, jnp.asarray(row_shards, ids.dtype))
                shard = shard + jnp.where(valid, row_shard, 0).astype(jnp.int32)
                owner = jnp.asarray(shard_owner)[shard]
                first_slot = jnp.asarray(first_slot)[shard]
            owner = jnp.where(valid, owner, self.devices)
            shard = jnp.broadcast_to(shard, owner.shape)
            if storage.dynamic:
                return shard, owner, words_of(ids)
            if cached:
                return shard, owner, words_of(row.astype(jnp.int64) + first_slot)
        slot = row.astype(jnp.int32) + first_slot
        return shard, owner, jnp.where(valid, slot, storage.rows_per_device)

    def _own_rows(self, ids: jax.Array) -> jax.Array:
        """Returns the ids of requests, from that of the first row that lies here; -1
        for padding, and for those of rows that lie elsewhere."""
        begin = self._of_outputs("first_row")
        end = begin + np.add.reduceat(self.shards["rows"], self.first_shard)
        tables = self._of_outputs("table").tolist()
        rows = [self.storage.tables[table].rows for table in tables]
        if all((end - begin == rows)[self.room :]):
            return ids
        begin, end = (
            jnp.asarray(bound[None, self.request_output], ids.dtype)
            for bound in (begin, end)
        )
        here = (ids >= begin) & (ids < end)
        return jnp.where(here, ids - begin, PADDING_ID)


@dataclasses.dataclass(frozen=True, eq=False)
class StorageIndex:
    """The blocks of ids that read one storage.

    Attributes:
      storage: the storage that is indexed.
      devices: number of devices in the mesh.
      blocks: that of the pooled features, if there are any, then one for each sequence.
    """

    storage: Storage
    devices: int
    blocks: tuple[FeatureBlock, ...]

    @property
    def features(self) -> tuple[FeatureOutputs, ...]:
        """Features that read the storage, block by block."""
        return tuple(feature for block in self.blocks for feature in block.features)

    @property
    def wide(self) -> bool:
        """Whether a table has more rows than 32 bits number."""
        tables = self.storage.tables.values()
        return any(table.rows > np.iinfo(np.int32).max for table in tables)

    @property
    def slots(self) -> int:
        """Slots of a device's block, if each row had one."""
        return self.storage.rows_per_device

    @property
    def batch_ids(self) -> dict[int, int]:
        """Ids that a batch has for each table, padding included."""
        ids = dict.fromkeys(self.storage.tables, 0)
        number = {table.name: t for t, table in self.storage.tables.items()}
        for block in self.blocks:
            for feature in block.features:
                columns = feature.columns.stop - feature.columns.start
                table = number[feature.feature.table]
                ids[table] += self.devices * block.rows * columns
        return ids

    @property
    def max_rows(self) -> int:
        """The most unique rows that a batch can ask of one device."""
        rows_by_device, shards = np.zeros(self.devices, np.int64), self.storage.shards
        batch_ids = self.batch_ids
        rows = np.array([batch_ids[table] for table in shards["table"].tolist()])
        if not self.storage.dynamic:
            rows = np.minimum(rows, shards["rows"])
        np.add.at(rows_by_device, shards["owner"], rows)
        return int(rows_by_device.max())

    def requests(self, ids: BatchIds) -> list[Requests]:
        """Returns the requests of each block."""
        weighted = any(f.feature.weighted for f in self.features)
        requests = []
        for block in self.blocks:
            names = [f.feature.name for f in block.features]
            columns = ids.columns(names, self.wide)
            requests.append(Requests(columns, ids.weights(names) if weighted else None))
        return requests

    def any_row(self, requests: Sequence[Requests]) -> jax.Array:
        """Returns ``[]`` bool: whether the requests ask for any row of the storage."""
        owners = [
            block.expand(asked.ids)[1]
            for block, asked in zip(self.blocks, requests, strict=True)
        ]
        return jnp.stack([(owner < self.devices).any() for owner in owners]).any()

    def request_bags(self) -> jax.Array:
        """Returns the ``[requests of a device]`` outputs that they belong to, numbered
        block by block and row by row."""
        bags, outputs = [], 0
        for block in self.blocks:
            row = jnp.arange(block.rows, dtype=jnp.int32)[:, None]
            bag = row * block.outputs + jnp.asarray(block.request_output[None])
            bags.append(outputs + bag.reshape(-1))
            outputs += block.rows * block.outputs
        return jnp.concatenate(bags)


def index_storage(
    storage: Storage,
    features: Sequence[FeatureSpec],
    devices: int,
    batch: int,
    events: Mapping[str, int] = MappingProxyType({}),
    room: int = 0,
) -> StorageIndex:
    """Builds the index arrays of ``storage`` for the features that read its tables.

    Args:
      storage: the storage.
      features: all features.
      devices: number of devices in the mesh.
      batch: samples of a device.
      events: events that a device has room for, by sequence.
      room: features to leave room for before the others, if all pooled ones read the
        storage; these have one dim.
    """
    tables = {table.name for table in storage.tables.values()}
    readers = [feature for feature in features if feature.table in tables]
    pooled = [feature for feature in readers if not feature.sequence]
    pooled.sort(key=lambda feature: feature.name)
    if any(f.table not in tables for f in features if not f.sequence):
        room = 0
    blocks = [_index_block(storage, pooled, devices, batch, room)] if pooled else []
    for feature in readers:
        if feature.sequence:
            rows = events[feature.name]
            blocks.append(_index_block(storage, [feature], devices, rows))
    return StorageIndex(storage, devices, tuple(blocks))


def _index_block(
    storage: Storage,
    features: Sequence[FeatureSpec],
    devices: int,
    rows_of_block: int,
    room: int = 0,
) -> FeatureBlock:
    """Builds the index arrays of one block."""
    shards_of = {
        table.name: storage.shards[storage.shards["table"] == number]
        for number, table in storage.tables.items()
    }
    dims = {table.name: table.dim for table in storage.tables.values()}
    feature_outputs: list[FeatureOutputs] = []
    request_column: list[int] = []
    request_output: list[int] = []
    room *= dims[features[0].table] // storage.width
    of_outputs: list[np.ndarray] = [storage.shards[:0]] * room
    column = 0
    for feature in features:
        shards = shards_of[feature.table]
        first_output = len(of_outputs)
        bag = 1 if feature.sequence else feature.hotness
        columns = slice(column, column + bag)
        column += bag
        for k in range(shards["column_shard"].max() + 1):
            request_column += range(columns.start, columns.stop)
            request_output += [len(of_outputs)] * bag
            of_outputs.append(shards[shards["column_shard"] == k])
        outputs = slice(first_output, len(of_outputs))
        feature_outputs.append(FeatureOutputs(feature, columns, outputs))
    shards, counts = np.concatenate(of_outputs), [len(each) for each in of_outputs]
    return FeatureBlock(
        storage,
        devices,
        rows_of_block,
        room,
        tuple(feature_outputs),
        np.array(request_column, np.int32),
        np.array(request_output, np.int32),
        shards,
        (np.cumsum(counts) - counts).astype(np.int32),
        number_sums(
            np.repeat(np.arange(len(counts)), counts),
            shards["owner"].astype(np.int32),
            devices,
            len(counts),
        ),
    )


def find(ids: Any, row_shards: Any) -> tuple[Any, Any]:
    """Returns ``(row shard, row in it)`` of rows, both shaped like ``ids``.

    Args:
      ids: row numbers, not negative; the result for negative ones is not defined.
      row_shards: number of row shards of each id's table, broadcast against ``ids``.
    """
    row = ids // row_shards
    return ids - row * row_shards, row
