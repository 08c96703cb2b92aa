"""The rows of cached tables: slots, key indexes and row stores, kept in agreement.

The devices get, in this order: the route of a batch, which changes the indexes and says
which rows move; the swap that moves them; the step. Routes and swaps come in pairs and
in the order of batches, so that a row is where the indexes say, or else in the store.
One thread works on the store: it first writes the rows that a swap put out, then reads
those that the next swap takes in. It reads no stale row.

What a batch has changed is known until its step is known to be applied. If a step is
refused, its batch and those behind it are undone, from the last to the first: rows lie
where they lay before, and the counts of requests are those of before. The batches may
come again.

The devices get the route of a batch before the step ahead of it, where the batch is
known by then: its rows are read while that step runs.

A batch that is scored is undone, too, as soon as it has its scores.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax._base.memory import bytes_text, free_memory_bytes
from embark_jax.cache.key_index import Counts, Demand, Moves
from embark_jax.cache.resolving import (
    grow_directories,
    grow_slots,
    init_indexes,
    resolve_routes,
    undo_moves,
)
from embark_jax.cache.row_store import StoreError
from embark_jax.cache.stored_rows import MOVED_AT_ONCE, StoredRows
from embark_jax.cache.swaps import (
    WORD_BYTES,
    Incoming,
    make_gather,
    make_scatter,
    row_words,
    values_of,
    with_values,
)
from embark_jax.embedding.batch_ids import DeviceBatch
from embark_jax.embedding.collection import EmbeddingCollection, Routes, TableState
from embark_jax.embedding.rules import AnyRule
from embark_jax.launch.agreement import tell_all
from embark_jax.plans.layout import Storage

STARTED_AT_MOST = 8
"""Batches that may be undone at a time; more than steps are ever in flight."""
BATCHES_AHEAD = 100
"""Batches for whose new keys a table that grows gets room, if they bring as many as
this one: with more slots the programs are compiled anew, which takes as long as
hundreds of steps."""
MOST_AHEAD = 8
"""Room as a multiple of the slots that are needed, at most: the first batches have more
new keys than any other."""


class TooFewSlotsError(StoreError):
    """A batch asks for more rows of a cached table than it has slots.

    Attributes:
      slots: slots, on all devices together, that dynamic tables should have for it and
        for the next batches, by table; empty if more would not help.
    """

    def __init__(self, message: str, slots: Mapping[str, int]):
        super().__init__(message)
        self.slots = slots


@dataclasses.dataclass(eq=False)
class BatchInFlight:
    """A batch whose rows are being read, or are in slots, until its step is certain.

    Attributes:
      batch: the batch as the devices have it.
      routes: routes to slots.
      demands: demand on each storage.
      rows: rows that come, by storage, once they are read; none if nothing moves. With
        them come the numbers of keys in the stores before this batch.
      left: rows that left slots for it, by storage, as they come back.
      late: whether the devices waited for its rows.
    """

    batch: DeviceBatch
    routes: Routes
    demands: dict[str, Demand]
    rows: Future[tuple[dict[str, Incoming], dict[str, list[int]]]]
    left: dict[str, Incoming] = dataclasses.field(default_factory=dict)
    late: bool = False

    @property
    def moves(self) -> dict[str, Moves]:
        return {name: demand.moves for name, demand in self.demands.items()}


class CachedRows:
    """The rows of cached tables, as described above.

    Args:
      collection: the embedding tables.
      optimizer: optimizer of their rows.
      key: JAX random key of the initial rows.
      scratch: folder for stores on disk; None takes the system's for temporary files.

    Attributes:
      report: called with a sentence about each growth of a dynamic table. Unless it is
        replaced, it logs a warning, which Python shows unless it is told otherwise.

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
        self.report: Callable[[str], None] = logging.getLogger(__name__).warning
        self._optimizer, self._key = optimizer, key
        self._worker = ThreadPoolExecutor(1, "row-store")
        self._loading: BatchInFlight | None = None
        self._started: deque[BatchInFlight] = deque(maxlen=STARTED_AT_MOST)
        self._written: Future | None = None
        words = {n: row_words(optimizer, s) for n, s in collection.cached.items()}
        _check_memory(collection, words)
        self._stores = {
            name: StoredRows(storage, collection.mesh, words[name], scratch)
            for name, storage in collection.cached.items()
        }
        self._indexes = init_indexes(collection)
        self._asked: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()
        self._taken: dict[str, int] = {}
        self._late: list[bool] = []
        self.use(collection)

    def use(self, collection: EmbeddingCollection) -> None:
        """Changes to a plan of other capacities, or more slots."""
        self._collection = collection
        for name, storage in collection.cached.items():
            self._stores[name].storage = storage
        self._gather = make_gather(collection, self._optimizer)
        self._scatter = make_scatter(collection, self._optimizer)

        def resolve(indexes, batch, to_score):
            routes = collection.route_batch(batch)
            return resolve_routes(collection, indexes, routes, to_score)

        self._resolve = jax.jit(resolve, static_argnums=2, donate_argnums=0)
        self._route_hot = jax.jit(EmbeddingCollection.route_batch, static_argnums=0)
        self._undo = jax.jit(
            functools.partial(undo_moves, collection), donate_argnums=0
        )

    @property
    def _dynamic(self) -> dict[str, StoredRows]:
        """The stores of dynamic tables."""
        return {name: store for name, store in self._stores.items() if store.table}

    @property
    def _discarding(self) -> dict[str, StoredRows]:
        """The stores of dynamic tables that discard rows."""
        return {name: store for name, store in self._stores.items() if store.discards}

    def load_rows(
        self,
        tables: TableState,
        batch: DeviceBatch,
        following: DeviceBatch | None = None,
        to_score: bool = False,
    ) -> tuple[TableState, Routes]:
        """Loads the rows of a batch into slots.

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
        loading = self._loading
        if loading is None or loading.batch is not batch:
            self._drop_loading()
            loading = self._loading = self._route(batch, to_score)
            self._start_reading(loading)
        rows, _ = loading.rows.result()  # or it stays so
        counts = {name: demand.on_host() for name, demand in loading.demands.items()}
        try:
            check_slots(counts, self._collection.cached)
        except TooFewSlotsError:
            self._drop_loading()
            raise
        self._loading = None
        if any(demanded.unplaced for demanded in counts.values()):
            self._indexes = grow_directories(self._collection, self._indexes)
        # The devices waited for the rows if the tables, as the step before leaves them,
        # are ready.
        array: Any = next(iter(tables.storages.values()))
        loading.late = array.is_ready()
        if following is not None:
            self._loading = self._route(following)
        tables, loading.left = self._swap(tables, loading.moves, rows)
        self._started.append(loading)
        if rows and not to_score:
            self._written = self._worker.submit(self._write, loading)
        if self._loading is not None:
            self._start_reading(self._loading)
        return tables, loading.routes

    def _drop_loading(self) -> None:
        """Undoes the route of a batch whose rows are not in slots yet, if there is one;
        it is routed again when its step comes."""
        if self._loading is not None:
            self._undo_route(self._loading.demands)
            self._loading = None

    def applied(self, batch: DeviceBatch) -> None:
        """Says that the step of a batch was applied: it cannot be undone any more."""
        if not self._started or self._started[0].batch is not batch:
            return
        started = self._started.popleft()
        if started.demands:
            self._late.append(started.late)
        for name, demand in started.demands.items():
            counts = demand.on_host()
            self._asked[name] += counts.asked
            self._missing[name] += counts.missing
            if table := self._stores[name].table:
                self._taken[table] = counts.taken

    def undo(self, tables: TableState) -> TableState:
        """Returns the tables as they were before all batches that may be undone."""
        self._drop_loading()
        self._wait_for_writes()
        while self._started:
            tables = self.undo_last(tables)
        return tables

    def undo_last(self, tables: TableState) -> TableState:
        """Returns the tables as they were before the last batch."""
        started = self._started.pop()
        tables, _ = self._swap(tables, started.moves, started.left)
        self._undo_route(started.demands)
        _, stored = started.rows.result()
        for name, counts in stored.items():
            self._stores[name].truncate(counts)
        return tables

    def _undo_route(self, demands: Mapping[str, Demand]) -> None:
        """Takes back what the last batch that was routed changed in the indexes."""
        if not demands:
            return
        self._indexes, unplaced = self._undo(self._indexes, demands)
        if np.asarray(unplaced).any():
            self._indexes = grow_directories(self._collection, self._indexes)

    def grow(
        self, tables: TableState, collection: EmbeddingCollection, step: int
    ) -> TableState:
        """Returns the tables with more slots after a step, for a plan with more of
        them; ``use`` must take that plan next."""
        self._drop_loading()
        plans = self._collection.plan, collection.plan
        for old, new in zip(*(plan.tables for plan in plans), strict=True):
            if old.slots != new.slots:
                self.report(
                    f"dynamic table {old.name} grows from {old.slots:,} to "
                    f"{new.slots:,} slots after step {step:,}; programs are compiled "
                    "anew"
                )
        self._indexes, tables = grow_slots(collection, self._indexes, tables)
        return tables

    def figures(self) -> dict[str, float]:
        """Returns figures since the last call: for each storage the share of the rows
        asked for that already had a slot; for each dynamic table the slots that hold a
        row; and the share of steps whose rows were late."""
        figures: dict[str, float] = {
            f"cache_hits/{name}": 1 - self._missing[name] / asked
            for name, asked in self._asked.items()
            if asked
        }
        figures |= {f"slots_filled/{table}": n for table, n in self._taken.items()}
        if self._late:
            figures["cache_late"] = sum(self._late) / len(self._late)
        for since in (self._asked, self._missing, self._late):
            since.clear()
        return figures

    def stored(self, tables: TableState) -> TableState:
        """Returns the tables with all rows of cached ones as they lie in the stores,
        which get copies of rows in slots, and initial rows; those of dynamic tables
        with their keys. The result is good until the next batch; all processes must
        call it."""
        self._drop_loading()
        self._wait_for_writes()
        for name, store in self._stores.items():
            store.store_resident(self._indexes[name], values_of(tables, name))
            if not store.table:
                store.complete(self._collection, self._optimizer, self._key)
        keys, dynamic = {}, self._dynamic
        rows = {n: s.storage.rows_per_device for n, s in self._stores.items()}
        counts = [max(1, store.count) for store in dynamic.values()]
        for (name, store), count in zip(dynamic.items(), most_of(counts), strict=True):
            rows[name] = count
            keys[name] = store.key_arrays(self._indexes[name], count)
        return with_values(
            tables,
            {n: s.arrays(rows[n]) | keys.get(n, {}) for n, s in self._stores.items()},
        )

    def blank(self, tables: TableState) -> TableState:
        """Returns tables like ``stored``, with any values, into which a checkpoint is
        restored; dynamic tables have their ``StoredRows`` in place of arrays."""
        self._drop_loading()
        self._wait_for_writes()
        return with_values(
            tables,
            {
                n: {"": s} if s.table else s.arrays(s.storage.rows_per_device)
                for n, s in self._stores.items()
            },
        )

    def restored_slots(self) -> dict[str, int]:
        """Returns how many slots, on all devices together, each table that discards
        rows needs for those in the checkpoint that was read into ``blank``; all
        processes must call it."""
        stores = self._discarding.values()
        counts = most_of([store.count for store in stores])
        return {
            store.table: count * store.storage.row_shards
            for store, count in zip(stores, counts, strict=True)
        }

    def restore(self, tables: TableState, slots: TableState) -> TableState:
        """Takes over the values that were written into the arrays of ``blank``.

        Args:
          tables: tables with those arrays.
          slots: tables that give the slots, whatever is in them.
        """
        self._loading = None
        self._started.clear()
        self._indexes = init_indexes(self._collection)
        for store in self._stores.values():
            if not store.table:
                store.hold_all()
        tables = with_values(tables, {n: values_of(slots, n) for n in self._stores})
        discarding = self._discarding
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
        slots = max(s.storage.slots_per_device for s in discarding.values())
        for first in range(0, slots, MOVED_AT_ONCE):
            moves, rows = {}, {}
            for name, store in self._stores.items():
                moves[name], rows[name] = store.moves_to_slots(
                    keys.get(name, {}), first
                )
            tables, _ = self._swap(tables, moves, rows)
        return tables

    def _route(self, batch: DeviceBatch, to_score: bool = False) -> BatchInFlight:
        """Starts the route of a batch, and waits for nothing."""
        if batch.hot:  # needs no row in a slot
            hot = self._collection.for_batch(hot=True)
            return BatchInFlight(batch, self._route_hot(hot, batch), {}, Future())
        self._indexes, routes, demands = self._resolve(self._indexes, batch, to_score)
        return BatchInFlight(batch, routes, demands, Future())

    def _start_reading(self, loading: BatchInFlight) -> None:
        """Starts reading the rows that a batch needs, once other rows are written."""
        written = self._written

        def read():
            try:
                if written is not None:
                    written.result()  # or raises why not
                demands, rows = loading.demands, {}
                if any(demand.on_host().coming for demand in demands.values()):
                    rows = {n: s.incoming(demands[n]) for n, s in self._stores.items()}
                stored = {name: store.counts() for name, store in self._dynamic.items()}
                loading.rows.set_result((rows, stored))
            except BaseException as error:
                loading.rows.set_exception(error)

        self._worker.submit(read)

    def _write(self, started: BatchInFlight) -> None:
        """Stores the rows that left slots."""
        for name, incoming in started.left.items():
            self._stores[name].store_evicted(started.demands[name], incoming.rows)

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
        values = {name: values_of(tables, name) for name in rows}
        outgoing = self._gather(values, moves, rows)
        values = self._scatter(values, self._key, moves, rows)
        left = {
            name: Incoming(outgoing[name], jnp.zeros_like(incoming.fresh))
            for name, incoming in rows.items()
        }
        return with_values(tables, values), left

    def _wait_for_writes(self) -> None:
        if self._written is not None:
            self._written.result()


def check_slots(counts: Mapping[str, Counts], storages: Mapping[str, Storage]) -> None:
    """Raises ``TooFewSlotsError`` if a batch needs more slots of a storage. Other
    tables that will soon grow do so, too."""
    wanted: dict[str, int] = {}
    must_grow = []
    for name, demanded in counts.items():
        storage, needed = storages[name], demanded.needed
        named = ", ".join(table.name for table in storage.tables.values())
        limit = storage.table.max_slots
        if limit not in (None, storage.table.slots):
            slots = needed * storage.row_shards
            soon = slots + BATCHES_AHEAD * demanded.missing
            wanted[named] = min(soon, MOST_AHEAD * slots)
            must_grow += [named] * (needed > storage.slots_per_device)
        elif needed > storage.slots_per_device:
            key = "slots" if limit is None else "max_slots"
            raise TooFewSlotsError(
                f"a batch asks for {needed:,} rows of one device's share of the cached "
                f"tables {named}, which have {storage.slots_per_device:,} slots there; "
                f"raise their {key}, which all devices share, to "
                f"{needed * storage.row_shards:,} or more, or lower the batch size",
                {},
            )
    if must_grow:
        raise TooFewSlotsError(
            f"the tables {', '.join(must_grow)} must grow for a batch", wanted
        )


def most_of(counts: list[int]) -> list[int]:
    """Returns the largest of each count in all processes, which must all call it."""
    if not counts:
        return []
    return [max(counts) for counts in zip(*tell_all(counts), strict=True)]


def _check_memory(
    collection: EmbeddingCollection, words: Mapping[str, Mapping[str, slice]]
) -> None:
    """Raises ``StoreError`` if memory cannot hold all rows of fixed tables in memory;
    ``words`` are those of the values in their rows."""
    host_bytes = sum(
        WORD_BYTES
        * storage.rows_per_device
        * max(columns.stop for columns in words[name].values())
        * len(collection.mesh.local_devices)
        for name, storage in collection.cached.items()
        if storage.kind.tier == "host" and not storage.dynamic
    )
    if host_bytes > (free := free_memory_bytes()):
        raise StoreError(
            f"rows of tier host take {bytes_text(host_bytes)} of memory in this "
            f"process, {bytes_text(free)} are free; set tier to disk for some"
        )
