"""Writes the events and the samples of Yambda, a group of users at a time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import NonNegativeInt, PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.files import read_arrow, replacing
from embark_jax.data import event_lists as lists
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import id_dtype
from embark_jax.data.event_lists import EventFile
from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.manifest import Manifest, SampleFile
from embark_jax.data.prepare.sequences import History

DAY_S, HOUR_S = 86_400, 3_600
EVENT_TYPES = ("listen", "like", "dislike", "unlike", "undislike")
LISTEN, LIKE = 0, 1
CROSSES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "user_x_artist": (("uid", "artist"), 100_000_000),
    "user_x_album": (("uid", "album"), 40_000_000),
    "user_x_hour": (("uid", "hour"), 24_000_000),
    "item_x_hour": (("item", "hour"), 40_000_000),
    "artist_x_hour": (("artist", "hour"), 32_000_000),
    "user_x_is_organic": (("uid", "is_organic"), 2_000_000),
    "user_x_artist_x_hour": (("uid", "artist", "hour"), 40_000_000),
}
"""What each cross is of, and the number of rows that it is hashed to."""
USERS = History("uid", "timestamp", {}, 0)


class Options(Config):
    """The keys that ``embark data prepare yambda`` takes."""

    longest: PositiveInt = 4086
    """Largest number of events of a history."""
    history: Literal["pools", "last"] = "pools"
    """Events of a history: the last third of ``longest`` of each of three actions (long
    listens, likes, skips), or the last events."""
    min_history: NonNegativeInt = 4086
    """Number of a user's events before the first sample."""
    scan: PositiveInt = 20_000
    """How many of the latest events a history is chosen from."""
    most_cross_rows: PositiveInt = 100_000_000
    """Most rows of a table of crosses."""
    window: PositiveInt = DAY_S
    """Length of a time window in seconds."""


class RowGroup(NamedTuple):
    """Events of a row group, ordered by the hashes of users."""

    path: Path
    rows: int
    largest_item: int
    largest_user: int


class Group(NamedTuple):
    """What was written of a group of users."""

    events: EventFile
    records: tuple[SampleFile, ...]


class GroupWriter:
    """Writes the events and samples of a group of users."""

    def __init__(
        self,
        out: Path,
        manifest: Manifest,
        options: Options,
        items: np.ndarray,
        row_groups: Sequence[RowGroup],
        count: int,
    ):
        self._out = out
        self._manifest, self._options = manifest, options
        self._items, self._row_groups = items, row_groups
        hashes = (np.arange(1, count) / count * 2.0**64).astype(np.uint64)
        self._cuts = [
            [0, *_hash_cuts(row_group.path, hashes), row_group.rows]
            for row_group in row_groups
        ]

    def __call__(self, number: int) -> Group:
        slices = [
            read_arrow(row_group.path).slice(
                cuts[number], cuts[number + 1] - cuts[number]
            )
            for row_group, cuts in zip(self._row_groups, self._cuts, strict=True)
        ]
        return self._write(number, pa.concat_tables(slices))

    def _write(self, number: int, table: pa.Table) -> Group:
        raw = {name: table[name].to_numpy() for name in table.column_names}
        order = np.lexsort([raw["timestamp"], raw["uid"]])
        raw = {name: column[order] for name, column in raw.items()}
        pool = np.select(
            [(raw["kind"] == LISTEN) & (raw["is_long"] == 1), raw["kind"] == LIKE],
            [0, 1],
            2,
        )
        in_pool = raw["kind"] <= LIKE
        events = np.empty(int(in_pool.sum()), lists.EVENT)
        events["item"] = raw["item_id"][in_pool]
        events["time"] = raw["timestamp"][in_pool]
        events["action"] = pool[in_pool]
        name = f"events/{number:06}.npy"
        with replacing(self._out / name) as scratch, scratch.open("wb") as file:
            np.save(file, events)
        starts = np.flatnonzero(np.diff(raw["uid"], prepend=-1))
        of_user = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        before = np.cumsum(in_pool) - in_pool
        earlier = np.arange(len(order)) - starts[of_user]
        is_sample = raw["kind"] == LISTEN
        is_sample &= earlier >= self._options.min_history
        chosen = np.flatnonzero(is_sample)
        end = before[chosen]
        first = before[starts[of_user[chosen]]]
        ranges = np.stack(
            [
                np.full(len(chosen), number),
                np.maximum(first, end - self._options.scan),
                end,
            ],
            axis=1,
        )
        records = self._records(raw, chosen, ranges, events)
        return Group(
            events=EventFile.of(self._out, name, rows=len(events)),
            records=tuple(self._by_window(number, raw["timestamp"][chosen], records)),
        )

    def _records(
        self,
        raw: Mapping[str, np.ndarray],
        chosen: np.ndarray,
        ranges: np.ndarray,
        events: np.ndarray,
    ) -> np.ndarray:
        """Returns samples of the manifest's layout."""
        time = raw["timestamp"][chosen].astype(np.int64)
        item = raw["item_id"][chosen].astype(np.int64)
        values = {
            "item": item,
            "artist": self._items["artist"][item].astype(np.int64),
            "album": self._items["album"][item].astype(np.int64),
            "uid": raw["uid"][chosen],
            "hour": time // HOUR_S % 24,
            "is_organic": raw["is_organic"][chosen].astype(np.int64),
            "time": np.zeros(len(chosen), np.int64),
            "action": np.full(len(chosen), lists.CANDIDATE_ACTION),
        }
        rows = self._manifest.table_rows
        for name, (keys, _) in CROSSES.items():
            values[name] = cross([values[key] for key in keys], rows[name])
        records = np.zeros(len(chosen), self._manifest.layout())
        records["label"] = raw["is_long"][chosen]
        # The time of the request is that of the last event, as in the reference.
        has_history = ranges[:, 2] > ranges[:, 1]
        time[has_history] = events["time"][ranges[has_history, 2] - 1]
        records["dense"] = cyclical(time)
        for name in records["ids"].dtype.names or ():
            records["ids"][name] = values[name][:, None].astype(id_dtype(rows[name]))
        records["events"] = ranges
        return records

    def _by_window(self, number: int, times: np.ndarray, records: np.ndarray):
        windows = times.astype(np.int64) // self._options.window * self._options.window
        for window in np.unique(windows):
            file = f"train/{window:012}-{number:06}.arrow"
            samples = records[windows == window]
            yield manifests.write_samples(
                self._out, file, samples, self._manifest, int(window)
            )


def _hash_cuts(path: Path, hashes: np.ndarray) -> list[int]:
    return np.searchsorted(USERS.hashes(read_arrow(path)), hashes).tolist()


def cross(values: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Returns rows of a table of crosses by a hash of several values of each sample."""
    hashes = np.zeros(len(values[0]), np.uint64)
    for column in values:
        hashes = splitmix64((hashes ^ column.astype(np.uint64)) + GOLDEN_GAMMA)
    return (hashes % np.uint64(rows)).astype(np.int64)


def cyclical(times: np.ndarray) -> np.ndarray:
    """Returns cosine and sine of the hour and of the day of the week, float32."""
    angles = [times // unit % period / period for unit, period in _CYCLES]
    waves = [(np.cos(2 * np.pi * a), np.sin(2 * np.pi * a)) for a in angles]
    return np.stack([*itertools.chain(*waves)], axis=1).astype(np.float32)


_CYCLES = ((HOUR_S, 24), (DAY_S, 7))
