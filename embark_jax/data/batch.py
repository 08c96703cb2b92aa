"""What a dataset gives and a train step takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np

from embark_jax.tables import FeatureSpec


class DataError(ValueError):
    """Data that breaks a rule; the message says where, which value, and what to do."""


def id_dtype(rows: int) -> np.dtype:
    """The integers that ids of a table of ``rows`` rows are kept in."""
    return np.dtype(np.int32 if rows <= 2**31 - 1 else np.int64)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples as host arrays, before they go to the devices.

    Attributes:
      dense: ``[batch, dense_features]`` float32.
      ids: for each feature ``[batch, hotness]`` integers, padded with -1.
      labels: ``[batch]`` float32, 0 or 1.
      weights: for each weighted feature ``[batch, hotness]`` float32.
      hot: whether all ids, of all processes' parts of this batch, are promised to be of
        hot rows, so that it may take the step that exchanges nothing for embeddings.
      locate: names where a sample came from, for error messages: maps its index in
        the batch to text such as ``"ml-100k.inter, line 81"``.
    """

    dense: np.ndarray
    ids: Mapping[str, np.ndarray]
    labels: np.ndarray
    weights: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    locate: Callable[[int], str] = "sample {}".format
    hot: bool = False

    def __len__(self) -> int:
        return len(self.labels)


class Dataset(Protocol):
    """Training, validation and test samples in a deterministic order.

    The batch of a training step is a pure function of the dataset, its seed and the
    step, so that the step number alone is the data position of a checkpoint. Sample i
    of a step depends on ``step * batch_size + i`` alone: the part of process p of P is
    ``train_batch(step * P + p, batch_size // P)``.
    """

    @property
    def table_rows(self) -> Mapping[str, int]:
        """Rows that each table needs; config fills in dim and placement."""
        ...

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """In the order that the model's config may rely on."""
        ...

    @property
    def dense_features(self) -> int:
        """Columns of ``Batch.dense``."""
        ...

    @property
    def train_samples(self) -> int:
        """Samples of an epoch."""
        ...

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """The batch of training step ``step`` (from 0); wraps around in epochs."""
        ...

    def validation_batches(self, batch_size: int) -> Iterator[Batch] | None:
        """The whole validation set once; the last batch may be shorter. None if the
        data have no such set."""
        ...

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """The whole test set once; the last batch may be shorter."""
        ...

    def bayes_auc(self) -> float | None:
        """The best AUC any model can reach on the test set, where it is known."""
        ...
