"""All rows of one cached storage, on the devices of this process, in row stores.

A row that was never written has its initial value, which is computed when it is asked
for: rows that a run has never seen take neither time nor memory nor disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax._base.memory import free_memory_bytes
from embark_jax.cache.kept_slots import (
    NONE_KEPT,
    SLOT_VALUES,
    Kept,
    index_of,
    kept,
    saved_slots,
)
from embark_jax.cache.key_index import EMPTY, KeyIndex, Moves
from embark_jax.cache.programs import Demand, Incoming, initial_values
from embark_jax.cache.row_store import (
    FLOAT32_BYTES,
    STORES,
    RowStore,
    StoreError,
    copy_rows,
    make_store,
)
from embark_jax.cache.stored_array import StoredArray
from embark_jax.embedding.arrays import BATCH
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.rules import AnyRule
from embark_jax.plans.storage import Storage

LEAST_ROWS = 64
"""Least rows that a swap has room for; more are a power of two: few are compiled."""
ROWS_AT_ONCE = 8192
"""Rows of each device at a time, where all of a storage's rows pass host memory."""
KEY = "key"
"""Name of the keys beside the states of a dynamic table's rows in a checkpoint."""
NO_KEY = -1
NO_KEYS = np.empty(0, np.int64)


class StoredRows:
    """All rows of one cached storage, as described above.

    Args:
      storage: the storage.
      mesh: mesh whose devices own its blocks.
      values: slice of each value in a row, parameters and states, as in ``row_values``.
      scratch: folder for rows of tier "disk"; None takes the system's for temporary
        files.
      keys: for a dynamic table, gives ``[numbers]`` int64 keys by number.

    Raises:
      StoreError: if there is no room for them.
    """

    def __init__(
        self,
        storage: Storage,
        mesh: Mesh,
        values: dict[str, slice],
        scratch: Path | None,
        keys: Callable[[], np.ndarray] | None,
    ):
        self.storage = storage
        self._values = values
        self._width = max(columns.stop for columns in values.values())
        self._mesh = mesh
        self._scratch = scratch
        self._keys = keys
        self._discards = any(row_range.table.discard for row_range in storage.ranges)
        rows = storage.rows_per_device
        self._stores: dict[Any, RowStore] = {
            device: make_store(storage.kind.tier, rows, self._width, scratch)
            for device in mesh.local_devices
        }

    def grown(self, storage: Storage) -> StoredRows:
        """Returns a copy with room for the rows of a storage that has more of them."""
        larger = StoredRows(
            storage, self._mesh, self._values, self._scratch, self._keys
        )
        for device, store in self._stores.items():
            copy_rows(store, larger._stores[device])
        return larger

    def incoming(self, demand: Demand, unseen: np.ndarray = NO_KEYS) -> Incoming:
        """Returns the rows that come into slots, on the devices; ``unseen`` are keys of
        the numbers after all others."""
        largest, *_ = np.asarray(demand.largest).tolist()
        room = demand.moves.slot.shape[0] // self._mesh.size
        size = min(room, max(LEAST_ROWS, 1 << (largest - 1).bit_length()))
        rows_by_device = []
        for device, store in self._stores.items():
            numbers = _moving(device, demand, demand.moves.incoming)
            rows, fresh = (
                np.zeros((size, self._width), np.float32),
                np.zeros(size, bool),
            )
            held = np.flatnonzero(store.holds(numbers))
            rows[held] = store.read(numbers[held])
            fresh[: len(numbers)] = True
            fresh[held] = False
            words = np.zeros((size, 2), np.uint32)
            words[: len(numbers)] = self._words(device, numbers, unseen)
            rows_by_device.append(
                Incoming(*jax.device_put((rows, fresh, words), device))
            )
        return jax.tree.map(self._whole, *rows_by_device)

    def take_back(self, demand: Demand, rows: jax.Array) -> None:
        """Stores the rows that left slots, or forgets them."""
        for device, store in self._stores.items():
            numbers = _moving(device, demand, demand.moves.outgoing)
            left = np.flatnonzero(numbers != EMPTY)
            if self._discards:
                store.forget(numbers[left])
            else:
                store.write(numbers[left], np.asarray(on_device(device, rows))[left])

    def take_slots(self, slot_keys: jax.Array, arrays: list[jax.Array]) -> None:
        """Stores a copy of all rows that have a slot.

        Args:
          slot_keys: slot keys of the key index.
          arrays: storage and its states, in the order of a row's values.
        """
        for device, store in self._stores.items():
            all_numbers = np.asarray(on_device(device, slot_keys))[:, 0]
            arrays_of_device = [on_device(device, array) for array in arrays]
            count = min(ROWS_AT_ONCE, len(all_numbers))
            for begin in range(0, len(all_numbers), count):
                first = min(begin, len(all_numbers) - count)
                numbers = all_numbers[first : first + count]
                rows = [
                    _rows(array, np.int32(first), count) for array in arrays_of_device
                ]
                rows = np.concatenate(rows, axis=1)
                held = np.flatnonzero(numbers != EMPTY)
                store.write(numbers[held], rows[held])

    def fill(
        self, collection: EmbeddingCollection, optimizer: AnyRule, key: jax.Array
    ) -> None:
        """Stores the initial rows of all that were never written; arguments as in
        ``initial_values``."""
        storage, count = self.storage, min(ROWS_AT_ONCE, self.storage.rows_per_device)

        def initial(key, first, words):
            values = initial_values(collection, storage, optimizer, key)
            return values(first + jnp.arange(count, dtype=jnp.int32), words)

        specs = PartitionSpec(), PartitionSpec(), BATCH
        compute = jax.jit(collection.map(initial, specs, BATCH))
        for begin in range(0, storage.rows_per_device, count):
            first = min(begin, storage.rows_per_device - count)
            numbers = np.arange(first, first + count)
            lacking = {
                device: self._named(device, numbers[~store.holds(numbers)])
                for device, store in self._stores.items()
            }
            if any(map(len, lacking.values())):
                words = [jax.device_put(self._words(d, numbers), d) for d in lacking]
                rows = compute(key, np.int32(first), self._whole(*words))
                for device, missing in lacking.items():
                    initial_rows = np.asarray(on_device(device, rows))[missing - first]
                    self._stores[device].write(missing, initial_rows)

    def array(self, value: str) -> StoredArray:
        """Returns all that the stores have of a value of rows, in place."""
        columns = self._values[value]
        return self._array(
            {d: store.columns(columns) for d, store in self._stores.items()}
        )

    def key_arrays(self, index: KeyIndex | None) -> dict[str, StoredArray]:
        """Returns keys and slots of a dynamic table's rows, by their names in a
        checkpoint; without an index there are none, but room for them."""
        arrays: dict[str, dict[Any, np.ndarray]] = {n: {} for n in (KEY, *SLOT_VALUES)}
        rows = self.storage.rows_per_device
        for device in self._stores:
            arrays[KEY][device] = self._block_keys(device, blank=index is None)
            host_index = None
            if index is not None:
                fields = (np.asarray(on_device(device, values)) for values in index)
                host_index = KeyIndex(*fields)  # pyright: ignore[reportArgumentType]
            for name, values in saved_slots(host_index, rows).items():
                arrays[name][device] = values
        return {name: self._array(values) for name, values in arrays.items()}

    def kept_in(self, arrays: Mapping[str, Any]) -> dict[Any, Kept]:
        """Returns the rows of each device that had slots, from what ``key_arrays``
        gave."""
        return {
            device: kept(
                {name: arrays[name].blocks[device] for name in SLOT_VALUES},
                self.storage.slots_per_device,
            )
            for device in self._stores
        }

    def kept_index(self, all_kept: Mapping[Any, Kept]) -> dict[str, jax.Array]:
        """Returns the fields of the key index of these rows, but for the directory."""
        indexes = [
            jax.device_put(index_of(rows_kept, self.storage.slots_per_device), device)
            for device, rows_kept in all_kept.items()
        ]
        return jax.tree.map(self._whole, *indexes)

    def kept_rows(
        self, all_kept: Mapping[Any, Kept], first: int
    ) -> tuple[Moves, Incoming]:
        """Returns moves that bring such rows into ``ROWS_AT_ONCE`` slots from ``first``
        on, and the rows."""
        slots = self.storage.slots_per_device
        size, moves_by_device = min(ROWS_AT_ONCE, slots), []
        for device, store in self._stores.items():
            numbers = all_kept.get(device, NONE_KEPT).numbers[first : first + size]
            count = len(numbers)
            slot = np.full(size, slots, np.int32)
            slot[:count] = first + np.arange(count)
            rows = np.zeros((size, self._width), np.float32)
            rows[:count] = store.read(numbers)
            keys, words = np.full((size, 1), EMPTY), np.zeros((size, 2), np.uint32)
            moves = slot, keys, keys, np.full(1, count, np.int32)
            come = rows, np.zeros(size, bool), words
            moves, come = jax.device_put((moves, come), device)
            moves_by_device.append((Moves(*moves), Incoming(*come)))
        return jax.tree.map(self._whole, *moves_by_device)

    def _array(self, blocks: Mapping[Any, np.ndarray]) -> StoredArray:
        (width,) = {block.shape[1] for block in blocks.values()}
        return StoredArray(
            (self.storage.rows_per_device * self._mesh.size, width),
            NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names, None)),
            blocks,
        )

    def overwritten(self) -> None:
        """Marks all rows as written into the arrays; of a dynamic table, those that
        have keys."""
        for device, store in self._stores.items():
            store.hold(self._named(device, np.arange(store.rows)))

    def keys_in(self, array: StoredArray) -> np.ndarray:
        """Returns ``[keys]`` int64 by number, from the array of keys, of the devices
        of all processes; these must all ask."""
        shards = len(self.storage.ranges[0].devices)
        rows = self.storage.rows_per_device
        keys_by_number = np.full(shards * rows, NO_KEY, np.int64)
        for device, keys in array.blocks.items():
            if (shard := self._shard(device)) is not None:
                keys_by_number[shard::shards] = keys[:, 0]
        if jax.process_count() > 1:
            with jax.enable_x64(True):
                keys_by_number = multihost_utils.process_allgather(keys_by_number).max(
                    axis=0
                )
        return keys_by_number[: np.count_nonzero(keys_by_number != NO_KEY)]

    def _whole(self, *blocks: jax.Array) -> jax.Array:
        """Returns an array of the blocks of this process's devices."""
        rows, *others = blocks[0].shape
        return jax.make_array_from_single_device_arrays(
            (rows * self._mesh.size, *others),
            NamedSharding(self._mesh, BATCH),
            list(blocks),
        )

    def _shard(self, device: Any) -> int | None:
        """Returns the row shard of a dynamic table that a device has, if it has one."""
        devices = self.storage.ranges[0].devices
        number = list(self._mesh.devices.flat).index(device)
        return devices.index(number) if number in devices else None

    def _block_keys(self, device: Any, blank: bool = False) -> np.ndarray:
        """Returns ``[rows_per_device, 1]`` int64: the keys of the rows of a block."""
        block_keys = np.full((self.storage.rows_per_device, 1), NO_KEY, np.int64)
        shard = self._shard(device)
        if self._keys is not None and shard is not None and not blank:
            keys = self._keys()[shard :: len(self.storage.ranges[0].devices)]
            block_keys[: len(keys), 0] = keys[: len(block_keys)]
        return block_keys

    def _named(self, device: Any, numbers: np.ndarray) -> np.ndarray:
        """Returns those of the rows of a block that have a key, if they need one."""
        if self._keys is None:
            return numbers
        return numbers[self._block_keys(device)[numbers, 0] != NO_KEY]

    def _words(
        self, device: Any, numbers: np.ndarray, unseen: np.ndarray = NO_KEYS
    ) -> np.ndarray:
        """Returns ``[n, 2]`` uint32: the low and high bits of the keys of rows of a
        block; zeros where there is none."""
        keys_of_rows = np.zeros(len(numbers), np.int64)
        if self._keys is not None and (shard := self._shard(device)) is not None:
            keys = self._keys()
            whose = shard + len(self.storage.ranges[0].devices) * numbers.astype(int)
            for first, some in ((0, keys), (len(keys), unseen)):
                among = (first <= whose) & (whose < first + len(some))
                keys_of_rows[among] = some[whose[among] - first]
        keys_of_rows = keys_of_rows.view(np.uint64)
        low, high = keys_of_rows & np.uint64(0xFFFFFFFF), keys_of_rows >> np.uint64(32)
        return np.stack([low, high], axis=1).astype(np.uint32)


def check_memory(
    storages: Mapping[str, Storage],
    values: Mapping[str, dict[str, slice]],
    devices: int,
) -> None:
    """Raises ``StoreError`` if memory cannot hold all rows of tier host.

    Args:
      storages: cached storages.
      values: slices of the values in their rows.
      devices: number of this process's devices.
    """
    host_bytes = (
        sum(
            FLOAT32_BYTES
            * storage.rows_per_device
            * max(columns.stop for columns in values[name].values())
            for name, storage in storages.items()
            if STORES[storage.kind.tier].in_memory
        )
        * devices
    )
    if host_bytes > (free := free_memory_bytes()):
        raise StoreError(
            f"rows of tier host take {host_bytes / 1e9:,.1f} GB of memory in this "
            f"process, {free / 1e9:,.1f} GB are free; set tier to disk for some"
        )


def on_device(device: Any, array: jax.Array) -> jax.Array:
    """Returns a device's part of an array."""
    (data,) = (
        shard.data for shard in array.addressable_shards if shard.device == device
    )
    return data


def _moving(device: Any, demand: Demand, keys: jax.Array) -> np.ndarray:
    """Returns those of a device's keys in ``moves`` that mean something."""
    count = int(np.asarray(on_device(device, demand.moves.count))[0])
    return np.asarray(on_device(device, keys))[:count, 0]


@functools.partial(jax.jit, static_argnums=2)
def _rows(array: jax.Array, first: jax.Array, count: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, first, count)
