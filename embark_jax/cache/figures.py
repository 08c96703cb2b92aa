"""Figures of the slots of cached tables: how often they had the rows asked for."""

from __future__ import annotations

from collections import Counter
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
        self._needed, self._missed = Counter[str](), Counter[str]()
        self._filled: dict[str, int] = {}
        self._guests = Counter[str]()
        self._late: list[bool] = []

    def count(self, demands: Mapping[str, Demand], late: bool) -> None:
        """Counts a batch once its rows are there, by storage; ``late`` says whether the
        devices waited for them."""
        self._late.append(late)
        for name, demand in demands.items():
            rows, missing, filled, guests = np.asarray(demand.rows).tolist()
            if table := self._dynamic.get(name):
                self._filled[table] = filled
                self._guests[table] += guests
            self._needed[name] += rows
            self._missed[name] += missing

    def take(self) -> dict[str, float]:
        """Returns figures since the last call: for each storage the share of the rows
        asked for that already had a slot; for each dynamic table the slots that hold a
        row, and how often a batch asked for a key that was not admitted; and the share
        of steps whose rows were late."""
        figures = {
            f"cache_hits/{name}": 1 - self._missed[name] / needed
            for name, needed in self._needed.items()
            if needed
        }
        figures |= {f"slots_filled/{table}": n for table, n in self._filled.items()}
        figures |= {
            f"not_admitted/{table}": n for table, n in self._guests.items() if n
        }
        if self._late:
            figures["cache_late"] = sum(self._late) / len(self._late)
        self._needed.clear()
        self._missed.clear()
        self._guests.clear()
        self._late.clear()
        return figures
