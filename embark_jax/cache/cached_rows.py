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

from collections.abc import Callable, Mapping
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
)
from embark_jax.cache.slots_needed import check_slots
from embark_jax.cache.stored_rows import ROWS_AT_ONCE, StoredRows
from embark_jax.cache.swaps import Incoming, make_put, make_take
from embark_jax.cache.table_stores import TableStores, most_of_all
from embark_jax.embedding.arrays import Routes, TableState
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import DeviceBatch, route_batch
from embark_jax.embedding.rules import AnyRule


class PendingBatch(NamedTuple):
    """A batch whose route was made, and whose rows are being read.

    Attributes:
      batch: the batch as the devices have it.
      routes: routes to slots.
      demands: demand on each storage.
      rows: rows that come, by storage, once they are read; none if nothing moves.
      new: whether it counts, unless it is refused: it was not here last, too.
    """

    batch: DeviceBatch
    routes: Routes
    demands: dict[str, Demand]
    rows: Future[dict[str, Incoming]]
    new: bool = False

    @property
    def moves(self) -> dict[str, Moves]:
        return {name: demand.moves for name, demand in self.demands.items()}


class CachedRows:
    """The rows of cached tables, as described above; a ``Router``.

    Args:
      collection: the embedding tables.
      optimizer: optimizer of their rows.
      key: JAX random key of the initial rows.
      micro_batches: number of micro-batches of a batch of training.
      look_ahead: whether rows of the batch after are read during a step.
      scratch: folder for stores on disk; None takes the system's for temporary files.

    Attributes:
      halted: whether a batch was refused; until this is set back, batches change no
        index, and those that come again are counted once.

    Raises:
      StoreError: if there is no room for a store.
    """

    def __init__(
        self,
        collection: EmbeddingCollection,
        optimizer: AnyRule,
        key: jax.Array,
        micro_batches: int = 1,
        look_ahead: bool = False,
        scratch: Path | None = None,
    ):
        self._optimizer = optimizer
        self._key = key
        self._micro_batches, self._look_ahead = micro_batches, look_ahead
        self._worker = ThreadPoolExecutor(1, "row-store")
        self._pending: PendingBatch | None = None
        self._written: Future | None = None
        self._routed: DeviceBatch | None = None  # what the indexes have counted last
        self.halted = False
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

        def resolve(indexes, batch, again, halted):
            routes = route_batch(collection, batch, self._micro_batches)
            return resolve_routes(
                collection, indexes, routes, self._micro_batches, again, halted
            )

        def lend(indexes, batch):
            routes = route_batch(collection, batch)
            return resolve_routes(collection, indexes, routes, lend=True)[1:]

        self._resolve = jax.jit(resolve, donate_argnums=0)
        self._try_to_resolve = jax.jit(lend)

    def prepare(
        self, tables: TableState, batch: DeviceBatch, following: DeviceBatch | None
    ) -> tuple[TableState, Routes | None, DeviceBatch | None]:
        """Brings the rows of a batch into slots; see ``Router``.

        Raises:
          TooFewSlotsError: if the slots cannot hold the rows; it has the tables. Once
            they have grown, the same batch may be prepared again.
        """
        if not self._look_ahead:
            following = None
            if batch.hot:  # needs no row in a slot
                return tables, None, None
        if self._pending is not None and self._pending.batch is not batch:
            tables = self.bring_pending(tables)
        if self._pending is None:
            self._pending = self._route(batch)
            self._start_reading(self._pending)
        self._pending.rows.result()  # or it stays pending
        check_slots(self._pending.demands, self._storages, tables)
        pending, self._pending = self._pending, None
        return self._bring(tables, pending, following), pending.routes, None

    def keep(self, following: DeviceBatch | None, routes: Routes | None) -> None:
        """Keeps nothing: routes of cached tables are made outside of steps."""

    def bring_pending(self, tables: TableState) -> TableState:
        """Brings the rows of the pending batch, if there is one; it is routed again
        when its step comes."""
        if self._pending is None:
            return tables
        pending, self._pending = self._pending, None
        return self._bring(tables, pending, None)

    def lend(
        self, tables: TableState, batch: DeviceBatch
    ) -> tuple[TableState, Routes | None, Callable[[TableState], TableState]]:
        """Lends slots to the rows of a batch that is scored: indexes and stores do not
        change; see ``Router``.

        Raises:
          TooFewSlotsError: if the slots cannot hold the rows; it has the tables.
        """
        tables = self.bring_pending(tables)
        routes, demands = self._try_to_resolve(self._indexes, batch)
        borrower = PendingBatch(batch, routes, demands, Future())
        self._start_reading(borrower)
        rows = borrower.rows.result()
        check_slots(demands, self._storages, tables)
        tables, outgoing = self._swap(tables, borrower.moves, rows)
        back = {
            name: incoming._replace(
                rows=outgoing[name], fresh=jnp.zeros_like(incoming.fresh)
            )
            for name, incoming in rows.items()
        }
        return tables, routes, lambda t: self._swap(t, borrower.moves, back)[0]

    def grow(self, tables: TableState, collection: EmbeddingCollection) -> TableState:
        """Returns the tables, which ``bring_pending`` gave, with more slots for a plan
        with more of them; ``use`` must take that plan next."""
        self._indexes, storages, states = grow_slots(
            collection, self._indexes, tables.storages, tables.optimizer
        )
        return TableState(storages, states)

    def stored(self, tables: TableState) -> TableState:
        """Returns the tables with all rows of cached ones as they lie in the stores,
        which are brought up to date. It takes tables that ``bring_pending`` gave; the
        result is good until the next batch."""
        self._wait_for_writes()
        return self._stores.filled(self._collection, tables, self._indexes)

    def unfilled(self, tables: TableState) -> TableState:
        """Returns tables like ``stored``, but with any values and no keys: a checkpoint
        is restored into them."""
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
        self._pending = self._routed = None
        self.halted = False
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

    def _route(self, batch: DeviceBatch) -> PendingBatch:
        """Starts the route of a batch, and waits for nothing."""
        new = not self.halted and batch is not self._routed
        self._routed = None if self.halted else batch
        self._indexes, routes, demands = self._resolve(
            self._indexes, batch, np.bool_(not new), np.bool_(self.halted)
        )
        return PendingBatch(batch, routes, demands, Future(), new)

    def _start_reading(self, pending: PendingBatch) -> None:
        """Starts reading the rows that a batch needs, once other rows are written."""
        written = self._written

        def read():
            try:
                if written is not None:
                    written.result()  # or raises why not
                demands = pending.demands
                moves = any(np.asarray(d.largest)[0] for d in demands.values())
                pending.rows.set_result(self._stores.read(demands) if moves else {})
            except BaseException as error:
                pending.rows.set_exception(error)

        self._worker.submit(read)

    def _bring(
        self, tables: TableState, pending: PendingBatch, following: DeviceBatch | None
    ) -> TableState:
        """Brings rows into slots and starts to write those that leave, then to read
        those of the batch after, if it is given."""
        rows = pending.rows.result()
        *_, homeless, refused = np.max(
            [demand.largest for demand in pending.demands.values()], axis=0
        )
        if pending.new and refused:
            self.halted, self._routed = True, None
        elif pending.new:
            # The devices waited for the rows if the tables, as the step before leaves
            # them, are ready.
            array: Any = next(iter(tables.storages.values()))
            self._figures.count(pending.demands, late=array.is_ready())
        if homeless:
            self._indexes = grow_directories(self._collection, self._indexes)
        if following is not None:
            self._pending = self._route(following)
        if rows:
            tables, outgoing = self._swap(tables, pending.moves, rows)
            self._written = self._worker.submit(
                self._stores.write, pending.demands, outgoing
            )
        if self._pending is not None:
            self._start_reading(self._pending)
        return tables

    def _swap(
        self,
        tables: TableState,
        moves: Mapping[str, Moves],
        rows: Mapping[str, Incoming],
    ) -> tuple[TableState, dict[str, jax.Array]]:
        """Puts rows, if any, into slots; returns those that leave, too."""
        if not rows:
            return tables, {}
        outgoing = self._take(*tables, moves, rows)
        storages, states = self._put(*tables, self._key, moves, rows)
        return TableState(storages, states), outgoing

    def _wait_for_writes(self) -> None:
        if self._written is not None:
            self._written.result()
