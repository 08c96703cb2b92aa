"""What a dataset is, and datasets that others are made of."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Protocol

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
