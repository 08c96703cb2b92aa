"""Sorts samples into hot batches and mixed ones, one window of a stream at a time.

A sample is all-hot if all of its ids are of hot rows; a batch of such samples needs no
exchange of embeddings (FAE, https://arxiv.org/abs/2103.00686). FAE sorts the whole
training set beforehand. Here a window of batches is sorted as it comes, so nothing is
written, and a batch stays a pure function of the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from embark_jax.data.batch import Batch, DataError
from embark_jax.data.dataset import Dataset, DatasetView

WINDOW_BATCHES = 32
"""Number of batches that are sorted together. In each window, up to one batch of
all-hot samples goes into mixed batches: up to 3 % of all samples."""


class _Window(NamedTuple):
    """Batches in their new order.

    Attributes:
      number: number of the window.
      samples: all of their samples, as the dataset gave them.
      order: ``[batches, batch size]`` the samples of the new batches.
      hot: ``[batches]`` whether each new batch is all-hot.
    """

    number: int
    samples: Batch
    order: np.ndarray
    hot: np.ndarray


class HotBatches(DatasetView):
    """A dataset with its training samples in another order; see ``data.Dataset``.

    Each sample stays in its window and occurs once. Batches of one kind follow each
    other, since a step makes the routes of a batch of its own kind ahead; windows begin
    with the kind that the one before ended with, so that kinds change once in each.

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
        chosen = window.order[batch, first : first + batch_size]
        return _picked(window.samples, chosen, bool(window.hot[batch]))

    def _sort(self, number: int) -> _Window:
        size, count = self._batch_size, self._window_batches
        samples = _joined(
            [self._dataset.train_batch(number * count + i, size) for i in range(count)]
        )
        cold = [
            (np.asarray(ids) >= self._hot_rows[name]).any(axis=1)
            for name, ids in samples.ids.items()
        ]
        all_hot = np.flatnonzero(~np.any(cold, axis=0))  # padding counts as hot
        full = len(all_hot) // size
        hot = np.arange(count) < full
        if number % 2:
            hot = hot[::-1]
        order = np.empty((count, size), np.int64)
        order[hot] = all_hot[: full * size].reshape(full, size)
        others = np.ones(count * size, bool)
        others[all_hot[: full * size]] = False
        order[~hot] = np.flatnonzero(others).reshape(count - full, size)
        return _Window(number, samples, order, hot)


def _joined(batches: Sequence[Batch]) -> Batch:
    """Returns the samples of batches of one size as one."""

    def locate(sample: int) -> str:
        batch, place = divmod(sample, len(batches[0]))
        return batches[batch].locate(place)

    def join(column: Callable[[Batch], Any]) -> Any:
        return np.concatenate([np.asarray(column(batch)) for batch in batches])

    return dataclasses.replace(_changed(batches[0], join), locate=locate)


def _picked(batch: Batch, samples: np.ndarray, hot: bool) -> Batch:
    """Returns some samples."""
    picked = _changed(batch, lambda column: column(batch)[samples])
    return dataclasses.replace(
        picked, locate=lambda sample: batch.locate(int(samples[sample])), hot=hot
    )


def _changed(batch: Batch, change: Callable[[Callable[[Batch], Any]], Any]) -> Batch:
    """Returns a batch like another, with what ``change`` makes of each column, which a
    function takes from a batch."""
    return Batch(
        change(lambda each: each.dense),
        {name: change(lambda each, n=name: each.ids[n]) for name in batch.ids},
        change(lambda each: each.labels),
        {name: change(lambda each, n=name: each.weights[n]) for name in batch.weights},
        sample_weights=None
        if batch.sample_weights is None
        else change(lambda each: each.sample_weights),
    )
