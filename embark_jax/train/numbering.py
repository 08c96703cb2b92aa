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
        self._lock = threading.Lock()  # batches that are replayed are placed again

    def keys(self, table: str) -> np.ndarray:
        """Returns a dynamic table's ``[n]`` int64 keys by number; do not change
        them."""
        return self._numbers[table].keys

    def restore(self, table: str, keys: np.ndarray) -> None:
        """Numbers these keys of a table, and no others."""
        self._numbers[table] = KeyNumbers(keys)

    def number(self, batch: Batch) -> tuple[Batch, dict[str, int]]:
        """Returns a checked batch for the devices, and how many keys each table then
        has: new ones get the next numbers."""
        with self._lock:
            numbered = self._replaced(batch, KeyNumbers.number)
            return numbered, {name: len(n) for name, n in self._numbers.items()}

    def find(self, batch: Batch, room: Mapping[str, int]) -> Batch:
        """Returns a checked batch for the devices, with padding for untrained keys:
        unknown ones, and those with numbers from their table's ``room`` on."""
        with self._lock:
            found = self._replaced(batch, KeyNumbers.find)
        for table, names in self._features.items():
            for name in names:
                numbers = found.ids[name]
                numbers[numbers >= room[table]] = UNKNOWN
        return found

    def _replaced(
        self, batch: Batch, method: Callable[[KeyNumbers, np.ndarray], np.ndarray]
    ) -> Batch:
        if not self._features:
            return batch
        ids = dict(batch.ids)
        for table, names in self._features.items():
            together = np.concatenate([batch.ids[name].ravel() for name in names])
            held = together != PADDING_ID
            numbers = np.full(len(together), PADDING_ID, np.int32)
            numbers[held] = method(self._numbers[table], together[held])
            for name in names:
                mine, numbers = np.split(numbers, [batch.ids[name].size])
                ids[name] = mine.reshape(batch.ids[name].shape)
        return dataclasses.replace(batch, ids=ids)
