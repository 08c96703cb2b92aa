"""The rows of cached tables: slots, key indexes and row stores, kept in agreement.

The devices get, in this order: the route of a batch, which changes the indexes and says
which rows move; the swap that moves them; the step. Routes and swaps come in pairs and
in the order of batches, so that whatever becomes of a step, a row is where the indexes
say, or else in the store. One thread works on the store: it first writes the rows that
a swap put out, then reads those that the next swap takes in. It reads no stale row.

With look-ahead, the devices get the route of a batch before the step ahead of it: its
rows are read while that step runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.cache.figures import CacheFigures
from embark_jax.cache.kept_slots import Kept
from embark_jax.cache.key_index import Moves
from embark_jax.cache.programs import (
    Demand,
    Incoming,
    grow_directories,
    grow_slots,
    init_indexes,
    make_put,
    make_take,
    resolve_routes,
    row_values,
)
from embark_jax.cache.slots_needed import check_slots
from embark_jax.cache.stored_rows import (
    KEY,
    NO_KEYS,
    ROWS_AT_ONCE,
    StoredRows,
    check_memory,
)
from embark_jax.embedding.collection import EmbeddingCollection, Routes
from embark_jax.embedding.rules import AnyRule
from embark_jax.train.device_batch import DeviceBatch
from embark_jax.train.gradients import route
from embark_jax.train.numbering import Numbering
from embark_jax.train.state import TrainState

Keys = Mapping[str, np.ndarray]
"""Keys of dynamic tables."""
NONE_UNSEEN: Keys = MappingProxyType({})


class _Asked(NamedTuple):
    """A batch whose route was made, and whose rows have not come yet.

    Attributes:
      batch: the batch as the devices have it.
      routes: routes to slots.
      demands: demand on each storage.
      rows: rows that come, by storage, once they are read.
    """

    batch: DeviceBatch
    routes: Routes
    demands: dict[str, Demand]
    rows: Future[dict[str, Incoming]]

    @property
    def moves(self) -> dict[str, Moves]:
        return {name: each.moves for name, each in self.demands.items()}


class CachedRows:
    """The rows of cached tables, as described above.

    Args:
      collection: the embedding tables.
      optimizer: optimizer of their rows.
      key: JAX random key of the initial rows.
      numbering: numbers of the keys of dynamic tables.
      scratch: folder for stores on disk; None takes the system's for temporary files.

    Raises:
      StoreError: if there is no room for a store.
    """

    def __init__(
        self,
        collection: EmbeddingCollection,
        optimizer: AnyRule,
        key: jax.Array,
        numbering: Numbering,
        scratch: Path | None = None,
    ):
        self._optimizer, self._key, self._numbering = optimizer, key, numbering
        cached = collection.cached
        self._worker = ThreadPoolExecutor(1, "row-store")
        self._ahead: _Asked | None = None
        self._settled: _Asked | None = None
        self._stale = False  # whether routes of ``_settled`` are for an earlier plan
        self._written: Future | None = None
        self._values = {
            name: row_values(optimizer, each) for name, each in cached.items()
        }
        self._stores: dict[str, StoredRows] = {}
        self.use(collection)
        check_memory(cached, self._values, len(collection.mesh.local_devices))
        for name, each in cached.items():
            keys = (
                functools.partial(numbering.keys, table)
                if (table := each.kind.table)
                else None
            )
            self._stores[name] = StoredRows(
                each, collection.mesh, self._values[name], scratch, keys
            )
        self._figures = CacheFigures()
        self._indexes = init_indexes(collection)

    def grow(self, state: TrainState, collection: EmbeddingCollection) -> TrainState:
        """Returns the state, which ``settle`` gave, with more slots for a plan with
        more room for dynamic tables; ``use`` must take that plan next.

        Raises:
          StoreError: if there is no more room; nothing has changed.
        """
        self._wait_for_writes()
        self._stores |= {
            name: self._stores[name].grown(storage)
            for name, storage in collection.cached.items()
            if storage.rows_per_device > self._storages[name].rows_per_device
        }
        self._indexes, storages, states = grow_slots(
            collection, self._indexes, state.storages, state.embedding_state
        )
        return state._replace(storages=storages, embedding_state=states)

    def use(self, collection: EmbeddingCollection) -> None:
        """Changes to a plan of other capacities."""
        self._collection, self._storages = collection, collection.cached
        self._stale = True
        self._take = make_take(collection, self._optimizer)
        self._put = make_put(collection, self._optimizer)

        def find_routes(indexes, batch, micro_batches=1):
            routes = route(collection, batch.columns(), micro_batches)
            return resolve_routes(collection, indexes, routes, micro_batches)

        self._find_routes = jax.jit(find_routes, donate_argnums=0, static_argnums=2)
        self._try_routes = jax.jit(
            lambda *given: find_routes(*given)[1:], static_argnums=2
        )

    def bring(
        self,
        state: TrainState,
        batch: DeviceBatch,
        following: DeviceBatch | None,
        micro_batches: int = 1,
    ) -> tuple[TrainState, Routes]:
        """Brings the rows of a batch into slots, and returns its routes to them.

        Args:
          state: state before the batch; consumed.
          batch: batch whose step comes next.
          following: batch after it, if its rows should be read meanwhile.
          micro_batches: number of micro-batches of both.

        Raises:
          TooFewSlotsError: if the slots cannot hold the rows; the state is as it was.
        """
        if self._ahead is not None and self._ahead.batch is not batch:
            state = self.settle(state)
        if self._settled is not None and self._settled.batch is batch:
            check_slots(self._settled.demands, self._storages)
            settled, self._settled = self._settled, None
            self._count(settled, state)
            routes = settled.routes
            if self._stale:  # its rows are there, and were counted
                routes, _ = self._try_routes(self._indexes, batch, micro_batches)
            if following is not None:
                self._ahead = self._ask(following, micro_batches)
                self._read(self._ahead)
            return state, routes
        self._settled = None  # others' rows may take its slots
        if self._ahead is None:
            self._ahead = self._ask(batch, micro_batches)
            self._read(self._ahead)
        self._ahead.rows.result()  # or it stays ahead, for ``settle``
        check_slots(self._ahead.demands, self._storages)
        asked, self._ahead = self._ahead, None
        self._count(asked, state)
        return self._come(state, asked, following, micro_batches), asked.routes

    def settle(self, state: TrainState) -> TrainState:
        """Brings the rows of a batch that was announced and has not come yet."""
        if self._ahead is None:
            return state
        asked, self._ahead = self._ahead, None
        state = self._come(state, asked, None, 1)
        self._settled, self._stale = asked, False
        return state

    def lend(
        self, state: TrainState, batch: DeviceBatch, unseen: Keys
    ) -> tuple[TrainState, Routes, Callable[[TrainState], TrainState]]:
        """Lends slots to the rows of a batch that is scored: indexes and stores do not
        change.

        Args:
          state: state before the batch; consumed.
          batch: batch to score.
          unseen: keys that have a number in this batch alone, by dynamic table.

        Returns:
          The state to score with, the routes to its slots, and a function from this
          state to one where all slots have their rows again.

        Raises:
          TooFewSlotsError: if the slots cannot hold the rows; the state is as it was.
        """
        state = self.settle(state)
        routes, demands = self._try_routes(self._indexes, batch, 1)
        asked = _Asked(batch, routes, demands, Future())
        self._read(asked, unseen)
        rows = asked.rows.result()
        check_slots(asked.demands, self._storages)
        state, away = self._move(state, asked.moves, rows)

        def give_back(state: TrainState) -> TrainState:
            back = {
                name: each._replace(rows=away[name], fresh=jnp.zeros_like(each.fresh))
                for name, each in rows.items()
            }
            return self._move(state, asked.moves, back)[0]

        return state, routes, give_back

    def stored(self, state: TrainState) -> TrainState:
        """Returns the state with all rows of cached tables as they lie in the stores,
        which are brought up to date. It takes a state that ``settle`` gave; the result
        is good until the next batch."""
        self._wait_for_writes()
        for name, store in self._stores.items():
            arrays = {"": state.storages[name], **state.embedding_state[name]}
            in_order = [arrays[value] for value in self._values[name]]
            store.take_slots(self._indexes[name].slot_keys, in_order)
            store.fill(self._collection, self._optimizer, self._key)
        return self._as_stored(state, blank=False)

    def unfilled(self, state: TrainState) -> TrainState:
        """Returns a state like ``stored``, but with any values and no keys: a
        checkpoint is restored into it."""
        self._wait_for_writes()
        return self._as_stored(state, blank=True)

    def figures(self) -> dict[str, float]:
        """Returns what ``CacheFigures.take`` does, and the number of keys of each
        dynamic table."""
        return self._figures.take() | self._numbering.figures()

    def restore(self, state: TrainState, into: TrainState) -> TrainState:
        """Takes over the values that were written into the arrays of ``stored``.

        Args:
          state: state with those arrays.
          into: state that gives the slots, whatever is in them.
        """
        self._ahead = self._settled = None
        self._indexes = init_indexes(self._collection)
        kept = {}
        for name, store in self._stores.items():
            if table := self._storages[name].kind.table:
                arrays: Any = state.embedding_state[name]
                self._numbering.restore(table, store.keys_in(arrays[KEY]))
                kept[name] = store.kept_in(arrays)
            store.overwritten()
        slots = into.storages, into.embedding_state
        state = self._with_arrays(
            state, lambda name, value: (slots[1][name] | {"": slots[0][name]})[value]
        )
        return self._with_kept(state, kept) if kept else state

    def _with_kept(
        self, state: TrainState, kept: Mapping[str, Mapping[Any, Kept]]
    ) -> TrainState:
        """Gives rows of dynamic tables the slots that they had."""
        for name, each in kept.items():
            fields = self._stores[name].kept_index(each)
            self._indexes[name] = self._indexes[name]._replace(**fields)
        self._indexes = grow_directories(self._collection, self._indexes, 1)
        slots = max(self._storages[name].slots_per_device for name in kept)
        for first in range(0, slots, ROWS_AT_ONCE):
            moves, rows = {}, {}
            for name, store in self._stores.items():
                found = store.kept_rows(kept.get(name, {}), first)
                moves[name], rows[name] = found
            state, _ = self._move(state, moves, rows)
        return state

    def _as_stored(self, state: TrainState, blank: bool) -> TrainState:
        state = self._with_arrays(state, lambda n, value: self._stores[n].array(value))
        states = dict(state.embedding_state)
        for name, storage in self._storages.items():
            if storage.kind.table:
                index = None if blank else self._indexes[name]
                keys = self._stores[name].key_arrays(index)
                states[name] = {**states[name], **keys}  # pyright: ignore
        return state._replace(embedding_state=states)

    def _with_arrays(
        self, state: TrainState, array: Callable[[str, str], Any]
    ) -> TrainState:
        """Returns the state with ``array(storage, value)`` for cached tables."""
        storages, states = dict(state.storages), dict(state.embedding_state)
        for name, values in self._values.items():
            storages[name] = array(name, "")
            states[name] = {value: array(name, value) for value in values if value}
        return state._replace(storages=storages, embedding_state=states)

    def _ask(self, batch: DeviceBatch, micro_batches: int) -> _Asked:
        """Starts the route of a batch, and waits for nothing."""
        self._indexes, routes, demands = self._find_routes(
            self._indexes, batch, micro_batches
        )
        return _Asked(batch, routes, demands, Future())

    def _read(self, asked: _Asked, unseen: Keys = NONE_UNSEEN) -> None:
        """Starts reading the rows that a batch needs, once other rows are written."""
        written, storages = self._written, self._storages

        def incoming(name: str, demand: Demand) -> Incoming:
            keys = unseen.get(storages[name].kind.table, NO_KEYS)
            return self._stores[name].incoming(demand, keys)

        def read():
            try:
                if written is not None:
                    written.result()  # or raises why not
                demands = asked.demands.items()
                asked.rows.set_result({n: incoming(n, each) for n, each in demands})
            except BaseException as error:
                asked.rows.set_exception(error)

        self._worker.submit(read)

    def _come(
        self,
        state: TrainState,
        asked: _Asked,
        following: DeviceBatch | None,
        micro_batches: int,
    ) -> TrainState:
        rows = asked.rows.result()
        if any(np.asarray(each.most)[2] for each in asked.demands.values()):
            self._indexes = grow_directories(self._collection, self._indexes)
        if following is not None:
            self._ahead = self._ask(following, micro_batches)
        state, outgoing = self._move(state, asked.moves, rows)
        self._written = self._worker.submit(self._write, asked.demands, outgoing)
        if self._ahead is not None:
            self._read(self._ahead)
        return state

    def _move(
        self, state: TrainState, moves: dict[str, Moves], rows: dict[str, Incoming]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Puts rows into slots; returns those that leave."""
        arrays = state.storages, state.embedding_state
        outgoing = self._take(*arrays, moves, rows)
        storages, states = self._put(*arrays, self._key, moves, rows)
        state = state._replace(storages=storages, embedding_state=states)
        return state, outgoing

    def _write(
        self, demands: dict[str, Demand], outgoing: dict[str, jax.Array]
    ) -> None:
        for name, rows in outgoing.items():
            self._stores[name].take_back(demands[name], rows)

    def _count(self, asked: _Asked, state: TrainState) -> None:
        """Counts a batch once its rows are there; ``state`` is that before its step."""
        step: Any = state.step
        self._figures.count(asked.demands, late=step.is_ready())

    def _wait_for_writes(self) -> None:
        if self._written is not None:
            self._written.result()
