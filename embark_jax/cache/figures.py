"""Figures of the slots of cached tables: how often they had the rows asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from embark_jax.cache.programs import Demand


class CacheFigures:
    """Counts the rows that batches of training ask for."""

    def __init__(self):
        self._asked, self._missed = Counter[str](), Counter[str]()
        self._late: list[bool] = []

    def count(self, demands: Mapping[str, Demand], late: bool) -> None:
        """Counts a batch once its rows are there, by storage; ``late`` says whether the
        devices waited for them."""
        self._late.append(late)
        for name, demand in demands.items():
            rows, missing = np.asarray(demand.rows).tolist()
            self._asked[name] += rows
            self._missed[name] += missing

    def take(self) -> dict[str, float]:
        """Returns figures since the last call: for each storage the share of the rows
        asked for that already had a slot, and the share of steps whose rows were
        late."""
        found = {
            f"cache_hits/{name}": 1 - self._missed[name] / asked
            for name, asked in self._asked.items()
            if asked
        }
        if self._late:
            found["cache_late"] = sum(self._late) / len(self._late)
        self._asked.clear()
        self._missed.clear()
        self._late.clear()
        return found
