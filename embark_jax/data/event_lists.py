"""Lists of users' events, of which each sample of prepared data sees a range.

Histories are not written out per sample, which would take thousands of bytes each: they
are gathered when a batch is read, of the events before the sample's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.errors import DataError
from embark_jax._base.files import read_arrow
from embark_jax.data.columns import PAST
from embark_jax.data.hashed_file import MEND, HashedFile
from embark_jax.data.jagged import Jagged

COLUMNS = ("item", "artist", "album", "time", "action")
"""Columns of events, in the order of the sequences."""
Events = dict[str, np.ndarray]
"""The columns of some events."""
EVENTS, EVENT_RANGES = "events", (np.dtype(np.int64), 3)
"""The matrix of the samples' ranges: number of the file, and where events begin and end
there."""
POOLS = 3
"""Actions: a long listen, a like, a skip."""
CANDIDATE_ACTION = POOLS
TIME_BUCKETS = 2048
SEQUENCES = tuple(f"{PAST}{name}" for name in COLUMNS)
"""The sequences of Yambda."""


class EventFile(HashedFile):
    """A file of events; those of a user lie together, in the order of time."""

    rows: NonNegativeInt


class EventLists(Config):
    """The events of a folder of prepared data.

    Attributes:
      files: the files of events.
      longest: largest number of events of a history.
      sequences: the features that a history becomes: PAST, and a column of events.
      pools: whether a history has the last third of so many events of each action, and
        buckets of times, as in MLPerf's DLRMv4; otherwise it has the latest events.
    """

    files: tuple[EventFile, ...]
    longest: PositiveInt
    sequences: tuple[str, ...] = SEQUENCES
    pools: bool = True


class Histories:
    """Gathers histories.

    Args:
      folder: folder of the prepared data.
      lists: its events.

    Raises:
      DataError: if a file is not as it was written.
    """

    def __init__(self, folder: Path, lists: EventLists):
        self._folder, self._lists = folder, lists
        self._open = functools.cache(self._open_file)

    def of(
        self, ranges: np.ndarray, spread: Callable[..., Iterable[Any]]
    ) -> dict[str, Jagged]:
        """Returns each sequence's ids, of the type of its table.

        Args:
          ranges: ``[batch, 3]``, as files of samples hold them.
          spread: a ``map``, such as that of threads.
        """

        if not self._lists.pools:
            return self._latest(ranges)

        def columns_of(sample: int) -> list[np.ndarray]:
            events = self._history(*ranges[sample].tolist())
            events["time"] = time_bucket(events["time"])
            return [events[name].astype(np.int32) for name in COLUMNS]

        of_samples = list(spread(columns_of, range(len(ranges))))
        length = np.array([len(item) for item, *_ in of_samples], np.int32)
        return {
            name: Jagged(np.concatenate(values), length, longest=self._lists.longest)
            for name, values in zip(
                SEQUENCES, zip(*of_samples, strict=True), strict=True
            )
        }

    def _latest(self, ranges: np.ndarray) -> dict[str, Jagged]:
        """Returns the latest events of each sample, the last one at the end."""
        longest = self._lists.longest
        file, begin, end = ranges.T
        rows = np.array([file.rows for file in self._lists.files])
        good = (file >= 0) & (file < len(rows)) & (begin >= 0) & (begin <= end)
        good &= end <= rows[np.where(good, file, 0)]
        for sample in np.flatnonzero(~good)[:1]:
            self._check(*ranges[sample].tolist())
        length = np.minimum(end - begin, longest)
        first = end - length - (np.cumsum(length) - length)
        place = np.arange(length.sum()) + np.repeat(first, length)
        of_file = np.repeat(file, length)
        values = dict[str, np.ndarray]()
        for number in np.unique(of_file).tolist() or [0]:
            there, events = of_file == number, self._open(number)
            for name in self._lists.sequences:
                column = events[name.removeprefix(PAST)]
                all_ids = values.setdefault(name, np.empty(len(place), column.dtype))
                all_ids[there] = column[place[there]]
        length = length.astype(np.int32)
        return {
            name: Jagged(ids, length, longest=longest, begin=longest - length)
            for name, ids in values.items()
        }

    def _check(self, file: int, begin: int, end: int) -> None:
        """Raises ``DataError`` if a sample's events are not there."""
        files = self._lists.files
        if begin == end:
            return
        if not (0 <= file < len(files) and 0 <= begin < end <= files[file].rows):
            raise DataError(
                f"{self._folder}: a sample's history is of events {begin} to {end} of "
                f"file {file}, which are not there; {MEND}"
            )

    def _history(self, file: int, begin: int, end: int) -> Events:
        self._check(file, begin, end)
        if begin == end:
            return {name: np.empty(0, np.uint32) for name in COLUMNS}
        longest = self._lists.longest
        columns = self._open(file).items()
        events = {name: column[begin:end] for name, column in columns}
        action = events["action"]
        of_pools = [
            np.flatnonzero(action == pool)[-(longest // POOLS) :]
            for pool in range(POOLS)
        ]
        chosen = np.sort(np.concatenate(of_pools))
        return {name: column[chosen] for name, column in events.items()}

    def _open_file(self, number: int) -> Events:
        table = read_arrow(self._lists.files[number].verified(self._folder))
        return {name: table[name].to_numpy() for name in table.column_names}


def time_bucket(times: np.ndarray) -> np.ndarray:
    """Returns the bucket of the time of each event before the last: the square root of
    minutes, as in MLPerf's reference."""
    if not len(times):
        return np.zeros(0, np.int64)
    minutes = np.maximum(0, times[-1].astype(np.int64) - times) / 60
    return np.minimum(np.sqrt(minutes), TIME_BUCKETS).astype(np.int64)
