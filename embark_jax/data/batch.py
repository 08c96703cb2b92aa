"""Batches, which datasets give and train steps take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np

from embark_jax._base.errors import DataError as DataError
from embark_jax.data.jagged import Jagged
from embark_jax.data.records import layout
from embark_jax.plans.tables import FeatureSpec


def id_dtype(rows: int) -> np.dtype:
    """Returns the integer type for ids of a table of ``rows`` rows."""
    return np.dtype(np.int32 if rows <= 2**31 - 1 else np.int64)


def tasks_in(labels: np.ndarray) -> int:
    """Returns the number of labels of a sample, if there are several, otherwise 0."""
    shape = np.shape(labels)
    return shape[1] if len(shape) == 2 and shape[1] > 1 else 0


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples as host arrays, before they go to the devices.

    Attributes:
      dense: ``[batch, dense_features]`` float32.
      ids: for each feature ``[batch, hotness]`` integers, padded with -1, which is no
        key of a dynamic table, either: who has such a key gives it another number. For
        a sequence, ``Jagged`` ones may stand for them, as in checked batches they do.
      labels: ``[batch]`` float32, 0 or 1; with several labels a sample ``[batch,
        tasks]``.
      weights: for each weighted feature ``[batch, hotness]`` float32; like its ids.
      hot: whether all ids of this batch, in all processes, are known to be
        of hot rows, so that its step may exchange nothing for embeddings.
      locate: says in error messages where a sample came from: maps its index in the
        batch to text such as ``"ml-100k.inter, line 81"``.
      sample_weights: ``[batch]`` float32, 0 or more: the factor of each sample's loss,
        and its weight in metrics; None weighs all alike.
      records: ``[batch]`` records of ``data.records.layout``, if the arrays above are
        views of them; ``dataclasses.replace`` drops it.
      checked_rows: for each feature, a number of rows that its ids are known to be
        below, if the whole batch was checked before; empty if nothing is known.
    """

    dense: np.ndarray
    ids: Mapping[str, np.ndarray | Jagged]
    labels: np.ndarray
    weights: Mapping[str, np.ndarray | Jagged] = dataclasses.field(default_factory=dict)
    locate: Callable[[int], str] = "sample {}".format
    hot: bool = False
    sample_weights: np.ndarray | None = None
    records: np.ndarray | None = dataclasses.field(default=None, init=False)
    checked_rows: Mapping[str, int] = dataclasses.field(
        default_factory=dict, init=False
    )

    @classmethod
    def of(
        cls,
        records: np.ndarray,
        locate: Callable[[int], str] = "sample {}".format,
        checked_rows: Mapping[str, int] | None = None,
    ) -> Batch:
        """Makes a batch of records, without copying them."""
        kinds = records.dtype.names or ()
        fields = {
            kind: {
                name: records[kind][name] for name in records[kind].dtype.names or ()
            }
            for kind in ("ids", "weights")
            if kind in kinds
        }
        batch = cls(
            records["dense"],
            fields["ids"],
            records["label"],
            fields.get("weights", {}),
            locate,
            sample_weights=records["sample_weight"]
            if "sample_weight" in kinds
            else None,
        )
        object.__setattr__(batch, "records", records)
        object.__setattr__(batch, "checked_rows", checked_rows or {})
        return batch

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sequences(self) -> dict[str, Jagged]:
        """The ids that are ``Jagged``."""
        return {n: ids for n, ids in self.ids.items() if isinstance(ids, Jagged)}

    def to_records(self) -> np.ndarray:
        """Returns the batch as records: its own, or else a copy of its arrays. Of
        ``Jagged`` sequences they have the spans.

        Raises:
          ValueError: if an array does not have the shape and type of a checked batch.
        """
        if self.records is not None:
            return self.records
        dense = self.dense.shape[-1] if np.ndim(self.dense) else 0
        arrays = {
            kind: {n: x for n, x in columns.items() if isinstance(x, np.ndarray)}
            for kind, columns in (("ids", self.ids), ("weights", self.weights))
        }
        sequences = self.sequences
        records = np.empty(
            len(self),
            layout(
                dense,
                tuple((n, x.shape[-1], x.dtype) for n, x in arrays["ids"].items()),
                tuple((n, x.shape[-1]) for n, x in arrays["weights"].items()),
                tasks_in(self.labels),
                self.sample_weights is not None,
                spans=tuple(sequences),
            ),
        )
        columns = [("labels", self.labels, records["label"])]
        columns.append(("dense values", self.dense, records["dense"]))
        if self.sample_weights is not None:
            weights = "sample weights", self.sample_weights, records["sample_weight"]
            columns.append(weights)
        for kind, of_kind in arrays.items():
            for name, values in of_kind.items():
                what = f"{kind} of feature {name!r}"
                if values.dtype == bool:
                    values = values.astype(np.int32)
                columns.append((what, values, records[kind][name]))
        for name, jagged in sequences.items():
            spans = np.stack([jagged.begin, jagged.length], axis=1, dtype=np.int32)
            columns.append((f"spans of {name!r}", spans, records["spans"][name]))
        for what, values, column in columns:
            if (values.dtype, values.shape) != (column.dtype, column.shape):
                raise ValueError(
                    f"{what} are {values.dtype} of shape {values.shape}, must be "
                    f"{column.dtype} of shape {column.shape}"
                )
            column[...] = values
        return records


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

    def bayes_auc(self) -> float | None:
        """Returns the best AUC that any model can reach on the test set, if it is
        known."""
        ...
