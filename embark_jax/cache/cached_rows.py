"""The rows of cached tables: slots, key indexes and row stores, kept in agreement.

The devices get, in this order: the route of a batch, which changes the indexes and says
which rows move; the swap that moves them; the step. Routes and swaps come in pairs and
in the order of batches, so that a row is where the indexes say, or else in the store.
One thread works on the store: it first writes the rows that a swap put out, then reads
those that the next swap takes in. It reads no stale row.

What a batch has changed is known until its step is known to be applied. If a step is
refused, its batch and those behind it are undone, from the last to the first: rows lie
where they lay before, and nobody has asked for any. The batches may come again.

The devices get the route of a batch before the step ahead of it, where the batch is
known by then: its rows are read while that step runs.

A batch that is scored is undone, too, as soon as it has its scores.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.cache.figures import CacheFigures
from embark_jax.cache.key_index import Moves
from embark_jax.cache.resolving import (
    Demand,
    grow_directories,
    grow_slots,
    init_indexes,
    resolve_routes,
    undo_moves,
)
from embark_jax.cache.slots_needed import TooFewSlotsError, check_slots
from embark_jax.cache.stored_rows import ROWS_AT_ONCE, StoredRows
from embark_jax.cache.swaps import Incoming, make_put, make_take
from embark_jax.cache.table_stores import TableStores, most_of_all
from embark_jax.embedding.arrays import Routes, TableState
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import DeviceBatch, route_batch
from embark_jax.embedding.rules import AnyRule

STARTED_AT_MOST = 8
"""Batches that may be undone at a time; more than steps are ever in flight."""


class PendingBatch(NamedTuple):
    """A batch whose route was made, and whose rows are being read.

    Attributes:
      batch: the batch as the devices have it.
      routes: routes to slots.
      demands: demand on each storage.
      rows: rows that come, by storage, once they are read; none if nothing moves. With
        them come the numbers of keys in the stores before this batch.
    """

    batch: DeviceBatch
    routes: Routes
    demands: dict[str, Demand]
    rows: Future[tuple[dict[str, Incoming], dict[str, list[int]]]]


class StartedBatch(NamedTuple):
    """A batch whose rows are in slots, and whose step is not known to be applied.

    Attributes:
      batch, demands: as in ``PendingBatch``.
      left: rows that left slots for it, by storage, as they come back.
      stored: numbers of keys in the stores before it.
      late: whether the devices waited for its rows.
    """

    batch: DeviceBatch
    demands: dict[str, Demand]
    left: dict[str, Incoming]
    stored: dict[str, list[int]]
    late: bool


def _moves(demands: Mapping[str, Demand]) -> dict[str, Moves]:
    return {name: demand.moves for name, demand in demands.items()}


class CachedRows:
    """The rows of cached tables, as described above.

    Args:
      collection: the embedding tables.
      optimizer: optimizer of their rows.
      key: JAX random key of the initial rows.
      scratch: folder for stores on disk; None takes the system's for temporary files.

    Raises:
      StoreError: if there is no room for a store.
    """

    def __init__(
        self,
        collection: EmbeddingCollection,
        optimizer: AnyRule,
        key: jax.Array,
        scratch: Path | None = None,
    ):
        self._optimizer = optimizer
        self._key = key
        self._worker = ThreadPoolExecutor(1, "row-store")
        self._pending: PendingBatch | None = None
        self._started: deque[StartedBatch] = deque(maxlen=STARTED_AT_MOST)
        self._written: Future | None = None
        self._stores = TableStores(collection, optimizer, key, scratch)
        self.use(collection)
        dynamic = {name: store.table for name, store in self._stores.dynamic.items()}
        self._figures = CacheFigures(dynamic)
        self._indexes = init_indexes(collection)

    def use(self, collection: EmbeddingCollection) -> None:
        """Changes to a plan of other capacities, or more slots."""
        self._collection, self._storages = collection, collection.cached
        self._stores.use(collection)
        self._take = make_take(collection, self._optimizer)
        self._put = make_put(collection, self._optimizer)

        def resolve(indexes, batch, to_score):
            routes = route_batch(collection, batch)
            return resolve_routes(collection, indexes, routes, to_score)

        self._resolve = jax.jit(resolve, static_argnums=2, donate_argnums=0)
        self._route_hot = jax.jit(route_batch, static_argnums=0)
        self._undo = jax.jit(
            functools.partial(undo_moves, collection), donate_argnums=0
        )

    def bring(
        self,
        tables: TableState,
        batch: DeviceBatch,
        following: DeviceBatch | None = None,
        to_score: bool = False,
    ) -> tuple[TableState, Routes]:
        """Brings the rows of a batch into slots.

        Args:
          tables: tables before the batch; consumed.
          batch: batch whose step comes next.
          following: batch after it, whose rows are read meanwhile, if it is known.
          to_score: whether the batch is scored only: ``undo_last`` comes next.

        Returns:
          The tables, and the routes of the batch to the slots.

        Raises:
          TooFewSlotsError: if the slots cannot hold the rows; nothing has changed.
        """
        pending = self._pending
        if pending is None or pending.batch is not batch:
            self.drop_pending()
            pending = self._pending = self._route(batch, to_score)
            self._start_reading(pending)
        rows, stored = pending.rows.result()  # or it stays pending
        demands = pending.demands
        try:
            check_slots(demands, self._storages)
        except TooFewSlotsError:
            self.drop_pending()
            raise
        self._pending = None
        if any(demand.on_host().homeless for demand in demands.values()):
            self._indexes = grow_directories(self._collection, self._indexes)
        # The devices waited for the rows if the tables, as the step before leaves them,
        # are ready.
        array: Any = next(iter(tables.storages.values()))
        late = array.is_ready()
        if following is not None:
            self._pending = self._route(following)
        tables, left = self._swap(tables, _moves(demands), rows)
        self._started.append(StartedBatch(batch, demands, left, stored, late))
        if rows and not to_score:
            self._written = self._worker.submit(self._stores.write, demands, left)
        if self._pending is not None:
            self._start_reading(self._pending)
        return tables, pending.routes

    def drop_pending(self) -> None:
        """Undoes the route of a batch whose rows are not in slots yet, if there is one;
        it is routed again when its step comes."""
        if self._pending is not None:
            self._undo_route(self._pending.demands)
            self._pending = None

    def landed(self, batch: DeviceBatch) -> None:
        """Says that the step of a batch was applied: it cannot be undone any more."""
        if self._started and self._started[0].batch is batch:
            started = self._started.popleft()
            if started.demands:
                self._figures.count(started.demands, started.late)

    def undo(self, tables: TableState) -> TableState:
        """Returns the tables as they were before all batches that have not landed."""
        self.drop_pending()
        self._wait_for_writes()
        while self._started:
            tables = self.undo_last(tables)
        return tables

    def undo_last(self, tables: TableState) -> TableState:
        """Returns the tables as they were before the last batch."""
        started = self._started.pop()
        tables, _ = self._swap(tables, _moves(started.demands), started.left)
        self._undo_route(started.demands)
        self._stores.truncate(started.stored)
        return tables

    def _undo_route(self, demands: Mapping[str, Demand]) -> None:
        """Takes back what the last batch that was routed changed in the indexes."""
        if not demands:
            return
        self._indexes, homeless = self._undo(self._indexes, demands)
        if np.asarray(homeless).any():
            self._indexes = grow_directories(self._collection, self._indexes)

    def grow(self, tables: TableState, collection: EmbeddingCollection) -> TableState:
        """Returns the tables with more slots for a plan with more of them; ``use`` must
        take that plan next."""
        self.drop_pending()
        self._indexes, storages, states = grow_slots(
            collection, self._indexes, tables.storages, tables.optimizer
        )
        return TableState(storages, states)

    def stored(self, tables: TableState) -> TableState:
        """Returns the tables with all rows of cached ones as they lie in the stores,
        which are brought up to date. The result is good until the next batch."""
        self.drop_pending()
        self._wait_for_writes()
        return self._stores.filled(self._collection, tables, self._indexes)

    def unfilled(self, tables: TableState) -> TableState:
        """Returns tables like ``stored``, but with any values and no keys: a checkpoint
        is restored into them."""
        self.drop_pending()
        self._wait_for_writes()
        return self._stores.unfilled(tables)

    def figures(self) -> dict[str, float]:
        """Returns what ``CacheFigures.take`` does."""
        return self._figures.take()

    def restored_slots(self) -> dict[str, int]:
        """Returns how many slots, on all devices together, each table that discards
        rows needs for those in the checkpoint that was read into ``unfilled``; all
        processes must call it."""
        stores = self._stores.discarding.values()
        counts = most_of_all([store.count for store in stores]) if stores else []
        return {
            store.table: count * store.storage.ranges[0].row_shards
            for store, count in zip(stores, counts, strict=True)
        }

    def restore(self, tables: TableState, slots: TableState) -> TableState:
        """Takes over the values that were written into the arrays of ``unfilled``.

        Args:
          tables: tables with those arrays.
          slots: tables that give the slots, whatever is in them.
        """
        self._pending = None
        self._started.clear()
        self._indexes = init_indexes(self._collection)
        tables = self._stores.restored(slots, tables)
        discarding = self._stores.discarding
        return self._fill_slots(tables, discarding) if discarding else tables

    def _fill_slots(
        self, tables: TableState, discarding: Mapping[str, StoredRows]
    ) -> TableState:
        """Gives slots to the rows of tables that discard rows."""
        keys: dict[str, dict[Any, np.ndarray]] = {}
        for name, store in discarding.items():
            keys[name], fields = store.keys_in_slots()
            self._indexes[name] = self._indexes[name]._replace(**fields)
        self._indexes = grow_directories(self._collection, self._indexes, 1)
        slots = max(self._storages[name].slots_per_device for name in discarding)
        for first in range(0, slots, ROWS_AT_ONCE):
            moves, rows = {}, {}
            for name in self._storages:
                moves[name], rows[name] = self._stores[name].moves_to_slots(
                    keys.get(name, {}), first
                )
            tables, _ = self._swap(tables, moves, rows)
        return tables

    def _route(self, batch: DeviceBatch, to_score: bool = False) -> PendingBatch:
        """Starts the route of a batch, and waits for nothing."""
        if batch.hot:  # needs no row in a slot
            hot = self._collection.for_batch(hot=True)
            return PendingBatch(batch, self._route_hot(hot, batch), {}, Future())
        self._indexes, routes, demands = self._resolve(self._indexes, batch, to_score)
        return PendingBatch(batch, routes, demands, Future())

    def _start_reading(self, pending: PendingBatch) -> None:
        """Starts reading the rows that a batch needs, once other rows are written."""
        written = self._written

        def read():
            try:
                if written is not None:
                    written.result()  # or raises why not
                demands = pending.demands
                moves = any(demand.on_host().coming for demand in demands.values())
                rows = self._stores.read(demands) if moves else {}
                pending.rows.set_result((rows, self._stores.counts()))
            except BaseException as error:
                pending.rows.set_exception(error)

        self._worker.submit(read)

    def _swap(
        self,
        tables: TableState,
        moves: Mapping[str, Moves],
        rows: Mapping[str, Incoming],
    ) -> tuple[TableState, dict[str, Incoming]]:
        """Puts rows, if any, into slots. Returns those that leave, too, as they come
        back if the same moves are made with them."""
        if not rows:
            return tables, {}
        outgoing = self._take(*tables, moves, rows)
        storages, states = self._put(*tables, self._key, moves, rows)
        left = {
            name: Incoming(outgoing[name], jnp.zeros_like(incoming.fresh))
            for name, incoming in rows.items()
        }
        return TableState(storages, states), left

    def _wait_for_writes(self) -> None:
        if self._written is not None:
            self._written.result()
