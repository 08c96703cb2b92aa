"""Figures of the slots of cached tables: how often they had the rows asked for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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
        self._rows: dict[str, np.ndarray] = {}
        self._late: list[bool] = []

    def count(self, demands: Mapping[str, Demand], late: bool) -> None:
        """Counts a batch once its rows are there, by storage; ``late`` says whether the
        devices waited for them."""
        self._late.append(late)
        for name, demand in demands.items():
            rows = np.asarray(demand.rows, np.int64)
            self._rows[name] = self._rows.get(name, 0) + rows
            if table := self._dynamic.get(name):
                self._filled[table] = int(rows[2])

    def take(self) -> dict[str, float]:
        """Returns figures since the last call: for each storage the share of the rows
        asked for that already had a slot; for each dynamic table the slots that hold a
        row; and the share of steps whose rows were late."""
        figures: dict[str, float] = {}
        for name, (needed, missed, _) in self._rows.items():
            if needed:
                figures[f"cache_hits/{name}"] = float(1 - missed / needed)
        figures |= {f"slots_filled/{table}": n for table, n in self._filled.items()}
        if self._late:
            figures["cache_late"] = sum(self._late) / len(self._late)
        self._begin()
        return figures
