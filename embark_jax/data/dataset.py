"""What a dataset is, and datasets that others are made of."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from embark_jax.data.batch import Batch
from embark_jax.plans.tables import FeatureSpec


class Dataset(Protocol):
    """Training, validation and test samples in a deterministic order.

    The batch of a training step is a pure function of the dataset, its seed and the
    step, so that the step number alone is the data position of a checkpoint. The
    samples of a step are those from position ``step * batch_size`` on, in any order:
    the batches ``train_batch(step * P + p, batch_size // P)`` of P processes together
    have those of ``train_batch(step, batch_size)``.
    """

    @property
    def table_rows(self) -> Mapping[str, int]:
        """Returns the number of rows that each table needs; the config gives dim and
        placement."""
        ...

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """Returns the features, in an order that the model's config may rely on."""
        ...

    @property
    def dense_features(self) -> int:
        """Returns the number of columns of ``Batch.dense``."""
        ...

    @property
    def train_samples(self) -> int:
        """Returns the number of samples of an epoch."""
        ...

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Returns the batch of training step ``step`` (from 0); wraps around in
        epochs."""
        ...

    def validation_batches(self, batch_size: int) -> Iterator[Batch] | None:
        """Yields the whole validation set once; the last batch may be shorter. Returns
        None if the data have no such set."""
        ...

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yields the whole test set once; the last batch may be shorter."""
        ...


class DatasetView(abc.ABC):
    """A dataset that is another one but for its training batches."""

    def __init__(self, dataset: Dataset):
        self._dataset = dataset

    @property
    def table_rows(self) -> Mapping[str, int]:
        return self._dataset.table_rows

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        return self._dataset.features

    @property
    def dense_features(self) -> int:
        return self._dataset.dense_features

    @property
    def train_samples(self) -> int:
        return self._dataset.train_samples

    @abc.abstractmethod
    def train_batch(self, step: int, batch_size: int) -> Batch: ...

    def validation_batches(self, batch_size: int) -> Iterator[Batch] | None:
        return self._dataset.validation_batches(batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return self._dataset.test_batches(batch_size)


class FromStep(DatasetView):
    """A dataset whose first batch is that of step ``first``: for a run that goes on
    counting the steps of the run that it starts from."""

    def __init__(self, dataset: Dataset, first: int, batch_size: int):
        super().__init__(dataset)
        self._first_sample = first * batch_size

    def train_batch(self, step: int, batch_size: int) -> Batch:
        return self._dataset.train_batch(
            step - self._first_sample // batch_size, batch_size
        )


class InMemory(abc.ABC):
    """A ``Dataset`` of numbered samples in memory, of which a subclass makes batches.

    Args:
      train, validation, test: ``[samples]`` numbers of the samples of each set.
      seed: determines the order of the training samples, anew in each epoch.
    """

    def __init__(
        self, train: np.ndarray, validation: np.ndarray, test: np.ndarray, seed: int
    ):
        self._train, self._validation, self._test = train, validation, test
        self._seed = seed
        self.train_samples = len(train)
        # An epoch is shuffled once, not at each of its batches.
        self._epoch = functools.lru_cache(maxsize=1)(self._shuffled)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        positions = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs, samples = np.divmod(positions, self.train_samples)
        numbers = [self._epoch(e)[samples[epochs == e]] for e in np.unique(epochs)]
        return self._batch(np.concatenate(numbers))

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        return self._in_order(self._validation, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return self._in_order(self._test, batch_size)

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self._train)

    def _in_order(self, numbers: np.ndarray, batch_size: int) -> Iterator[Batch]:
        for start in range(0, len(numbers), batch_size):
            yield self._batch(numbers[start : start + batch_size])

    @abc.abstractmethod
    def _batch(self, numbers: np.ndarray) -> Batch:
        """Returns the samples of these numbers."""
