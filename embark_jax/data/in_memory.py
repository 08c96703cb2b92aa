"""Datasets whose samples are rows of arrays in memory."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator

import numpy as np

from embark_jax.data.batch import Batch


class InMemory(abc.ABC):
    """A ``Dataset`` of numbered samples, of which a subclass makes batches.

    Args:
      train, validation, test: ``[samples]`` numbers of the samples of each set.
      seed: determines the order of the training samples, anew in each epoch.
    """

    def __init__(
        self, train: np.ndarray, validation: np.ndarray, test: np.ndarray, seed: int
    ):
        self._train = train
        self._validation = validation
        self._test = test
        self._seed = seed
        self.train_samples = len(train)
        # An epoch is shuffled once, not at each of its batches.
        self._epoch = functools.lru_cache(maxsize=1)(self._shuffled)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Returns the batch of training step ``step`` (from 0); may span epochs."""
        positions = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs, samples = np.divmod(positions, self.train_samples)
        numbers = [self._epoch(e)[samples[epochs == e]] for e in np.unique(epochs)]
        return self._batch(np.concatenate(numbers))

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yields the whole validation set once; the last batch may be shorter."""
        return self._in_order(self._validation, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yields the whole test set once; the last batch may be shorter."""
        return self._in_order(self._test, batch_size)

    def bayes_auc(self) -> None:
        """Returns None: it is not known for real data."""
        return None

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self._train)

    def _in_order(self, numbers: np.ndarray, batch_size: int) -> Iterator[Batch]:
        for start in range(0, len(numbers), batch_size):
            yield self._batch(numbers[start : start + batch_size])

    @abc.abstractmethod
    def _batch(self, numbers: np.ndarray) -> Batch:
        """Returns the samples of these numbers."""
