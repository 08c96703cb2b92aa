"""Sorts samples into hot batches and mixed ones, one window of a stream at a time.

A sample is all-hot if all of its ids are of hot rows; a batch of such samples needs no
exchange of embeddings (FAE, https://arxiv.org/abs/2103.00686). FAE sorts the whole
training set beforehand. Here a window of batches is sorted as it comes, so nothing is
written, and a batch stays a pure function of the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from embark_jax.data.batch import Batch, DataError, Dataset
from embark_jax.data.view import DatasetView

WINDOW_BATCHES = 32
"""Number of batches that are sorted together. In each window, up to one batch of
all-hot samples goes into mixed batches: up to 3 % of all samples."""


class _Window(NamedTuple):
    """Batches in their new order.

    Attributes:
      number: number of the window.
      batches: the batches as the dataset gave them.
      order: ``[batches, batch size]`` the samples of the new batches, numbered through
        the window.
      hot: ``[batches]`` whether each new batch is all-hot.
    """

    number: int
    batches: list[Batch]
    order: np.ndarray
    hot: np.ndarray


class HotBatches(DatasetView):
    """A dataset with its training samples in another order; see ``data.Dataset``.

    Each sample stays in its window and occurs once. Batches of both kinds are spread
    evenly over a window.

    Args:
      dataset: the dataset that gives the samples.
      hot_rows: for each feature, how many of its table's first rows are hot.
      batch_size: global batch size: all processes must agree on which batches are
        all-hot.
      window: number of batches that are sorted together.
    """

    def __init__(
        self,
        dataset: Dataset,
        hot_rows: Mapping[str, int],
        batch_size: int,
        window: int = WINDOW_BATCHES,
    ):
        super().__init__(dataset)
        self._hot_rows = dict(hot_rows)
        self._batch_size, self._window_batches = batch_size, window
        self._window: _Window | None = None

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """See ``Dataset``; each process reads the whole window for its part of it."""
        processes, rest = divmod(self._batch_size, batch_size)
        if rest:
            raise DataError(
                f"batches of {self._batch_size} are sorted, cannot be cut into parts "
                f"of {batch_size}"
            )
        global_step, process = divmod(step, processes)
        number, batch = divmod(global_step, self._window_batches)
        window = self._window
        if window is None or window.number != number:
            window = self._window = self._sort(number)
        first = process * batch_size
        samples = window.order[batch, first : first + batch_size]
        return _take(window, samples, bool(window.hot[batch]))

    def _sort(self, number: int) -> _Window:
        size, count = self._batch_size, self._window_batches
        batches = [
            self._dataset.train_batch(number * count + i, size) for i in range(count)
        ]
        all_hot = np.concatenate([self._is_all_hot(batch) for batch in batches])
        samples = np.flatnonzero(all_hot)
        full = len(samples) // size
        # Batch i is all-hot if the share of all-hot batches up to it reaches the next
        # whole number.
        hot = np.diff(np.arange(count + 1) * full // count) > 0
        order = np.empty((count, size), np.int64)
        order[hot] = samples[: full * size].reshape(full, size)
        others = np.ones(count * size, bool)
        others[samples[: full * size]] = False
        order[~hot] = np.flatnonzero(others).reshape(count - full, size)
        return _Window(number, batches, order, hot)

    def _is_all_hot(self, batch: Batch) -> np.ndarray:
        """Returns ``[batch]`` whether all ids of a sample are of hot rows; padding
        counts as hot."""
        cold = [
            (np.asarray(ids) >= self._hot_rows[name]).any(axis=1)
            for name, ids in batch.ids.items()
        ]
        return ~np.any(cold, axis=0)


def _take(window: _Window, samples: np.ndarray, hot: bool) -> Batch:
    batches, size = window.batches, window.order.shape[1]
    of_batch, row = np.divmod(samples, size)

    def pick(arrays: Sequence[Any]) -> np.ndarray:
        picked = np.empty((len(samples), *arrays[0].shape[1:]), arrays[0].dtype)
        for i in np.unique(of_batch):
            picked[of_batch == i] = arrays[i][row[of_batch == i]]
        return picked

    def locate(sample: int) -> str:
        return batches[of_batch[sample]].locate(int(row[sample]))

    first = batches[0]
    weights = [batch.sample_weights for batch in batches]  # all, or none, have some
    return dataclasses.replace(
        first,
        dense=pick([batch.dense for batch in batches]),
        ids={name: pick([batch.ids[name] for batch in batches]) for name in first.ids},
        labels=pick([batch.labels for batch in batches]),
        weights={
            name: pick([batch.weights[name] for batch in batches])
            for name in first.weights
        },
        locate=locate,
        hot=hot,
        sample_weights=None if weights[0] is None else pick(weights),
    )
