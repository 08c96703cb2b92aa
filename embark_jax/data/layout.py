"""A batch as matrices: in files, on hosts and on devices alike.

A batch has a matrix of numbers (labels, dense values, weights) and one of ids, and a
second one of ids if tables need 64 bits. So a file has few columns, a batch reaches a
device in few copies, and all columns of a batch are slices.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

NUMBERS, IDS, LONG_IDS = "numbers", "ids", "long_ids"
TYPES = {
    NUMBERS: np.dtype(np.float32),
    IDS: np.dtype(np.int32),
    LONG_IDS: np.dtype(np.int64),
}
"""Types of the matrices."""


class BatchColumns(NamedTuple):
    """The columns of a batch, as arrays of NumPy or of JAX.

    Attributes:
      dense: ``[batch, dense]`` float32.
      ids: for each feature ``[batch, hotness]`` int32 or int64. Inside a step those of
        a sequence are packed: ``[total]``.
      weights: for each weighted feature float32 of the same shape.
      labels: ``[batch]`` float32; of several tasks ``[batch, tasks]``.
      sample_weights: ``[batch]`` float32, or None.
      spans: for each packed sequence where its events lie: ``[batch, 2]`` int32, place
        of the first and number; inside a step ``embedding.sequences.Spans``.
    """

    dense: Any
    ids: Mapping[str, Any]
    weights: Mapping[str, Any]
    labels: Any
    sample_weights: Any = None
    spans: Mapping[str, Any] = {}


class Layout(NamedTuple):
    """Says which columns of the matrices are what.

    The numbers are the labels, the dense values, the weights of features and the weight
    of the sample; spans lie behind the ids of 32 bits.

    Attributes:
      labels: number of labels of a sample.
      dense: number of dense values.
      ids: name and hotness of each feature, and whether its ids have 64 bits.
      weights: name and hotness of each weighted feature.
      sample_weights: whether samples have a weight.
      spans: sequences whose events are elsewhere, in matrices of their own.
    """

    labels: int = 1
    dense: int = 0
    ids: tuple[tuple[str, int, bool], ...] = ()
    weights: tuple[tuple[str, int], ...] = ()
    sample_weights: bool = False
    spans: tuple[str, ...] = ()

    @property
    def id_columns(self) -> dict[str, tuple[str, slice]]:
        """Matrix and columns of each feature's ids."""
        used = dict.fromkeys(TYPES, 0)
        columns = {}
        for name, hotness, is_long in self.ids:
            matrix = LONG_IDS if is_long else IDS
            first, used[matrix] = used[matrix], used[matrix] + hotness
            columns[name] = matrix, slice(first, used[matrix])
        return columns

    @property
    def weight_columns(self) -> dict[str, slice]:
        """Columns of each weighted feature's weights, among the numbers."""
        ends = itertools.accumulate((n for _, n in self.weights), initial=0)
        before = self.labels + self.dense
        return {
            name: slice(before + end, before + end + hotness)
            for (name, hotness), end in zip(self.weights, ends, strict=False)
        }

    @property
    def widths(self) -> dict[str, int]:
        """Returns the columns of each matrix that there is."""
        numbers = self.labels + self.dense + self.sample_weights
        numbers += sum(hotness for _, hotness in self.weights)
        long_ids = sum(hotness for _, hotness, is_long in self.ids if is_long)
        ids = sum(hotness for _, hotness, is_long in self.ids if not is_long)
        widths = zip(TYPES, (numbers, ids + 2 * len(self.spans), long_ids), strict=True)
        return {name: width for name, width in widths if width}

    @property
    def sample_bytes(self) -> int:
        """Returns the bytes of a sample."""
        return sum(width * TYPES[name].itemsize for name, width in self.widths.items())

    def padding(self, samples: int) -> dict[str, np.ndarray]:
        """Returns new matrices of samples without ids, whose numbers are 0."""
        return {
            name: np.full((samples, width), 0 if name == NUMBERS else -1, TYPES[name])
            for name, width in self.widths.items()
        }

    def columns(self, matrices: Mapping[str, Any]) -> BatchColumns:
        """Returns the columns of matrices, which are slices of them."""
        labels = sample_weights = dense = None
        if NUMBERS in matrices:
            numbers = matrices[NUMBERS]
            labels = numbers[:, : self.labels] if self.labels else None
            labels = numbers[:, 0] if self.labels == 1 else labels
            dense = numbers[:, self.labels : self.labels + self.dense]
        if self.sample_weights:
            sample_weights = matrices[NUMBERS][:, -1]
        ids = {
            name: matrices[matrix][:, columns]
            for name, (matrix, columns) in self.id_columns.items()
        }
        weights = {
            name: matrices[NUMBERS][:, columns]
            for name, columns in self.weight_columns.items()
        }
        first = self.widths.get(IDS, 0) - 2 * len(self.spans)
        spans = {
            name: matrices[IDS][:, first + 2 * i : first + 2 * i + 2]
            for i, name in enumerate(self.spans)
        }
        return BatchColumns(dense, ids, weights, labels, sample_weights, spans)
