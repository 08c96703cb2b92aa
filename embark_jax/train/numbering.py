"""Keys of dynamic tables become row numbers, on their way to the devices.

The host numbers keys in the order in which training first meets them: from there on a
dynamic table is a cached table with that much room. The number that a key gets changes
no result: the initial value of its row is a function of the key.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping

import jax
import numpy as np

from embark_jax.data import Batch
from embark_jax.data.key_numbers import UNKNOWN, KeyNumbers
from embark_jax.planner import Plan
from embark_jax.tables import PADDING_ID


class Numbering:
    """The numbers of all dynamic tables of a plan.

    Args:
      plan: plan with those tables.

    Raises:
      ValueError: if there are some in a run of several processes, which would have to
        agree on numbers and do not.
    """

    def __init__(self, plan: Plan):
        self._features = {
            table.name: [f.name for f in plan.features if f.table == table.name]
            for table in plan.tables
            if table.is_dynamic
        }
        if self._features and jax.process_count() > 1:
            raise ValueError(
                f"table {next(iter(self._features))!r} is dynamic, which works in one "
                "process alone; give it rows, or start one process"
            )
        self._numbers = {table: KeyNumbers() for table in self._features}
        self._used = dict.fromkeys(self._features, 0)
        self._lock = threading.Lock()  # batches that are replayed are placed again

    def keys(self, table: str) -> np.ndarray:
        """Returns a dynamic table's ``[n]`` int64 keys by number, as many as are used;
        do not change them."""
        return self._numbers[table].keys[: self._used[table]]

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
        has: new ones get the next numbers."""
        with self._lock:
            numbered = self._replaced(
                batch, lambda table, keys: self._numbers[table].number(keys)
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
            together = np.concatenate([batch.ids[name].ravel() for name in names])
            held = together != PADDING_ID
            numbers = np.full(len(together), PADDING_ID, np.int32)
            numbers[held] = numbers_of(table, together[held])
            for name in names:
                mine, numbers = np.split(numbers, [batch.ids[name].size])
                ids[name] = mine.reshape(batch.ids[name].shape)
        return dataclasses.replace(batch, ids=ids)
