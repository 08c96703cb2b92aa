"""Figures of the slots of cached tables: how often they had the rows asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from embark_jax.cache.programs import Demand


class CacheFigures:
    """Counts the rows that batches of training ask for."""

    def __init__(self):
        self._needed, self._missed = Counter[str](), Counter[str]()
        self._late: list[bool] = []

    def count(self, demands: Mapping[str, Demand], late: bool) -> None:
        """Counts a batch once its rows are there, by storage; ``late`` says whether the
        devices waited for them."""
        self._late.append(late)
        for name, demand in demands.items():
            rows, missing = np.asarray(demand.rows).tolist()
            self._needed[name] += rows
            self._missed[name] += missing

    def take(self) -> dict[str, float]:
        """Returns figures since the last call: for each storage the share of the rows
        asked for that already had a slot, and the share of steps whose rows were
        late."""
        figures = {
            f"cache_hits/{name}": 1 - self._missed[name] / needed
            for name, needed in self._needed.items()
            if needed
        }
        if self._late:
            figures["cache_late"] = sum(self._late) / len(self._late)
        self._needed.clear()
        self._missed.clear()
        self._late.clear()
        return figures
