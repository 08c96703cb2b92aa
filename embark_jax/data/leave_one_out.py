"""The next item of each user, by the protocol of next-item papers: leave one out."""

from __future__ import annotations

import numpy as np

from embark_jax.data.batch import Batch, id_dtype
from embark_jax.data.dataset import InMemory
from embark_jax.plans.tables import PADDING_ID, FeatureSpec


class LeaveOneOut(InMemory):
    """A ``Dataset`` of users' events in order: the last event of each user is a test
    sample, the one before it a validation sample, and those before train.

    A sample has an item, and in the sequence ``earlier_items`` the user's events before
    it, the latest at the end. All labels are 1. Users of fewer than three events train
    alone. Protocol: https://arxiv.org/abs/1808.09781, section IV-A.

    Args:
      users: ``[events]`` user of each event, ascending; events of one are in order.
      items: ``[events]`` item of each event, from 0.
      rows: number of items.
      length: largest number of earlier items.
      stride: every so many events of a user make a training sample, counted from the
        last one. ``length + 1`` trains on each event once where the model predicts
        every event of a sequence.
      seed: determines the order of the training samples, anew in each epoch.

    Raises:
      ValueError: if there are no events, or users are not ascending.
    """

    dense_features = 0

    def __init__(
        self,
        users: np.ndarray,
        items: np.ndarray,
        rows: int,
        *,
        length: int,
        stride: int = 1,
        seed: int = 0,
    ):
        if not len(users) or (np.diff(users) < 0).any():
            raise ValueError("there must be events, and users must be ascending")
        self.table_rows = {"item": rows}
        self.features = (
            FeatureSpec("item"),
            FeatureSpec("earlier_items", "item", length, "none"),
        )
        self._length = length
        self._items = np.asarray(items).astype(id_dtype(rows))
        _, first, counts = np.unique(users, return_index=True, return_counts=True)
        self._first = np.repeat(first, counts)  # event of each event's user
        end = first + counts
        tested = counts >= 3
        train = [
            np.arange(stop - 1, start, -stride)
            for start, stop in zip(first, np.where(tested, end - 2, end), strict=True)
        ]
        super().__init__(np.concatenate(train), end[tested] - 2, end[tested] - 1, seed)

    def _batch(self, events: np.ndarray) -> Batch:
        """Returns samples whose items are those of these events."""
        past = earlier(self._items, self._first[events], events, self._length)
        ids = {"item": self._items[events][:, None], "earlier_items": past}
        samples = len(events)
        return Batch(
            np.zeros((samples, 0), np.float32),
            ids,
            np.ones(samples, np.float32),
            locate=lambda i: f"event {events[i]} of all users' events",
        )


def earlier(
    items: np.ndarray, first: np.ndarray, end: np.ndarray, length: int
) -> np.ndarray:
    """Returns the items of events before others: ``[events, length]``, the latest at
    the end, padded with -1 in front.

    Args:
      items: the item of every event; events of one user are together, in order.
      first, end: ``[events]`` where those of each one's user begin, and where those
        before it end.
      length: largest number of earlier items.
    """
    places = end[:, None] - np.arange(length, 0, -1)
    padding = items.dtype.type(PADDING_ID)
    return np.where(places >= first[:, None], items[np.maximum(places, 0)], padding)
