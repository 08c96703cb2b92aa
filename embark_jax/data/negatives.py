"""Items drawn at random, which a retrieval model tells from those that a user met."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from embark_jax.data.batch import Batch, id_dtype
from embark_jax.data.dataset import Dataset, DatasetView
from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.plans.tables import PADDING_ID, UNIFORM_NEGATIVES, FeatureSpec


class WithUniformNegatives(DatasetView):
    """A dataset whose training samples have one more feature, ``uniform_negatives``:
    rows of items, each as likely as any other.

    The ids are a function of the seed and of the number of the sample in the run, so
    that they are alike on any devices and in any number of processes. In other batches
    the feature is empty.

    Args:
      dataset: the dataset.
      table: table of the items.
      count: number of ids of a sample.
      seed: seed of the ids.
      rows: rows of the table that are items, not of missing or rare values.

    Raises:
      ValueError: if there are none.
    """

    def __init__(
        self, dataset: Dataset, table: str, count: int, seed: int, rows: range
    ):
        if not rows:
            raise ValueError(f"table {table!r} has no items to draw from")
        super().__init__(dataset)
        self._rows = rows
        self._dtype = id_dtype(rows.stop)
        self._feature = uniform_negatives(table, count)
        self._seed = seed

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        return (*self._dataset.features, self._feature)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Returns the dataset's batch with negatives."""
        batch, count = (
            self._dataset.train_batch(step, batch_size),
            self._feature.hotness,
        )
        first = step * batch_size * count
        numbers = np.arange(first, first + batch_size * count, dtype=np.uint64)
        bits = random_bits(self._seed, numbers)
        ids = (bits % np.uint64(len(self._rows))).astype(self._dtype)
        ids += self._dtype.type(self._rows.start)
        return _extended(batch, ids.reshape(-1, count))

    def validation_batches(self, batch_size: int) -> Iterator[Batch] | None:
        batches = self._dataset.validation_batches(batch_size)
        return None if batches is None else map(self.without, batches)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return map(self.without, self._dataset.test_batches(batch_size))

    def without(self, batch: Batch) -> Batch:
        """Returns a batch of the dataset with the feature, but empty."""
        shape = len(batch), self._feature.hotness
        return _extended(batch, np.full(shape, PADDING_ID, self._dtype))


def random_bits(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Returns 64 random bits for each number of a draw, both uint64."""
    # The stream of a seed is far from those of others.
    stream = splitmix64(np.array([seed + 1], np.uint64) * GOLDEN_GAMMA)
    return splitmix64(stream + numbers * GOLDEN_GAMMA)


def uniform_negatives(table: str, count: int) -> FeatureSpec:
    """Returns the feature that holds ``count`` rows of a table."""
    return FeatureSpec(UNIFORM_NEGATIVES, table, count, "none")


def _extended(batch: Batch, ids: np.ndarray) -> Batch:
    return dataclasses.replace(batch, ids={**batch.ids, UNIFORM_NEGATIVES: ids})
