"""The row stores of all cached storages, and what checkpoints hold of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from embark_jax.cache.kept_slots import Kept
from embark_jax.cache.key_index import KeyIndex
from embark_jax.cache.numbering import Numbering
from embark_jax.cache.programs import Demand, Incoming, row_values
from embark_jax.cache.stored_rows import KEY, NO_KEYS, StoredRows, check_memory
from embark_jax.embedding.arrays import TableState
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.rules import AnyRule

Keys = Mapping[str, np.ndarray]
"""Keys of dynamic tables."""


class TableStores:
    """The row stores of all cached storages, by name.

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
        scratch: Path | None,
    ):
        self._optimizer = optimizer
        self._key = key
        self._numbering = numbering
        self._values = {
            name: row_values(optimizer, storage)
            for name, storage in collection.cached.items()
        }
        local_devices = len(collection.mesh.local_devices)
        check_memory(collection.cached, self._values, local_devices)
        self._stores: dict[str, StoredRows] = {}
        for name, storage in collection.cached.items():
            keys = None
            if table := storage.kind.table:
                keys = functools.partial(numbering.keys, table)
            self._stores[name] = StoredRows(
                storage, collection.mesh, self._values[name], scratch, keys
            )

    def __getitem__(self, name: str) -> StoredRows:
        return self._stores[name]

    def grow(self, collection: EmbeddingCollection) -> None:
        """Makes room for the rows of a plan with more of them.

        Raises:
          StoreError: if there is no more room; nothing has changed.
        """
        self._stores |= {
            name: self._stores[name].grown(storage)
            for name, storage in collection.cached.items()
            if storage.rows_per_device > self._stores[name].storage.rows_per_device
        }

    def read(self, demands: Mapping[str, Demand], unseen: Keys) -> dict[str, Incoming]:
        """Returns the rows that come into slots; ``unseen`` are keys of the numbers
        after all others, by dynamic table."""
        return {
            name: store.incoming(
                demands[name], unseen.get(store.storage.kind.table, NO_KEYS)
            )
            for name, store in self._stores.items()
        }

    def write(
        self, demands: Mapping[str, Demand], outgoing: Mapping[str, jax.Array]
    ) -> None:
        """Stores the rows that left slots."""
        for name, rows in outgoing.items():
            self._stores[name].take_back(demands[name], rows)

    def filled(
        self,
        collection: EmbeddingCollection,
        tables: TableState,
        indexes: Mapping[str, KeyIndex],
    ) -> TableState:
        """Returns the tables with all rows of cached ones as they lie in the stores,
        which get copies of rows in slots, and initial rows."""
        for name, store in self._stores.items():
            arrays = {"": tables.storages[name], **tables.optimizer[name]}
            in_order = [arrays[value] for value in self._values[name]]
            store.take_slots(indexes[name].slot_keys, in_order)
            store.fill(collection, self._optimizer, self._key)
        return self.arrays(tables, indexes)

    def arrays(
        self, tables: TableState, indexes: Mapping[str, KeyIndex] | None
    ) -> TableState:
        """Returns the tables with the arrays of the stores, and with the keys and slots
        that the indexes say; None says that there are no keys."""
        tables = self._with_arrays(
            tables, lambda name, value: self._stores[name].array(value)
        )
        states = dict(tables.optimizer)
        for name, store in self._stores.items():
            if store.storage.kind.table:
                index = None if indexes is None else indexes[name]
                states[name] = {**states[name], **store.key_arrays(index)}  # pyright: ignore
        return tables._replace(optimizer=states)

    def restore(
        self, tables: TableState, slots: TableState
    ) -> tuple[TableState, dict[str, dict[Any, Kept]]]:
        """Takes over the values that were written into the result of ``arrays``.

        Args:
          tables: tables with those arrays.
          slots: tables that give the slots, whatever is in them.

        Returns:
          The tables with slots, and the rows of dynamic tables that had slots.
        """
        kept = {}
        for name, store in self._stores.items():
            if table := store.storage.kind.table:
                arrays: Any = tables.optimizer[name]
                self._numbering.restore(table, store.keys_in(arrays[KEY]))
                kept[name] = store.kept_in(arrays)
            store.overwritten()

        def array_in_slots(name: str, value: str) -> Any:
            return slots.optimizer[name][value] if value else slots.storages[name]

        return self._with_arrays(tables, array_in_slots), kept

    def _with_arrays(
        self, tables: TableState, array: Callable[[str, str], Any]
    ) -> TableState:
        """Returns the tables with ``array(storage, value)`` for cached ones."""
        storages, states = dict(tables.storages), dict(tables.optimizer)
        for name, values in self._values.items():
            storages[name] = array(name, "")
            states[name] = {value: array(name, value) for value in values if value}
        return TableState(storages, states)
