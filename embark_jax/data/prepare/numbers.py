"""Fits and applies transforms of columns of numbers.

A transform is fitted once, kept in the manifest, and applied alike to the samples of
all splits and to raw rows that are scored later.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from embark_jax._base.config import Config
from embark_jax.data.hashing import splitmix64
from embark_jax.data.prepare.columns import NumberColumn
from embark_jax.data.prepare.vocabulary import FIRST_ID, MISSING_ID

SAMPLED = 2**17
"""How many numbers of a column quantiles are computed from, a megabyte: all of smaller
data, otherwise a sample, whose quantiles are off by about a thousandth of the
samples."""


class FittedNumber(Config):
    """A fitted transform.

    Attributes:
      column: the column as the user described it.
      mean, deviation: mean and standard deviation of the training samples' numbers,
        after ``log``.
      edges: for ``quantiles``, the first number of each range but the lowest.
    """

    column: NumberColumn = NumberColumn()
    mean: float = 0.0
    deviation: float = 1.0
    edges: tuple[float, ...] = ()

    @property
    def rows(self) -> int:
        """Returns the number of rows of the table that ranges read."""
        return FIRST_ID + len(self.edges) + 1

    def values(self, numbers: pa.Array) -> np.ndarray:
        """Returns the transformed numbers, float32 ``[samples]``."""
        values, missing = _present(numbers)
        values = transformed(self.column, values)
        filling = self.mean if self.column.missing == "mean" else 0.0
        if self.column.transform == "standardize":
            values = (values - self.mean) / self.deviation
            filling = 0.0  # 0 is the mean, too
        return np.where(missing, filling, values).astype(np.float32)

    def ranges(self, numbers: pa.Array) -> np.ndarray:
        """Returns the ids of the ranges, int64 ``[samples]``."""
        values, missing = _present(numbers)
        ids = FIRST_ID + np.searchsorted(self.edges, values, side="right")
        return np.where(missing, MISSING_ID, ids)


class NumberSeen(Config):
    """Statistics of a column of numbers, before its transform, in training samples."""

    transform: str
    samples: int = 0
    missing: int = 0
    minimum: float = 0.0
    median: float = 0.0
    maximum: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    @property
    def missing_share(self) -> float:
        """Returns the share of the samples without a number."""
        return self.missing / max(self.samples, 1)


class NumberFit:
    """Fits a transform to the numbers of a column, which come in chunks of any size.

    Args:
      column: the column as the user described it.
    """

    def __init__(self, column: NumberColumn):
        self._column = column
        self._raw, self._transformed = Moments(), Moments()
        self._missing = 0
        self._minimum = np.inf
        self._maximum = -np.inf
        self._sampled: list[np.ndarray] = []

    def add(self, numbers: pa.Array, sampled: np.ndarray) -> None:
        """Adds numbers of training samples.

        Args:
          numbers: the samples' numbers.
          sampled: which of them belong to the sample for quantiles.
        """
        values, missing = _present(numbers)
        self._missing += int(missing.sum())
        self._sampled.append(values[sampled & ~missing])
        values = values[~missing]
        if len(values):
            self._raw.add(values)
            self._transformed.add(transformed(self._column, values))
            self._minimum = min(self._minimum, values.min())
            self._maximum = max(self._maximum, values.max())

    def fitted(self) -> FittedNumber:
        """Returns the fitted transform."""
        moments, edges = self._transformed, ()
        if self._column.transform == "quantiles":
            shares = np.arange(1, self._column.quantiles) / self._column.quantiles
            values = np.concatenate(self._sampled)
            if len(values):
                quantiles = np.unique(np.quantile(values, shares, method="higher"))
                edges = tuple(quantiles[quantiles > self._minimum].tolist())
        return FittedNumber(
            column=self._column,
            mean=moments.mean,
            deviation=moments.deviation or 1.0,  # a constant becomes 0
            edges=edges,
        )

    def seen(self) -> NumberSeen:
        """Returns the statistics for the report."""
        moments = self._raw
        if not moments.count:
            missing = {"samples": self._missing, "missing": self._missing}
            return NumberSeen(transform=self._column.transform, **missing)
        sampled = np.concatenate(self._sampled)
        return NumberSeen(
            transform=self._column.transform,
            samples=moments.count + self._missing,
            missing=self._missing,
            minimum=float(self._minimum),
            median=float(np.median(sampled)) if len(sampled) else moments.mean,
            maximum=float(self._maximum),
            mean=moments.mean,
            deviation=moments.deviation,
        )


class Moments:
    """Mean and standard deviation of numbers that come in chunks.

    Chunks are merged as in Chan, Golub and LeVeque, https://doi.org/10.2307/2683386,
    so that numbers far from 0 lose no digits.
    """

    def __init__(self):
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

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
        """Returns the population's standard deviation; 0 for no numbers and for equal
        ones."""
        return float(np.sqrt(self._squares / self.count)) if self.count else 0.0


def transformed(column: NumberColumn, values: np.ndarray) -> np.ndarray:
    """Returns the numbers that are standardized, or averaged for missing ones."""
    if column.transform == "log":
        return np.log1p(np.maximum(values, 0))
    return values


def in_sample(start: int, count: int, total: int) -> np.ndarray:
    """Says which samples from a position on are among about SAMPLED of all: bool
    ``[count]``, the same whatever the chunks they come in."""
    if total <= SAMPLED:
        return np.ones(count, bool)
    positions = np.arange(start, start + count, dtype=np.uint64)
    return splitmix64(positions) < np.uint64(SAMPLED / total * 2.0**64)


def _present(numbers: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers as float64, and which of them are missing."""
    missing = numbers.is_null().to_numpy(zero_copy_only=False)
    values = numbers.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values, missing
