"""Recurrence: how many of a hundred batches a row is in, and what that says of the
next one (Figure 2 of P²RES, https://doi.org/10.1145/3589334.3645426).
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Recurrence:
    """The rows of all tables by the number of batches that contain them.

    Attributes:
      rows: ``[batches + 1]`` rows that are in 0, 1, 2, … of the batches.
      accesses: ``[batches + 1]`` accesses of the batch after them, to these rows.
    """

    rows: np.ndarray
    accesses: np.ndarray

    def classes(self) -> list[tuple[str, int, float]]:
        """Returns ``(batches, rows, share of the next batch's accesses)`` of classes of
        rows: those in no batch, in one, and in each tenth of the batches."""
        batches = len(self.rows) - 1
        edges = [0, 1, 2, *(batches * k // 10 + 1 for k in range(1, 11))]
        edges = sorted(set(edges))
        return [
            (
                str(begin) if end == begin + 1 else f"{begin}–{end - 1}",
                int(self.rows[begin:end].sum()),
                float(self.accesses[begin:end].sum() / max(1, self.accesses.sum())),
            )
            for begin, end in itertools.pairwise(edges)
        ]
