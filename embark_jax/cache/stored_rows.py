"""All rows of one cached storage, on the devices of this process, in row stores.

A row that was never written has its initial value, which is computed when it is asked
for: rows that a run has never seen take neither time nor memory nor disk. Of a dynamic
table the stores hold what has left slots, by key; a checkpoint gets the others, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.cache.key_index import NOWHERE, KeyIndex, Moves
from embark_jax.cache.keyed_store import KeyedStore
from embark_jax.cache.resolving import Demand, words_of_keys
from embark_jax.cache.row_store import RowStore, make_store
from embark_jax.cache.saved_keys import (
    KEY,
    NO_ROW,
    SCORES,
    USED,
    index_fields,
    keys_of,
    ring_order,
    words_of,
)
from embark_jax.cache.stored_array import StoredArray
from embark_jax.cache.swaps import Incoming, initial_values, to_words
from embark_jax.embedding.arrays import BATCH
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.keys import row_shard_of
from embark_jax.embedding.rules import AnyRule
from embark_jax.plans.storage import Storage

LEAST_ROWS = 64
BATCHES_REMEMBERED = 64
"""A swap has room for this many rows at least, or else for a power of two that was
enough for so many batches. Each other room is compiled, for all storages together."""
ROWS_AT_ONCE = 8192
"""Rows of each device at a time, where all of a storage's rows pass host memory."""


class StoredRows:
    """All rows of one cached storage, as described above. A checkpoint of a dynamic
    table is restored by ``clear``, ``owned`` and ``take``.

    Args:
      storage: the storage.
      mesh: mesh whose devices own its blocks.
      words: words of each value in a row, parameters and states, as in ``row_words``.
      scratch: folder for rows of tier "disk"; None takes the system's for temporary
        files.

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
        self.storage = storage
        self.table, self.states = storage.kind.table, tuple(filter(None, words))
        self._words = words
        self._width = max(columns.stop for columns in words.values())
        self._mesh = mesh
        self.discards = any(row_range.table.discard for row_range in storage.ranges)
        tier, width = storage.kind.tier, self._width

        def make(rows: int) -> RowStore:
            return make_store(tier, rows, width, scratch)

        (row_range, *_) = storage.ranges
        expected = (row_range.table.expected_keys or 0) // row_range.row_shards
        self._stores: dict[Any, RowStore | KeyedStore] = {
            device: KeyedStore(make, 0 if self.discards else expected)
            if self.table
            else make(storage.rows_per_device)
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
        rows_by_device = []
        for device, store in self._stores.items():
            names = _moving(device, demand, demand.moves.incoming)
            rows = np.zeros((size, self._width), np.float32)
            fresh = np.arange(size) < len(names)
            if not self.discards:
                held = np.flatnonzero(store.holds(names))
                rows[held] = store.read(names[held])
                fresh[held] = False
            rows_by_device.append(Incoming(*jax.device_put((rows, fresh), device)))
        return jax.tree.map(self._whole, *rows_by_device)

    def take_back(self, demand: Demand, rows: jax.Array) -> None:
        """Stores the rows that left slots, or forgets them."""
        for device, store in self._stores.items():
            names = _moving(device, demand, demand.moves.outgoing)
            leaves = np.asarray(on_device(device, demand.moves.leaves))[: len(names)]
            if leaves.any() and not self.discards:
                left = np.asarray(on_device(device, rows))[: len(names)][leaves]
                store.write(names[leaves], left)

    def take_slots(self, index: KeyIndex, arrays: list[jax.Array]) -> None:
        """Stores a copy of all rows that have a slot.

        Args:
          index: key index of the storage.
          arrays: storage and its states, in the order of a row's values.
        """
        for device, store in self._stores.items():
            if self.discards and isinstance(store, KeyedStore):
                store.clear()  # of what an earlier checkpoint has
            names = _names(np.asarray(on_device(device, index.slot_keys)))
            slots = _slots_in_order(index, device)
            arrays_of_device = [on_device(device, array) for array in arrays]
            count = min(ROWS_AT_ONCE, len(names))
            for begin in range(0, len(slots), count):
                some = slots[begin : begin + count]
                rows = [
                    np.asarray(_rows(array, np.resize(some, count)))[: len(some)]
                    for array in arrays_of_device
                ]
                store.write(names[some], np.concatenate(rows, axis=1))

    def fill(
        self, collection: EmbeddingCollection, optimizer: AnyRule, key: jax.Array
    ) -> None:
        """Stores the initial rows of all that were never written; arguments as in
        ``initial_values``."""
        storage, count = self.storage, min(ROWS_AT_ONCE, self.storage.rows_per_device)

        def initial(key, first):
            values = initial_values(collection, storage, optimizer, key)
            numbers = first + jnp.arange(count, dtype=jnp.int32)
            return values(numbers[:, None].astype(jnp.uint32))

        specs = PartitionSpec(), PartitionSpec()
        compute = jax.jit(collection.map(initial, specs, BATCH))
        for begin in range(0, storage.rows_per_device, count):
            first = min(begin, storage.rows_per_device - count)
            numbers = np.arange(first, first + count)
            lacking = {
                device: numbers[~store.holds(numbers)]
                for device, store in self._stores.items()
            }
            if any(map(len, lacking.values())):
                rows = compute(key, np.int32(first))
                for device, missing in lacking.items():
                    initial_rows = np.asarray(on_device(device, rows))[missing - first]
                    self._stores[device].write(missing, initial_rows)

    def array(self, value: str, rows: int) -> StoredArray:
        """Returns ``rows`` rows of each block of a value, in place."""
        columns, blocks = self._words[value], {}
        for device, store in self._stores.items():
            blocks[device] = store.columns(columns)[:rows]
            if not value:
                values = blocks[device].view(jnp.dtype(self.storage.kind.dtype))
                blocks[device] = values[:, : self.storage.width]
        return self._array(blocks)

    @property
    def count(self) -> int:
        """Number of rows in the store of the device that has the most."""
        return max(self.counts())

    def key_arrays(self, index: KeyIndex, room: int) -> dict[str, StoredArray]:
        """Returns what ``saved_keys`` says of a dynamic table's rows, by name, with
        ``room`` in each block; ``array`` has as much, afterwards."""
        all_keys, all_used = {}, {}
        for device, store in self._keyed.items():
            store.reserve(room)
            count = len(store)
            keys, used = np.zeros((room, 1), np.int64), np.full((room, 1), NO_ROW)
            keys[:count, 0], used[:count] = store.keys, 0
            if self.discards:
                field: jax.Array = getattr(index, SCORES[self.storage.kind.evict])
                scores = np.asarray(on_device(device, field))
                used[:count, 0] = scores[_slots_in_order(index, device)]
            all_keys[device], all_used[device] = keys, used.astype(np.int32)
        return {KEY: self._array(all_keys), USED: self._array(all_used)}

    @property
    def _keyed(self) -> dict[Any, KeyedStore]:
        return {d: s for d, s in self._stores.items() if isinstance(s, KeyedStore)}

    def counts(self) -> list[int]:
        """Returns the number of keys in each store of a dynamic table."""
        return [len(store) for store in self._keyed.values()]

    def truncate(self, counts: list[int]) -> None:
        """Forgets the keys that were stored since there were so many."""
        for store, count in zip(self._keyed.values(), counts, strict=True):
            store.truncate(count)

    def clear(self) -> None:
        """Forgets all rows of a dynamic table."""
        self._used.clear()
        for store in self._keyed.values():
            store.clear()

    def owned(self, keys: np.ndarray) -> np.ndarray:
        """Returns ``[n]`` bool: which of ``[n]`` int64 keys belong to these devices."""
        own = [row_shard for row_shard, _ in map(self._shard, self._stores)]
        return np.isin(self._row_shard(keys), own)

    def take(
        self,
        keys: np.ndarray,
        used: np.ndarray,
        rows: Mapping[str, np.ndarray],
    ) -> None:
        """Takes over those of ``[n]`` int64 keys of a checkpoint that are ``owned``.

        Args:
          keys: ``[n]`` int64 keys.
          used: ``[n]`` int32 values of ``USED``.
          rows: parameters ``[n, dim]`` by the name "", and each state, ``[n, dim]`` or
            ``[n, 1]``.
        """
        row_shard, width = self._row_shard(keys), self.storage.width
        for device, store in self._stores.items():
            row, column = self._shard(device)
            own = np.flatnonzero(row_shard == row)
            columns = slice(column * width, (column + 1) * width)
            values = [
                rows[name][own]
                if rows[name].shape[1] == 1
                else rows[name][own, columns]
                for name in self._words
            ]
            store.write(keys[own], np.concatenate(list(map(to_words, values)), axis=1))
            self._used[device].append(used[own])

    def keys_in_slots(self) -> tuple[dict[Any, np.ndarray], dict[str, jax.Array]]:
        """Gives the first slots to rows that were taken, to those with the largest
        ``used`` if there are too few; a table that discards rows has no others.

        Returns:
          Their ``[n]`` int64 keys by device, and the fields of their key index, all but
          the directory.
        """
        limit, evict = self.storage.slots_per_device, self.storage.kind.evict
        keys_by_device, indexes = {}, []
        for device, store in self._keyed.items():
            used = np.concatenate([np.empty(0, np.int32), *self._used[device]])
            stay = np.sort(np.argsort(used, kind="stable")[-limit:])
            keys_by_device[device] = store.keys[stay]
            fields = index_fields(store.keys[stay], used[stay], limit, evict)
            indexes.append(jax.device_put(fields, device))
        return keys_by_device, jax.tree.map(self._whole, *indexes)

    def moves_to_slots(
        self, keys_by_device: Mapping[Any, np.ndarray], first: int
    ) -> tuple[Moves, Incoming]:
        """Returns moves that bring the rows of some of these keys, of ``ROWS_AT_ONCE``
        from ``first`` on, into slots of the same numbers, and the rows."""
        slots, moves_by_device = self.storage.slots_per_device, []
        size = min(ROWS_AT_ONCE, slots)
        for device, store in self._stores.items():
            keys = np.empty(0, np.int64)
            if device in keys_by_device:
                keys = keys_by_device[device][first : first + size]
            count = len(keys)
            slot = np.full(size, NOWHERE, np.int32)
            slot[:count] = first + np.arange(count)
            rows = np.zeros((size, self._width), np.float32)
            rows[:count] = store.read(keys)
            words = np.zeros((size, words_of_keys(self.storage)), np.uint32)
            total = np.full(1, count, np.int32)
            moves = slot, words, words, total, np.zeros(size, bool)
            come = rows, np.zeros(size, bool)
            moves, come = jax.device_put((moves, come), device)
            moves_by_device.append((Moves(*moves), Incoming(*come)))
        return jax.tree.map(self._whole, *moves_by_device)

    def _array(self, blocks: Mapping[Any, np.ndarray]) -> StoredArray:
        ((rows, width),) = {block.shape for block in blocks.values()}
        return StoredArray(
            (rows * self._mesh.size, width),
            NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names, None)),
            blocks,
        )

    def overwritten(self) -> None:
        """Marks all rows as written into the arrays."""
        for store in self._stores.values():
            if not isinstance(store, KeyedStore):
                store.hold(np.arange(store.rows))

    def _whole(self, *blocks: jax.Array) -> jax.Array:
        """Returns an array of the blocks of this process's devices."""
        rows, *others = blocks[0].shape
        return jax.make_array_from_single_device_arrays(
            (rows * self._mesh.size, *others),
            NamedSharding(self._mesh, BATCH),
            list(blocks),
        )

    def _shard(self, device: Any) -> tuple[int, int]:
        """Returns the row and column shard of a dynamic table that a device has."""
        (row_range,) = self.storage.ranges
        number = list(self._mesh.devices.flat).index(device)
        return divmod(row_range.devices.index(number), row_range.column_shards)

    def _row_shard(self, keys: np.ndarray) -> np.ndarray:
        return row_shard_of(words_of(keys), self.storage.ranges[0].row_shards)


def on_device(device: Any, array: jax.Array) -> jax.Array:
    """Returns a device's part of an array."""
    (data,) = (
        shard.data for shard in array.addressable_shards if shard.device == device
    )
    return data


def _moving(device: Any, demand: Demand, keys: jax.Array) -> np.ndarray:
    """Returns names of those of a device's keys in ``moves`` that mean something."""
    count = int(np.asarray(on_device(device, demand.moves.count))[0])
    return _names(np.asarray(on_device(device, keys))[:count])


def _names(keys: np.ndarray) -> np.ndarray:
    """Returns the names of rows in a store: ``[n]`` numbers of ``[n, 1]`` keys, or
    int64 keys of ``[n, 2]``."""
    return keys[:, 0] if keys.shape[1] == 1 else keys_of(keys)


def _slots_in_order(index: KeyIndex, device: Any) -> np.ndarray:
    """Returns the slots of a device that have a row, in ``ring_order``."""
    filled, hand = (
        int(np.asarray(on_device(device, field))[0])
        for field in (index.filled, index.hand)
    )
    return ring_order(filled, hand)


@jax.jit
def _rows(array: jax.Array, slots: jax.Array) -> jax.Array:
    return to_words(array[slots])
