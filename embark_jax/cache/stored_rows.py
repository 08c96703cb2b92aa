"""All rows of one cached storage, on the devices of this process, in row stores.

A row that was never written has its initial value, which is computed when it is asked
for: rows that a run has never seen take neither time nor memory nor disk. Of a dynamic
table the stores hold what has left slots; a checkpoint gets the others, too.

A checkpoint sees the rows as if devices had them (``StoredArray``). Beside its values,
each row of a dynamic table has its key there. Where rows that leave are discarded, a
run that resumes must discard what the run before would have discarded: such a table is
saved in the order of the ring of its key index, from the slot on at which it would next
search for victims, and each row has the number by which victims are chosen. Other
tables begin a run with empty slots.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from embark_jax.cache.key_index import NO_SLOT, Demand, KeyIndex, Moves
from embark_jax.cache.row_store import KeyedRows, make_store
from embark_jax.cache.swaps import Incoming, Values, initial_values, to_words
from embark_jax.embedding.collection import BATCH, EmbeddingCollection
from embark_jax.embedding.keys import keys_of, row_shard_of, words_of
from embark_jax.embedding.rules import AnyRule
from embark_jax.plans.layout import Storage
from embark_jax.plans.options import Evict

KEY = "key"
USED = "used"
"""Names of two numbers beside the states of a dynamic table's rows: ``used`` is the
batch that last asked for a key (LRU), or how many did (LFU); 0 if nothing is
discarded."""
NO_ROW = -1
"""``used`` where there is only room for a row."""
SCORES: dict[Evict, str] = {"lru": "used_at", "lfu": "times_used"}
"""Field of the key index that has the numbers by which rows leave."""
LEAST_ROWS = 64
BATCHES_REMEMBERED = 64
"""A swap has room for this many rows at least, or else for a power of two that was
enough for so many batches. Each other room is compiled, for all storages together."""
MOVED_AT_ONCE = 8192
"""Rows of each device at a time, where all of a storage's rows pass host memory."""


class StoredShard(NamedTuple):
    """A block: ``data`` is ``[rows, width]``, in place; ``index`` is its position in
    the array; ``device`` is the one whose rows these are, and no other has them."""

    device: Any
    index: tuple[slice, ...]
    data: np.ndarray
    replica_id: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class StoredArray:
    """Rows in host memory, or in a file mapped to it, with the part of ``jax.Array``'s
    interface that checkpoints use.

    Attributes:
      shape: ``[rows of all devices, width]``.
      sharding: says which rows belong to which device.
      blocks: blocks of the devices of this process.
    """

    shape: tuple[int, int]
    sharding: Sharding
    blocks: Mapping[Any, np.ndarray]

    @property
    def dtype(self) -> np.dtype:
        return next(iter(self.blocks.values())).dtype

    @property
    def addressable_shards(self) -> list[StoredShard]:
        where = self.sharding.addressable_devices_indices_map(self.shape)
        return [
            StoredShard(device, where[device] or (), block)
            for device, block in self.blocks.items()
        ]


class StoredRows:
    """All rows of one cached storage, as described above. A checkpoint of a dynamic
    table is restored by ``clear``, ``owned`` and ``import_rows``.

    Args:
      storage: the storage; replaced when its table has grown.
      mesh: mesh whose devices own its blocks.
      words: words of each value in a row, parameters and states, as in ``row_words``.
      scratch: folder for rows of tier "disk"; None takes the system's for temporary
        files.

    Attributes:
      table: name of the dynamic table; "" if tables are fixed.
      discards: whether it forgets rows that leave slots.
      words: as given.

    Raises:
      StoreError: if there is no room for them.
    """

    def __init__(
        self,
        storage: Storage,
        mesh: Mesh,
        words: dict[str, slice],
        scratch: Path | None,
    ):
        self.storage, self.words = storage, words
        self._mesh = mesh
        self._width = max(columns.stop for columns in words.values())
        table = storage.table
        self.table = storage.kind.table
        self.discards = table.discard
        rows = storage.rows_per_device
        if table.is_dynamic:
            kept = 0 if table.discard else table.expected_keys or 0
            rows = kept // storage.row_shards

        def make(rows: int):
            return make_store(storage.kind.tier, rows, self._width, scratch)

        self._blocks: dict[Any, KeyedRows] = {
            device: KeyedRows(make, rows, any_keys=table.is_dynamic)
            for device in mesh.local_devices
        }
        self._used: dict[Any, list[np.ndarray]] = defaultdict(list)
        self._moved: deque[int] = deque(maxlen=BATCHES_REMEMBERED)

    def incoming(self, demand: Demand) -> Incoming:
        """Returns the rows that come into slots, on the devices."""
        self._moved.append(demand.on_host().coming)
        room = max(LEAST_ROWS, *self._moved)
        limit = demand.moves.slot.shape[0] // self._mesh.size
        size = min(limit, 1 << (room - 1).bit_length())
        by_device = []
        for device, block in self._blocks.items():
            keys = _moving(device, demand, demand.moves.incoming)
            rows = np.zeros((size, self._width), np.float32)
            fresh = np.arange(size) < len(keys)
            if not self.discards:
                known = np.flatnonzero(block.holds(keys))
                rows[known] = block.read(keys[known])
                fresh[known] = False
            by_device.append(Incoming(*jax.device_put((rows, fresh), device)))
        return self._joined(by_device)

    def store_evicted(self, demand: Demand, rows: jax.Array) -> None:
        """Stores the rows that left slots, or forgets them."""
        if self.discards:
            return
        for device, block in self._blocks.items():
            keys = _moving(device, demand, demand.moves.outgoing)
            leaves = np.asarray(on_device(device, demand.moves.leaves))[: len(keys)]
            if leaves.any():
                left = np.asarray(on_device(device, rows))[: len(keys)][leaves]
                block.write(keys[leaves], left)

    def store_resident(self, index: KeyIndex, values: Values) -> None:
        """Stores a copy of all rows that have a slot.

        Args:
          index: key index of the storage.
          values: arrays of the storage.
        """
        for device, block in self._blocks.items():
            if self.discards:
                block.clear()  # of what an earlier checkpoint has
            keys = keys_of(np.asarray(on_device(device, index.slot_keys)))
            arrays = [on_device(device, values[value]) for value in self.words]
            slots, count = _slots_in_order(index, device), min(MOVED_AT_ONCE, len(keys))
            for begin in range(0, len(slots), count):
                some = slots[begin : begin + count]
                rows = [
                    np.asarray(_rows(array, np.resize(some, count)))[: len(some)]
                    for array in arrays
                ]
                block.write(keys[some], np.concatenate(rows, axis=1))

    def complete(
        self, collection: EmbeddingCollection, optimizer: AnyRule, key: jax.Array
    ) -> None:
        """Stores the initial rows of all that were never written, of fixed tables;
        ``key`` is that of ``EmbeddingCollection.init``."""
        rows, everywhere = self.storage.rows_per_device, PartitionSpec()

        def initial(key, keys):
            return initial_values(self.storage, optimizer, key)(keys)

        compute = jax.jit(collection.map(initial, (everywhere, everywhere), BATCH))
        count = min(MOVED_AT_ONCE, rows)
        for begin in range(0, rows, count):
            first = min(begin, rows - count)
            numbers = np.arange(first, first + count)
            lacking = {
                device: numbers[~block.holds(numbers)]
                for device, block in self._blocks.items()
            }
            if any(map(len, lacking.values())):
                initial_rows = compute(key, words_of(numbers))
                for device, missing in lacking.items():
                    new = np.asarray(on_device(device, initial_rows))[missing - first]
                    self._blocks[device].write(missing, new)

    def arrays(self, rows: int) -> Values:
        """Returns ``rows`` rows of each block of all values, in place."""
        return {value: self._value(value, rows) for value in self.words}

    def _value(self, value: str, rows: int) -> StoredArray:
        columns, blocks = self.words[value], {}
        for device, block in self._blocks.items():
            blocks[device] = block.columns(columns)[:rows]
            if not value:
                values = blocks[device].view(jnp.dtype(self.storage.kind.dtype))
                blocks[device] = values[:, : self.storage.width]
        return self._array(blocks)

    @property
    def count(self) -> int:
        """Number of keys in the store of the device that has the most."""
        return max(self.counts())

    def counts(self) -> list[int]:
        """Returns the number of keys in each store of a dynamic table."""
        return [len(block) for block in self._blocks.values()]

    def truncate(self, counts: list[int]) -> None:
        """Forgets the keys that were stored since there were so many."""
        for block, count in zip(self._blocks.values(), counts, strict=True):
            block.truncate(count)

    def key_arrays(self, index: KeyIndex, room: int) -> Values:
        """Returns ``KEY`` and ``USED`` of a dynamic table's rows, with ``room`` in each
        block; ``arrays`` has as much, afterwards."""
        all_keys, all_used = {}, {}
        for device, block in self._blocks.items():
            block.reserve(room)
            count = len(block)
            keys, used = np.zeros((room, 1), np.int64), np.full((room, 1), NO_ROW)
            keys[:count, 0], used[:count] = block.keys, 0
            if self.discards:
                field: jax.Array = getattr(index, SCORES[self.storage.kind.evict])
                scores = np.asarray(on_device(device, field))
                used[:count, 0] = scores[_slots_in_order(index, device)]
            all_keys[device], all_used[device] = keys, used.astype(np.int32)
        return {KEY: self._array(all_keys), USED: self._array(all_used)}

    def clear(self) -> None:
        """Forgets all rows of a dynamic table."""
        self._used.clear()
        for block in self._blocks.values():
            block.clear()

    def hold_all(self) -> None:
        """All rows of fixed tables were written into the arrays."""
        for block in self._blocks.values():
            block.hold_all()

    def owned(self, keys: np.ndarray) -> np.ndarray:
        """Returns ``[n]`` bool: which of ``[n]`` int64 keys belong to these devices."""
        own = [row_shard for _, row_shard, _ in self._own_shards()]
        return np.isin(self._row_shard(keys), own)

    def import_rows(
        self,
        keys: np.ndarray,
        used: np.ndarray,
        rows: Mapping[str, np.ndarray],
    ) -> None:
        """Stores those of ``[n]`` int64 keys of a checkpoint that are ``owned``.

        Args:
          keys: ``[n]`` int64 keys.
          used: ``[n]`` int32 values of ``USED``.
          rows: parameters ``[n, dim]`` by the name "", and each state, ``[n, dim]`` or
            ``[n, 1]``.
        """
        row_shard, width = self._row_shard(keys), self.storage.width
        for device, row, column in self._own_shards():
            own = np.flatnonzero(row_shard == row)
            columns = slice(column * width, (column + 1) * width)
            values = [
                rows[value][own, columns]
                if rows[value].shape[1] > 1
                else rows[value][own]
                for value in self.words
            ]
            words = np.concatenate(list(map(to_words, values)), axis=1)
            self._blocks[device].write(keys[own], words)
            self._used[device].append(used[own])

    def keys_in_slots(self) -> tuple[dict[Any, np.ndarray], dict[str, jax.Array]]:
        """Gives the first slots to rows that were taken, to those with the largest
        ``used`` if there are too few; a table that discards rows has no others.

        Returns:
          Their ``[n]`` int64 keys by device, and the fields of their key index, all but
          the directory.
        """
        slots, evict = self.storage.slots_per_device, self.storage.kind.evict
        keys_by_device, indexes = {}, []
        for device, block in self._blocks.items():
            used = np.concatenate([np.empty(0, np.int32), *self._used[device]])
            stay = np.sort(np.argsort(used, kind="stable")[-slots:])
            keys, used, room = block.keys[stay], used[stay], slots - len(stay)
            fields = dict.fromkeys(SCORES.values(), np.zeros(slots, np.int32))
            fields |= {
                "slot_keys": np.pad(words_of(keys), ((0, room), (0, 0))),
                SCORES[evict]: np.pad(used, (0, room)),
                "batches": np.full(1, used.max(initial=0), np.int32),
                "taken": np.full(1, len(keys), np.int32),
                "hand": np.zeros(1, np.int32),
            }
            keys_by_device[device] = keys
            indexes.append(jax.device_put(fields, device))
        return keys_by_device, self._joined(indexes)

    def moves_to_slots(
        self, keys_by_device: Mapping[Any, np.ndarray], first: int
    ) -> tuple[Moves, Incoming]:
        """Returns moves that bring the rows of some of these keys, of ``MOVED_AT_ONCE``
        from ``first`` on, into slots of the same numbers, and the rows."""
        by_device = []
        size = min(MOVED_AT_ONCE, self.storage.slots_per_device)
        for device, block in self._blocks.items():
            keys = keys_by_device.get(device, np.empty(0, np.int64))
            keys = keys[first : first + size]
            slot = np.full(size, NO_SLOT, np.int32)
            slot[: len(keys)] = first + np.arange(len(keys))
            rows = np.zeros((size, self._width), np.float32)
            rows[: len(keys)] = block.read(keys)
            words, nothing = np.zeros((size, 2), np.uint32), np.zeros(size, bool)
            moves = Moves(slot, words, words, np.full(1, len(keys), np.int32), nothing)  # pyright: ignore
            by_device.append(jax.device_put((moves, Incoming(rows, nothing)), device))  # pyright: ignore
        return self._joined(by_device)

    def _array(self, blocks: Mapping[Any, np.ndarray]) -> StoredArray:
        ((rows, width),) = {block.shape for block in blocks.values()}
        return StoredArray(
            (rows * self._mesh.size, width),
            NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names, None)),
            blocks,
        )

    def _joined(self, by_device: list[Any]) -> Any:
        """Returns arrays of the blocks of this process's devices."""

        def joined(*blocks: jax.Array) -> jax.Array:
            rows, *others = blocks[0].shape
            return jax.make_array_from_single_device_arrays(
                (rows * self._mesh.size, *others),
                NamedSharding(self._mesh, BATCH),
                list(blocks),
            )

        return jax.tree.map(joined, *by_device)

    def _own_shards(self) -> list[tuple[Any, int, int]]:
        """Returns the device, row shard and column shard of each shard of a dynamic
        table that these devices have; some may have none."""
        shards, devices = self.storage.shards, self._mesh.devices.flat
        fields = shards[["owner", "row_shard", "column_shard"]].tolist()
        placed = [(devices[owner], row, column) for owner, row, column in fields]
        return [shard for shard in placed if shard[0] in self._blocks]

    def _row_shard(self, keys: np.ndarray) -> np.ndarray:
        return row_shard_of(words_of(keys), self.storage.row_shards)


def on_device(device: Any, array: jax.Array) -> jax.Array:
    """Returns a device's part of an array."""
    (data,) = (
        shard.data for shard in array.addressable_shards if shard.device == device
    )
    return data


def _moving(device: Any, demand: Demand, keys: jax.Array) -> np.ndarray:
    """Returns those of a device's keys in ``moves`` that mean something."""
    count = int(np.asarray(on_device(device, demand.moves.count))[0])
    return keys_of(np.asarray(on_device(device, keys))[:count])


def _slots_in_order(index: KeyIndex, device: Any) -> np.ndarray:
    """Returns the slots of a device that have a row, from the one on at which the
    search for victims goes on."""
    taken, hand = (
        int(np.asarray(on_device(device, field))[0])
        for field in (index.taken, index.hand)
    )
    return (hand + np.arange(taken)) % max(taken, 1)


@jax.jit
def _rows(array: jax.Array, slots: jax.Array) -> jax.Array:
    return to_words(array[slots])
