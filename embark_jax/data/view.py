"""Datasets that give the training samples of another one in another order."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping

from embark_jax.data.batch import Batch, Dataset
from embark_jax.plans.tables import FeatureSpec


class DatasetView(abc.ABC):
    """A dataset that is another one but for its training batches; see ``Dataset``."""

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

    def bayes_auc(self) -> float | None:
        return self._dataset.bayes_auc()


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
