"""The row stores of all cached storages, and what checkpoints hold of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from embark_jax._base.memory import bytes_text, free_memory_bytes
from embark_jax.cache.key_index import KeyIndex
from embark_jax.cache.resolving import Demand
from embark_jax.cache.row_store import STORES, StoreError
from embark_jax.cache.stored_rows import StoredRows
from embark_jax.cache.swaps import WORD_BYTES, Incoming, row_words
from embark_jax.embedding.arrays import TableState
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.rules import AnyRule
from embark_jax.launch.agreement import tell_all
from embark_jax.plans.storage import Storage


class TableStores:
    """The row stores of all cached storages, by name.

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
        scratch: Path | None,
    ):
        self._optimizer = optimizer
        self._key = key
        self._words = {
            name: row_words(optimizer, storage)
            for name, storage in collection.cached.items()
        }
        local_devices = len(collection.mesh.local_devices)
        check_memory(collection.cached, self._words, local_devices)
        self._stores = {
            name: StoredRows(storage, collection.mesh, self._words[name], scratch)
            for name, storage in collection.cached.items()
        }

    def __getitem__(self, name: str) -> StoredRows:
        return self._stores[name]

    @property
    def dynamic(self) -> dict[str, StoredRows]:
        """The stores of dynamic tables."""
        return {name: store for name, store in self._stores.items() if store.table}

    @property
    def discarding(self) -> dict[str, StoredRows]:
        """The stores of dynamic tables that discard rows."""
        return {n: store for n, store in self.dynamic.items() if store.discards}

    def use(self, collection: EmbeddingCollection) -> None:
        """Changes to a plan of more slots."""
        for name, storage in collection.cached.items():
            self._stores[name].storage = storage

    def read(self, demands: Mapping[str, Demand]) -> dict[str, Incoming]:
        """Returns the rows that come into slots."""
        return {n: store.incoming(demands[n]) for n, store in self._stores.items()}

    def write(
        self, demands: Mapping[str, Demand], left: Mapping[str, Incoming]
    ) -> None:
        """Stores the rows that left slots."""
        for name, incoming in left.items():
            self._stores[name].take_back(demands[name], incoming.rows)

    def counts(self) -> dict[str, list[int]]:
        """Returns the numbers of keys in the stores of dynamic tables."""
        return {name: store.counts() for name, store in self.dynamic.items()}

    def truncate(self, counts: Mapping[str, list[int]]) -> None:
        """Forgets keys that were stored since there were so many."""
        for name, of_store in counts.items():
            self._stores[name].truncate(of_store)

    def filled(
        self,
        collection: EmbeddingCollection,
        tables: TableState,
        indexes: Mapping[str, KeyIndex],
    ) -> TableState:
        """Returns the tables with all rows of cached ones as they lie in the stores,
        which get copies of rows in slots, and initial rows; those of dynamic tables
        with their keys. All processes must call it."""
        for name, store in self._stores.items():
            arrays = {"": tables.storages[name], **tables.optimizer[name]}
            in_order = [arrays[value] for value in self._words[name]]
            store.take_slots(indexes[name], in_order)
            if not store.table:
                store.fill(collection, self._optimizer, self._key)
        rows = self._rows_of_blocks()
        key_arrays: dict[str, Any] = {
            name: store.key_arrays(indexes[name], rows[name])
            for name, store in self.dynamic.items()
        }
        tables = self._with_arrays(
            tables, lambda name, value: self._stores[name].array(value, rows[name])
        )
        states = {
            n: {**s, **key_arrays.get(n, {})} for n, s in tables.optimizer.items()
        }
        return tables._replace(optimizer=states)

    def unfilled(self, tables: TableState) -> TableState:
        """Returns tables like ``filled``, with any values, which a checkpoint
        overwrites; dynamic tables have their ``StoredRows`` in place of arrays."""
        rows = {n: s.storage.rows_per_device for n, s in self._stores.items()}
        tables = self._with_arrays(
            tables,
            lambda name, value: self._stores[name].array(value, rows[name]),
            [name for name, store in self._stores.items() if not store.table],
        )
        dynamic: dict[str, Any] = self.dynamic
        return TableState(
            {**tables.storages, **dynamic},
            {**tables.optimizer, **{name: {} for name in dynamic}},
        )

    def restored(self, slots: TableState, tables: TableState) -> TableState:
        """Returns the tables with the slots of ``slots``, whatever is in them, once a
        checkpoint was read into the result of ``unfilled``."""
        for store in self._stores.values():
            store.overwritten()

        def array_in_slots(name: str, value: str) -> Any:
            return slots.optimizer[name][value] if value else slots.storages[name]

        return self._with_arrays(tables, array_in_slots)

    def _rows_of_blocks(self) -> dict[str, int]:
        """Returns how many rows of each block a checkpoint has: of a dynamic table as
        many as the block with the most."""
        rows = {n: s.storage.rows_per_device for n, s in self._stores.items()}
        if dynamic := self.dynamic:
            counts = most_of_all([max(1, store.count) for store in dynamic.values()])
            rows |= dict(zip(dynamic, counts, strict=True))
        return rows

    def _with_arrays(
        self,
        tables: TableState,
        array: Callable[[str, str], Any],
        names: list[str] | None = None,
    ) -> TableState:
        """Returns the tables with ``array(storage, value)`` for cached ones, or those
        of these names."""
        storages, states = dict(tables.storages), dict(tables.optimizer)
        for name in self._words if names is None else names:
            storages[name] = array(name, "")
            states[name] = {v: array(name, v) for v in self._words[name] if v}
        return TableState(storages, states)


def most_of_all(counts: list[int]) -> list[int]:
    """Returns the largest of each count in all processes, which must all call it."""
    return [max(counts) for counts in zip(*tell_all(counts), strict=True)]


def check_memory(
    storages: Mapping[str, Storage],
    words: Mapping[str, dict[str, slice]],
    devices: int,
) -> None:
    """Raises ``StoreError`` if memory cannot hold all rows of tier host.

    Args:
      storages: cached storages.
      words: words of the values in their rows.
      devices: number of this process's devices.
    """
    host_bytes = (
        sum(
            WORD_BYTES
            * storage.rows_per_device
            * max(columns.stop for columns in words[name].values())
            for name, storage in storages.items()
            if STORES[storage.kind.tier].in_memory and not storage.kind.table
        )
        * devices
    )
    if host_bytes > (free := free_memory_bytes()):
        raise StoreError(
            f"rows of tier host take {bytes_text(host_bytes)} of memory in this "
            f"process, {bytes_text(free)} are free; set tier to disk for some"
        )
