"""Figures of the slots of cached tables: how often they had the rows asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from embark_jax.cache.resolving import Demand


class CacheFigures:
    """Counts the rows that batches of training ask for.

    Args:
      dynamic: dynamic tables by the names of their storages.
    """

    def __init__(self, dynamic: Mapping[str, str]):
        self._dynamic = dynamic
        self._filled: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._asked: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()
        self._late: list[bool] = []

    def count(self, demands: Mapping[str, Demand], late: bool) -> None:
        """Counts a batch that was applied, by storage; ``late`` says whether devices
        waited for its rows."""
        self._late.append(late)
        for name, demand in demands.items():
            counts = demand.on_host()
            self._asked[name] += counts.asked
            self._missing[name] += counts.missing
            if table := self._dynamic.get(name):
                self._filled[table] = counts.filled

    def take(self) -> dict[str, float]:
        """Returns figures since the last call: for each storage the share of the rows
        asked for that already had a slot; for each dynamic table the slots that hold a
        row; and the share of steps whose rows were late."""
        figures: dict[str, float] = {}
        for name, asked in self._asked.items():
            if asked:
                figures[f"cache_hits/{name}"] = 1 - self._missing[name] / asked
        figures |= {f"slots_filled/{table}": n for table, n in self._filled.items()}
        if self._late:
            figures["cache_late"] = sum(self._late) / len(self._late)
        self._begin()
        return figures
