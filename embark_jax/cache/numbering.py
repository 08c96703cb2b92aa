"""Keys of dynamic tables become row numbers, on their way to the devices.

The host numbers keys in the order in which training first meets them, those of a batch
in ascending order: from there on a dynamic table is a cached table with that much room.
The number that a key gets changes no result: the initial value of its row is a function
of the key.

Several processes tell each other the keys that are new in their parts of a batch, and
so have one numbering, which is that of a single process.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from embark_jax.cache.key_numbers import UNKNOWN, KeyNumbers
from embark_jax.data import Batch
from embark_jax.embedding.logical import TableRows
from embark_jax.launch.agreement import tell_all_bytes
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import PADDING_ID


class Numbering:
    """The numbers of all dynamic tables of a plan.

    Args:
      plan: plan with those tables.
    """

    def __init__(self, plan: Plan):
        self._features = {
            table.name: [f.name for f in plan.features if f.table == table.name]
            for table in plan.tables
            if table.is_dynamic
        }
        self._numbers = {table: KeyNumbers() for table in self._features}
        self._used = dict.fromkeys(self._features, 0)
        self._lock = threading.Lock()  # batches that are replayed are placed again

    @property
    def is_needed(self) -> bool:
        """Whether there are dynamic tables."""
        return bool(self._features)

    def keys(self, table: str) -> np.ndarray:
        """Returns a dynamic table's ``[n]`` int64 keys by number, as many as are used;
        do not change them."""
        return self._numbers[table].keys[: self._used[table]]

    def with_keys(self, table: str, rows: np.ndarray) -> TableRows:
        """Returns a table's ``[numbers, dim]`` rows with their keys; those of a dynamic
        table that no key has are left out."""
        if table not in self._numbers:
            return TableRows(np.arange(len(rows)), rows)
        keys = self.keys(table).copy()
        return TableRows(keys, rows[: len(keys)])

    def figures(self) -> dict[str, int]:
        """Returns the number of keys of each table that training has used."""
        return {f"keys/{table}": count for table, count in self._used.items()}

    def use(self, keys: Mapping[str, int]) -> None:
        """Says that training uses this many numbers of each table. Batches that are
        made ahead of it may have more."""
        for table, count in keys.items():
            self._used[table] = max(self._used[table], count)

    def restore(self, table: str, keys: np.ndarray) -> None:
        """Numbers these keys of a table, and no others."""
        self._numbers[table] = KeyNumbers(keys)
        self._used[table] = len(keys)

    def number(self, batch: Batch) -> tuple[Batch, dict[str, int]]:
        """Returns a checked batch for the devices, and how many keys each table then
        has: new ones get the next numbers. Of several processes each gives its own part
        of the batch, at the same time."""
        with self._lock:
            new = [
                keys[numbers.find(keys) == UNKNOWN]
                for table, numbers in self._numbers.items()
                for keys in [self._keys_in(batch, table)]
            ]
            new_everywhere = tell_all_keys(new)
            for numbers, keys in zip(
                self._numbers.values(), new_everywhere, strict=True
            ):
                numbers.add(keys)
            numbered = self._replaced(
                batch, lambda table, keys: self._numbers[table].find(keys)
            )
            return numbered, {name: len(n) for name, n in self._numbers.items()}

    def find(self, batch: Batch) -> tuple[Batch, dict[str, np.ndarray]]:
        """Returns a checked batch for the devices, and by table its ``[n]`` int64 keys
        that training has not used: they take the next numbers, in this batch alone."""
        unseen = {}

        def find(table: str, keys: np.ndarray) -> np.ndarray:
            numbers, used = self._numbers[table].find(keys), self._used[table]
            new = (numbers == UNKNOWN) | (numbers >= used)
            unseen[table], rank = np.unique(keys[new], return_inverse=True)
            numbers[new] = used + rank
            return numbers

        with self._lock:
            return self._replaced(batch, find), unseen

    def _replaced(
        self, batch: Batch, numbers_of: Callable[[str, np.ndarray], np.ndarray]
    ) -> Batch:
        if not self._features:
            return batch
        ids = dict(batch.ids)
        for table, names in self._features.items():
            numbers = numbers_of(table, self._keys_in(batch, table))
            for name in names:
                held = batch.ids[name] != PADDING_ID
                of_feature, numbers = np.split(numbers, [np.count_nonzero(held)])
                ids[name] = np.full(held.shape, PADDING_ID, np.int32)
                ids[name][held] = of_feature
        return dataclasses.replace(batch, ids=ids)

    def _keys_in(self, batch: Batch, table: str) -> np.ndarray:
        """Returns ``[n]`` int64 keys that the features of a table have, one feature
        after the other."""
        ids = [batch.ids[name] for name in self._features[table]]
        return np.concatenate(
            [column[column != PADDING_ID] for column in ids], dtype=np.int64
        )


def tell_all_keys(keys: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Tells all processes some ``[n]`` int64 arrays; returns, for each of them, what
    all processes have given, without duplicates and in ascending order.

    All processes must call it equally often, and with as many arrays.
    """
    if jax.process_count() == 1 or not keys:
        return [np.unique(array) for array in keys]
    sizes = np.array([len(array) for array in keys], np.int64)
    keys_by_process = []
    for message in tell_all_bytes(np.concatenate([sizes, *keys]).tobytes(), "keys"):
        words = np.frombuffer(message, np.int64)
        ends = np.cumsum([len(keys), *words[: len(keys)]])
        keys_by_process.append(np.split(words, ends)[1:-1])
    return [
        np.unique(np.concatenate(arrays))
        for arrays in zip(*keys_by_process, strict=True)
    ]
