"""The rows of cached tables: slots, key indexes and row stores, kept in agreement.

The devices are given, in this order: the route of a batch, which changes the indexes
and says which rows move; the swap that moves them; the step. Routes and swaps come in
pairs and in the order of batches, so that whatever becomes of a step, a row is where
the indexes say, or else in the store. One thread works on the store, first writing what
a swap put out, then reading what the next one takes in: it never reads a stale row.

With look-ahead, the route of a batch is given to the devices before the step ahead of
it: its rows are read while that step runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from embark_kernels import RowOptimizer
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.cached import (
    Demand,
    grow_directories,
    init_indexes,
    make_swap,
    resolve_routes,
    row_values,
)
from embark_jax.embedding.collection import BATCH, EmbeddingCollection, Routes
from embark_jax.embedding.initial import initial_rows
from embark_jax.embedding.key_index import EMPTY
from embark_jax.stores import RowStore, StoreError
from embark_jax.train.checkpoint.stored import StoredArray
from embark_jax.train.checkpoint.writing import free_memory_bytes
from embark_jax.train.device_batch import DeviceBatch
from embark_jax.train.gradients import route
from embark_jax.train.step import TrainState

LEAST_ROWS = 64
"""That a swap has room for; above, it is a power of two, so that few are compiled."""
ROWS_AT_ONCE = 8192
"""Of each device, where all of a storage's rows go through host memory."""


class TooFewSlotsError(StoreError):
    """A batch asks for more rows of a cached table than it has slots."""


class _Asked(NamedTuple):
    """A batch whose route was made, and whose rows have not come yet.

    Attributes:
      batch: as the devices have it.
      routes: to slots.
      demands: by storage.
      rows: by storage those that come, ``[devices * n, values]``, once they are read.
    """

    batch: DeviceBatch
    routes: Routes
    demands: dict[str, Demand]
    rows: Future[dict[str, jax.Array]]


class CachedRows:
    """See above.

    Args:
      collection: the embedding tables.
      optimizer: of their rows.
      key: a JAX random key, of the initial rows.
      scratch: folder for stores on disk; None takes the system's for temporary files.

    Raises:
      StoreError: if there is no room for a store.
    """

    def __init__(
        self,
        collection: EmbeddingCollection,
        optimizer: RowOptimizer,
        key: jax.Array,
        scratch: Path | None = None,
    ):
        self._optimizer = optimizer
        self._mesh = collection.mesh
        self._storages = collection.cached
        self._worker = ThreadPoolExecutor(1, "row-store")
        self._ahead: _Asked | None = None
        self._written: Future | None = None
        self._values = {
            name: row_values(optimizer, each.width)
            for name, each in self._storages.items()
        }
        self._stores: dict[str, dict[Any, RowStore]] = {
            name: {
                device: RowStore(
                    each.rows_per_device, self._width(name), each.kind.tier, scratch
                )
                for device in self._mesh.local_devices
            }
            for name, each in self._storages.items()
        }
        self._asked = dict.fromkeys(self._storages, 0)
        self._missed = dict.fromkeys(self._storages, 0)
        self._late: list[bool] = []
        self.use(collection)
        self._fill(key)
        self._indexes = init_indexes(collection)

    def use(self, collection: EmbeddingCollection) -> None:
        """Goes on with a plan of other capacities."""
        self._collection = collection
        self._swap = make_swap(collection, self._optimizer)

        @functools.partial(jax.jit, donate_argnums=0, static_argnums=2)
        def find_routes(indexes, batch, micro_batches):
            routes = route(collection, batch.columns(), micro_batches)
            return resolve_routes(collection, indexes, routes, micro_batches)

        self._find_routes = find_routes

    def bring(
        self,
        state: TrainState,
        batch: DeviceBatch,
        following: DeviceBatch | None,
        micro_batches: int = 1,
        training: bool = True,
    ) -> tuple[TrainState, Routes]:
        """Brings the rows of a batch into slots, and says which.

        Args:
          state: before the batch; consumed.
          batch: whose step comes next.
          following: the one after it, if its rows are to be read meanwhile.
          micro_batches: that both are cut into.
          training: whether ``figures`` are to count it.

        Raises:
          TooFewSlotsError: if the slots cannot hold the rows; the state is as it was.
        """
        if self._ahead is None or self._ahead.batch is not batch:
            state = self.settle(state)
            self._ahead = self._ask(batch, micro_batches)
            self._read(self._ahead)
        self._ahead.rows.result()  # or it stays ahead, for ``settle``
        self._check(self._ahead)
        asked, self._ahead = self._ahead, None
        if training:
            self._count(asked, state)
        return self._come(state, asked, following, micro_batches)

    def settle(self, state: TrainState) -> TrainState:
        """Brings the rows of a batch that was announced and never came."""
        if self._ahead is None:
            return state
        asked, self._ahead = self._ahead, None
        return self._come(state, asked, None, 1)[0]

    def stored(self, state: TrainState) -> TrainState:
        """The state with all rows of cached tables as they lie in the stores, which are
        brought up to date; of a state that ``settle`` gave. It is good until the next
        batch."""
        self._wait_for_writes()
        for name, stores in self._stores.items():
            index, arrays = self._indexes[name], self._arrays(state, name)
            for device, store in stores.items():
                all_keys = np.asarray(_on(device, index.slot_keys))[:, 0]
                parts = [_on(device, each) for each in arrays]
                count = min(ROWS_AT_ONCE, len(all_keys))
                for begin in range(0, len(all_keys), count):
                    first = min(begin, len(all_keys) - count)
                    keys = all_keys[first : first + count]
                    rows = [_rows(each, np.int32(first), count) for each in parts]
                    rows = np.concatenate(rows, axis=1)
                    held = np.flatnonzero(keys != EMPTY)
                    store.write(keys[held], rows[held])
        return self._with_arrays(state, self._stored_array)

    def figures(self) -> dict[str, float]:
        """Of training since the last call: by storage the share of the rows asked for
        that had a slot already; and the share of steps whose rows were late: devices
        were done with the step before, and waited."""
        found = {
            f"cache_hits/{name}": 1 - self._missed[name] / asked
            for name, asked in self._asked.items()
            if asked
        }
        if self._late:
            found["cache_late"] = sum(self._late) / len(self._late)
        self._asked = dict.fromkeys(self._storages, 0)
        self._missed = dict.fromkeys(self._storages, 0)
        self._late = []
        return found

    def restore(self, state: TrainState, into: TrainState) -> TrainState:
        """Takes over what was written into the arrays of ``stored``.

        Args:
          state: with those arrays.
          into: gives slots, whatever is in them.
        """
        self._ahead = None
        self._indexes = init_indexes(self._collection)
        slots = into.storages, into.embedding_state
        return self._with_arrays(
            state, lambda name, value: (slots[1][name] | {"": slots[0][name]})[value]
        )

    def _with_arrays(
        self, state: TrainState, array: Callable[[str, str], Any]
    ) -> TrainState:
        """The state with ``array(storage, value)`` for cached tables."""
        storages, states = dict(state.storages), dict(state.embedding_state)
        for name, values in self._values.items():
            storages[name] = array(name, "")
            states[name] = {value: array(name, value) for value in values if value}
        return state._replace(storages=storages, embedding_state=states)

    def _stored_array(self, name: str, value: str) -> StoredArray:
        stores, part = self._stores[name], self._values[name][value]
        rows = self._storages[name].rows_per_device * self._mesh.size
        return StoredArray(
            (rows, part.stop - part.start),
            NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names, None)),
            {device: store.data[:, part] for device, store in stores.items()},
        )

    def _width(self, name: str) -> int:
        return max(part.stop for part in self._values[name].values())

    def _arrays(self, state: TrainState, name: str) -> list[jax.Array]:
        """Those of a storage, in the order of a row's values."""
        arrays = {"": state.storages[name], **state.embedding_state[name]}
        return [arrays[value] for value in self._values[name]]

    def _fill(self, key: jax.Array) -> None:
        """Puts the initial rows into the stores."""
        host_bytes = sum(
            store.data.nbytes
            for name, stores in self._stores.items()
            for store in stores.values()
            if self._storages[name].kind.tier == "host"
        )
        if host_bytes > (free := free_memory_bytes()):
            raise StoreError(
                f"rows of tier host take {host_bytes / 1e9:,.1f} GB of memory in this "
                f"process, {free / 1e9:,.1f} GB are free; set tier to disk for some"
            )
        for name, storage in self._storages.items():
            count = min(ROWS_AT_ONCE, storage.rows_per_device)
            hot_keys = self._collection.hot_keys

            def create(key, first, storage=storage, count=count, hot_keys=hot_keys):
                return initial_rows(storage, key, hot_keys, count)(first)

            specs = PartitionSpec(), PartitionSpec()
            rows_from = jax.jit(self._collection.map(create, specs, BATCH))
            width = storage.width
            for begin in range(0, storage.rows_per_device, count):
                first = min(begin, storage.rows_per_device - count)
                rows = rows_from(key, np.int32(first))
                for device, store in self._stores[name].items():
                    part = store.data[first : first + count]
                    part[:, :width] = np.asarray(_on(device, rows))
                    part[:, width:] = self._optimizer.initial_state

    def _ask(self, batch: DeviceBatch, micro_batches: int) -> _Asked:
        """Has the route of a batch made, and waits for nothing."""
        self._indexes, routes, demands = self._find_routes(
            self._indexes, batch, micro_batches
        )
        return _Asked(batch, routes, demands, Future())

    def _read(self, asked: _Asked) -> None:
        """Has the rows read that a batch is to get, once others are written."""
        written = self._written

        def read():
            try:
                if written is not None:
                    written.result()  # or raises why not
                asked.rows.set_result(self._rows_of(asked.demands))
            except BaseException as error:
                asked.rows.set_exception(error)

        self._worker.submit(read)

    def _rows_of(self, demands: dict[str, Demand]) -> dict[str, jax.Array]:
        found = {}
        for name, demand in demands.items():
            most, *_ = np.asarray(demand.most).tolist()
            room = demand.moves.slot.shape[0] // self._mesh.size
            size = min(room, max(LEAST_ROWS, 1 << (most - 1).bit_length()))
            parts = []
            for device, store in self._stores[name].items():
                keys = _moving(device, demand, demand.moves.incoming)
                rows = np.zeros((size, self._width(name)), np.float32)
                rows[: len(keys)] = store.read(keys)
                parts.append(jax.device_put(rows, device))
            found[name] = jax.make_array_from_single_device_arrays(
                (size * self._mesh.size, self._width(name)),
                NamedSharding(self._mesh, BATCH),
                parts,
            )
        return found

    def _check(self, asked: _Asked) -> None:
        """Raises ``TooFewSlotsError``. Rows that do fit come with the next batch."""
        for name, demand in asked.demands.items():
            storage = self._storages[name]
            _, needed, _ = np.asarray(demand.most).tolist()
            if needed > storage.slots_per_device:
                tables = ", ".join(each.table.name for each in storage.ranges)
                raise TooFewSlotsError(
                    f"a batch asks for {needed:,} rows of one device's share of the "
                    f"cached tables {tables}, which have {storage.slots_per_device:,} "
                    "slots there; raise their slots, or lower the batch size"
                )

    def _come(
        self,
        state: TrainState,
        asked: _Asked,
        following: DeviceBatch | None,
        micro_batches: int,
    ) -> tuple[TrainState, Routes]:
        rows = asked.rows.result()
        if any(np.asarray(each.most)[2] for each in asked.demands.values()):
            self._indexes = grow_directories(self._collection, self._indexes)
        if following is not None:
            self._ahead = self._ask(following, micro_batches)
        slots = {name: each.moves.slot for name, each in asked.demands.items()}
        storages, states, outgoing = self._swap(
            state.storages, state.embedding_state, slots, rows
        )
        self._written = self._worker.submit(self._write, asked.demands, outgoing)
        if self._ahead is not None:
            self._read(self._ahead)
        state = state._replace(storages=storages, embedding_state=states)
        return state, asked.routes

    def _write(
        self, demands: dict[str, Demand], outgoing: dict[str, jax.Array]
    ) -> None:
        for name, rows in outgoing.items():
            for device, store in self._stores[name].items():
                keys = _moving(device, demands[name], demands[name].moves.outgoing)
                left = np.flatnonzero(keys != EMPTY)
                store.write(keys[left], np.asarray(_on(device, rows))[left])

    def _count(self, asked: _Asked, state: TrainState) -> None:
        """Once the rows are there; of the state before their step."""
        step: Any = state.step
        self._late.append(step.is_ready())
        for name, demand in asked.demands.items():
            rows, missing = np.asarray(demand.rows).tolist()
            self._asked[name] += rows
            self._missed[name] += missing

    def _wait_for_writes(self) -> None:
        if self._written is not None:
            self._written.result()


def _on(device: Any, array: jax.Array) -> jax.Array:
    """What a device has of an array."""
    (data,) = (each.data for each in array.addressable_shards if each.device == device)
    return data


def _moving(device: Any, demand: Demand, keys: jax.Array) -> np.ndarray:
    """Those of a device's keys in ``moves`` that mean something."""
    count = int(np.asarray(_on(device, demand.moves.count))[0])
    return np.asarray(_on(device, keys))[:count, 0]


@functools.partial(jax.jit, static_argnums=2)
def _rows(array: jax.Array, first: jax.Array, count: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, first, count)
