"""Columns of numbers: what training samples say of them, and how they are transformed.

A transform is fitted once, kept in the manifest, and applied alike to the samples of
all splits and to raw rows that are scored later.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from embark_jax.config import Config
from embark_jax.data.hashing import splitmix64
from embark_jax.data.prepare.columns import NumberColumn
from embark_jax.data.prepare.vocabulary import FIRST_ID, MISSING_ID

SAMPLED = 2**17
"""Numbers of a column that quantiles are found from, a megabyte: all of smaller data,
and else a sample, whose quantiles are off by about a thousandth of the samples."""


class FittedNumber(Config):
    """A transform that was fitted.

    Attributes:
      column: what was asked for.
      mean, deviation: of the training samples' numbers, after ``log``.
      edges: of ``quantiles``: the first number of each range but the lowest.
    """

    column: NumberColumn = NumberColumn()
    mean: float = 0.0
    deviation: float = 1.0
    edges: tuple[float, ...] = ()

    @property
    def rows(self) -> int:
        """Of the table that ranges read."""
        return FIRST_ID + len(self.edges) + 1

    def values(self, numbers: pa.Array) -> np.ndarray:
        """float32 ``[samples]``."""
        values, missing = _present(numbers)
        values = transformed(self.column, values)
        filling = self.mean if self.column.missing == "mean" else 0.0
        if self.column.transform == "standardize":
            values = (values - self.mean) / self.deviation
            filling = 0.0  # which is the mean, too
        return np.where(missing, filling, values).astype(np.float32)

    def ranges(self, numbers: pa.Array) -> np.ndarray:
        """Ids of the ranges: int64 ``[samples]``."""
        values, missing = _present(numbers)
        found = FIRST_ID + np.searchsorted(self.edges, values, side="right")
        return np.where(missing, MISSING_ID, found)


class NumberSeen(Config):
    """What the training samples have in a column of numbers, before its transform."""

    transform: str
    samples: int = 0
    missing: int = 0
    least: float = 0.0
    median: float = 0.0
    most: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0


class NumberFit:
    """Goes through the numbers of a column, in any pieces.

    Args:
      column: what is asked for.
    """

    def __init__(self, column: NumberColumn):
        self._column = column
        self._raw, self._transformed = Moments(), Moments()
        self._missing = 0
        self._least, self._most = np.inf, -np.inf
        self._sampled: list[np.ndarray] = []

    def add(self, numbers: pa.Array, sampled: np.ndarray) -> None:
        """Adds numbers of training samples.

        Args:
          numbers: of the samples.
          sampled: which of them are of the sample that quantiles are found from.
        """
        values, missing = _present(numbers)
        self._missing += int(missing.sum())
        self._sampled.append(values[sampled & ~missing])
        values = values[~missing]
        if len(values):
            self._raw.add(values)
            self._transformed.add(transformed(self._column, values))
            self._least = min(self._least, values.min())
            self._most = max(self._most, values.max())

    def fitted(self) -> FittedNumber:
        """The transform."""
        moments, edges = self._transformed, ()
        if self._column.transform == "quantiles":
            shares = np.arange(1, self._column.quantiles) / self._column.quantiles
            values = np.concatenate(self._sampled)
            if len(values):
                found = np.unique(np.quantile(values, shares, method="higher"))
                edges = tuple(found[found > self._least].tolist())
        return FittedNumber(
            column=self._column,
            mean=moments.mean,
            deviation=moments.deviation or 1.0,  # of a constant, which becomes 0
            edges=edges,
        )

    def seen(self) -> NumberSeen:
        """For the report."""
        moments = self._raw
        if not moments.count:
            missing = {"samples": self._missing, "missing": self._missing}
            return NumberSeen(transform=self._column.transform, **missing)
        sampled = np.concatenate(self._sampled)
        return NumberSeen(
            transform=self._column.transform,
            samples=moments.count + self._missing,
            missing=self._missing,
            least=float(self._least),
            median=float(np.median(sampled)) if len(sampled) else moments.mean,
            most=float(self._most),
            mean=moments.mean,
            deviation=moments.deviation,
        )


class Moments:
    """Mean and standard deviation of numbers that come in pieces.

    Pieces are merged as in Chan, Golub and LeVeque, https://doi.org/10.2307/2683386,
    so that numbers far from 0 lose no digits.
    """

    def __init__(self):
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        """Adds at least one number."""
        mean = float(values.mean())
        total, change = self.count + len(values), mean - self.mean
        squares = float(np.square(values - mean).sum())
        self._squares += squares + change**2 * self.count * len(values) / total
        self.mean += change * len(values) / total
        self.count = total

    @property
    def deviation(self) -> float:
        """Of the population: 0 of no numbers, and of equal ones."""
        return float(np.sqrt(self._squares / self.count)) if self.count else 0.0


def transformed(column: NumberColumn, values: np.ndarray) -> np.ndarray:
    """What is standardized, or averaged where it is missing."""
    if column.transform == "log":
        return np.log1p(np.maximum(values, 0))
    return values


def in_sample(start: int, count: int, total: int) -> np.ndarray:
    """Which samples from a position on are among some SAMPLED of all: bool
    ``[count]``, the same whatever pieces they are read in."""
    if total <= SAMPLED:
        return np.ones(count, bool)
    positions = np.arange(start, start + count, dtype=np.uint64)
    return splitmix64(positions) < np.uint64(SAMPLED / total * 2.0**64)


def _present(numbers: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """float64 numbers, and which are missing."""
    missing = numbers.is_null().to_numpy(zero_copy_only=False)
    values = numbers.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values, missing
