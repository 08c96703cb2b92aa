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
SEQUENCES = tuple(f"past_{name}" for name in COLUMNS)


class EventFile(HashedFile):
    """A file of events; those of a user lie together, in the order of time."""

    rows: NonNegativeInt


class EventLists(Config):
    """The events of a folder of prepared data.

    Attributes:
      files: the files of events.
      longest: largest number of events of a history: the last third of so many of
        each action.
    """

    files: tuple[EventFile, ...]
    longest: PositiveInt


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
        """Returns each sequence's ids, int32.

        Args:
          ranges: ``[batch, 3]``, as files of samples hold them.
          spread: a ``map``, such as that of threads.
        """

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

    def _history(self, file: int, begin: int, end: int) -> Events:
        if begin == end:
            return {name: np.empty(0, np.uint32) for name in COLUMNS}
        files, longest = self._lists.files, self._lists.longest
        if not (0 <= file < len(files) and 0 <= begin < end <= files[file].rows):
            raise DataError(
                f"{self._folder}: a sample's history is of events {begin} to {end} of "
                f"file {file}, which are not there; {MEND}"
            )
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
        return {name: table[name].to_numpy() for name in COLUMNS}


def time_bucket(times: np.ndarray) -> np.ndarray:
    """Returns the bucket of the time of each event before the last: the square root of
    minutes, as in MLPerf's reference."""
    if not len(times):
        return np.zeros(0, np.int64)
    minutes = np.maximum(0, times[-1].astype(np.int64) - times) / 60
    return np.minimum(np.sqrt(minutes), TIME_BUCKETS).astype(np.int64)
