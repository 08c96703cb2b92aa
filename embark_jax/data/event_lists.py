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
from embark_jax.data.columns import PAST, AgeBuckets, Pools
from embark_jax.data.hashed_file import MEND, HashedFile
from embark_jax.data.jagged import Jagged

EVENTS, EVENT_RANGES = "events", (np.dtype(np.int64), 3)
"""The matrix of the samples' ranges: number of the file, and where events begin and end
there."""


class EventFile(HashedFile):
    """A file of events; those of a user lie together, in the order of time."""

    rows: NonNegativeInt


class EventLists(Config):
    """The events of a folder of prepared data.

    Attributes:
      files: the files of events.
      longest: largest number of events of a history.
      sequences: the features that a history becomes: PAST, and a column of events.
      pools: of each pool a history has the latest events; None takes the latest of all.
      ages: of the times of events a history has ages instead.
    """

    files: tuple[EventFile, ...]
    longest: PositiveInt
    sequences: tuple[str, ...]
    pools: Pools | None = None
    ages: AgeBuckets | None = None


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
        self, ranges: np.ndarray, spread: Callable[..., Iterable[Any]] = map
    ) -> dict[str, Jagged]:
        """Returns each sequence's ids, of the type of its table: the latest events, the
        last one at the end; with pools the sequence begins in the first place.

        Args:
          ranges: ``[batch, 3]``, as files of samples hold them.
          spread: a ``map``, such as that of threads.
        """
        lists, longest = self._lists, self._lists.longest
        file, begin, end = ranges.T
        rows = np.array([file.rows for file in lists.files])
        good = (file >= 0) & (file < len(rows)) & (begin >= 0) & (begin <= end)
        good &= end <= rows[np.where(good, file, 0)]
        for sample in np.flatnonzero(~good & ((begin != end) | (begin < 0)))[:1]:
            raise DataError(
                f"{self._folder}: a sample's history is of events {begin[sample]} to "
                f"{end[sample]} of file {file[sample]}, which are not there; {MEND}"
            )
        if lists.pools is None:
            length = np.minimum(end - begin, longest)
            first = end - length - (np.cumsum(length) - length)
            place = np.arange(length.sum()) + np.repeat(first, length)
        else:
            chosen = list(spread(self._of_pools, ranges.tolist()))
            length = np.array([len(places) for places in chosen])
            place = np.concatenate(chosen)
        of_file = np.repeat(file, length)
        values = dict[str, np.ndarray]()
        for number in np.unique(of_file).tolist() or [0]:
            there, events = of_file == number, self._open(number)
            for name in lists.sequences:
                column = events[name.removeprefix(PAST)]
                all_ids = values.setdefault(name, np.empty(len(place), column.dtype))
                all_ids[there] = column[place[there]]
        if lists.ages is not None:
            name = f"{PAST}{lists.ages.column}"
            latest = np.repeat(np.cumsum(length) - 1, length)
            ages = values[name][latest] - values[name]
            values[name] = lists.ages.of(ages)
        length = length.astype(np.int32)
        padding = longest - length if lists.pools is None else np.zeros_like(length)
        return {
            name: Jagged(ids, length, longest=longest, begin=padding)
            for name, ids in values.items()
        }

    def _of_pools(self, of_sample: tuple[int, int, int]) -> np.ndarray:
        """Returns the places of the latest events of each pool, by time."""
        file, begin, end = of_sample
        pools = self._lists.pools
        assert pools is not None
        events = self._open(file)[pools.column][begin:end] if begin < end else begin
        each = self._lists.longest // pools.count
        latest = [np.flatnonzero(events == p)[-each:] for p in range(pools.count)]
        return begin + np.sort(np.concatenate(latest))

    def _open_file(self, number: int) -> dict[str, np.ndarray]:
        table = read_arrow(self._lists.files[number].verified(self._folder))
        return {name: table[name].to_numpy() for name in table.column_names}
