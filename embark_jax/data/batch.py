"""Batches, which datasets give and train steps take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from embark_jax._base.errors import DataError as DataError
from embark_jax.data.jagged import Jagged
from embark_jax.data.layout import Layout
from embark_jax.plans.tables import PADDING_ID


def is_long(rows: int) -> bool:
    """Says whether ids of a table of ``rows`` rows need 64 bits."""
    return rows > 2**31 - 1


def id_dtype(rows: int) -> np.dtype:
    """Returns the integer type for ids of a table of ``rows`` rows."""
    return np.dtype(np.int64 if is_long(rows) else np.int32)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples as host arrays, before they go to the devices.

    Attributes:
      dense: ``[batch, dense_features]`` float32.
      ids: for each feature ``[batch, hotness]`` integers, padded with -1, which is no
        key of a dynamic table, either: who has such a key gives it another number. For
        a sequence, ``Jagged`` ones may stand for them, as in checked batches they do.
      labels: ``[batch]`` float32, 0 or 1; with several labels a sample ``[batch,
        tasks]``, NaN where a sample lacks one: it has no loss for this task, and does
        not count in its metrics.
      weights: for each weighted feature ``[batch, hotness]`` float32; like its ids.
      hot: whether all ids of this batch, in all processes, are known to be
        of hot rows, so that its step may exchange nothing for embeddings.
      locate: says in error messages where a sample came from: maps its index in the
        batch to text such as ``"ml-100k.inter, line 81"``.
      sample_weights: ``[batch]`` float32, 0 or more: the factor of each sample's loss,
        and its weight in metrics; None weighs all alike.
      stored: layout and matrices, if the arrays above are slices of them;
        ``dataclasses.replace`` drops it.
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
    stored: tuple[Layout, Mapping[str, np.ndarray]] | None = dataclasses.field(
        default=None, init=False
    )
    checked_rows: Mapping[str, int] = dataclasses.field(
        default_factory=dict, init=False
    )

    @classmethod
    def of(
        cls,
        layout: Layout,
        matrices: Mapping[str, np.ndarray],
        locate: Callable[[int], str] = "sample {}".format,
        checked_rows: Mapping[str, int] | None = None,
    ) -> Batch:
        """Makes a batch of matrices, without copying them."""
        columns = layout.columns(matrices)
        batch = cls(
            columns.dense,
            columns.ids,
            columns.labels,
            columns.weights,
            locate,
            sample_weights=columns.sample_weights,
        )
        object.__setattr__(batch, "stored", (layout, matrices))
        object.__setattr__(batch, "checked_rows", checked_rows or {})
        return batch

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sequences(self) -> dict[str, Jagged]:
        """The ids that are ``Jagged``."""
        return {n: ids for n, ids in self.ids.items() if isinstance(ids, Jagged)}

    def matrices(self) -> tuple[Layout, Mapping[str, np.ndarray]]:
        """Returns layout and matrices of the batch: its own, or else a copy of its
        arrays. Of ``Jagged`` sequences they have the spans.

        Raises:
          ValueError: if an array does not have the shape and type of a checked batch.
        """
        if self.stored is not None:
            return self.stored
        ids, weights = (
            {name: x for name, x in columns.items() if isinstance(x, np.ndarray)}
            for columns in (self.ids, self.weights)
        )
        layout = Layout(
            self.labels.shape[1] if self.labels.ndim == 2 else 1,
            self.dense.shape[-1],
            tuple((n, x.shape[-1], x.dtype == np.int64) for n, x in ids.items()),
            tuple((name, x.shape[-1]) for name, x in weights.items()),
            self.sample_weights is not None,
            tuple(self.sequences),
        )
        matrices = layout.padding(len(self))
        columns = layout.columns(matrices)
        pairs = [
            ("labels", self.labels, columns.labels),
            ("dense values", self.dense, columns.dense),
            ("sample weights", self.sample_weights, columns.sample_weights),
            *((f"ids of feature {n!r}", x, columns.ids[n]) for n, x in ids.items()),
            *((f"weights of {n!r}", x, columns.weights[n]) for n, x in weights.items()),
            *(
                (f"spans of {name!r}", jagged.spans, columns.spans[name])
                for name, jagged in self.sequences.items()
            ),
        ]
        for what, values, column in pairs:
            if values is None:
                continue
            if (values.dtype, values.shape) != (column.dtype, column.shape):
                raise ValueError(
                    f"{what} are {values.dtype} of shape {values.shape}, must be "
                    f"{column.dtype} of shape {column.shape}"
                )
            column[...] = values
        return layout, matrices

    def take(self, samples: np.ndarray) -> Batch:
        """Returns a copy of the samples of these numbers, in this order."""
        layout, matrices = self.matrices()
        taken = Batch.of(layout, {name: m[samples] for name, m in matrices.items()})
        return self._with_sequences(taken, lambda jagged: jagged.take(samples))

    def part(self, first: int, stop: int) -> Batch:
        """Returns neighbouring samples; those beyond the last have no ids, and numbers
        0."""
        layout, matrices = self.matrices()
        if stop > len(self):
            padding = layout.padding(stop - len(self))
            matrices = {
                name: np.concatenate([matrix, padding[name]])
                for name, matrix in matrices.items()
            }
        part = Batch.of(
            layout,
            {name: matrix[first:stop] for name, matrix in matrices.items()},
            lambda sample: self.locate(first + sample),
        )
        return self._with_sequences(part, lambda jagged: jagged.samples(first, stop))

    def _with_sequences(
        self, samples: Batch, select: Callable[[Jagged], Jagged]
    ) -> Batch:
        """Returns some samples with what is selected of each ``Jagged`` column."""
        if not self.sequences:
            return samples
        ids, weights = (
            {
                name: select(column) if isinstance(column, Jagged) else of_samples[name]
                for name, column in columns.items()
            }
            for columns, of_samples in (
                (self.ids, samples.ids),
                (self.weights, samples.weights),
            )
        )
        return dataclasses.replace(samples, ids=ids, weights=weights)


def feature_statistics(batch: Batch) -> list[str]:
    """Describes each column of a batch on a line, to find where a NaN came from."""
    columns = {"labels": batch.labels}
    columns |= {f"dense[{i}]": column for i, column in enumerate(batch.dense.T)}
    columns |= {f"weights of {n}": np.asarray(w) for n, w in batch.weights.items()}
    if batch.sample_weights is not None:
        columns["sample weights"] = batch.sample_weights
    lines = []
    for name, values in columns.items():
        finite = values[np.isfinite(values)]
        bad = f"{values.size - finite.size} of {values.size} not finite"
        if finite.size:
            mean = finite.mean(dtype=np.float64)
            limits = f"min {finite.min():.4g}, max {finite.max():.4g}"
            bad = f"{limits}, mean {mean:.4g}, {bad}"
        lines.append(f"{name}: {bad}")
    for name, ids in batch.ids.items():
        ids = np.asarray(ids)
        real = ids[ids != PADDING_ID]
        found = f"{ids.size - real.size} padding"
        if real.size:
            unique = np.unique(real).size
            found = (
                f"min {real.min()}, max {real.max()}, {unique} unique of {real.size}, "
                f"{found}"
            )
        lines.append(f"ids of {name}: {found}")
    return lines
