"""A metric, by which reports, early stopping, plateaus and searches know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Metric(NamedTuple):
    """A metric.

    Attributes:
      name: its name in records; behind it, one of ranks has its cutoff.
      function: what computes it.
      higher_is_better: None if the best value is neither the largest nor the smallest.
    """

    name: str
    function: Callable[..., float | None]
    higher_is_better: bool | None

    def gain(self, value: float, other: float) -> float:
        """Returns by how much a value is better than another, below 0 if it is not."""
        return value - other if self.higher_is_better else other - value
