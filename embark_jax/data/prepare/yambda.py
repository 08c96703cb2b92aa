"""Reads Yambda, events of users of a music service: 50m, 500m or 5b
(https://huggingface.co/datasets/yandex/yambda, https://arxiv.org/abs/2505.22238).

The rules are those of MLPerf Training's DLRMv4
(https://github.com/mlcommons/training): a sample is a listen after enough events, and
its label is whether half of the track was played. A sample has three ids of its item, a
user, and crosses of these; its history is a range of the user's events before it
(``data/event_lists.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import NonNegativeInt, PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.files import new_folder, write_arrow
from embark_jax.data import event_lists as lists
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.event_lists import EventFile, EventLists
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.manifest import Manifest, PreparedFeature, SampleFile
from embark_jax.data.pipeline import Progress, silent
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.raw_files import ParquetFile
from embark_jax.data.prepare.reading import read
from embark_jax.data.prepare.values import Column, define

DAY_S, HOUR_S = 86_400, 3_600
EVENTS = "multi_event.parquet"
ARTISTS, ALBUMS = "artist_item_mapping", "album_item_mapping"
LONG_PERCENT = 50
"""Percentage of a track that a long listen has played at least."""
GROUP_EVENTS = 2**24
"""About how many events a file of them has; those of a user are in one."""
EVENT_TYPES = ("listen", "like", "dislike", "unlike", "undislike")
LISTEN, LIKE = 0, 1
_ID = (0, 2**31 - 1)
COLUMNS = (
    Column("uid", "integer", required=True, bounds=_ID),
    Column("timestamp", "integer", required=True, bounds=(0, 2**32 - 1)),
    Column("item_id", "integer", required=True, bounds=_ID),
    Column("is_organic", "integer", required=True, bounds=(0, 1)),
    Column("event_type", "category", required=True),
    Column("played_ratio_pct", "number"),
)
# A null, as likes have it, is no long listen.
IN_ORDER = f"""
SELECT uid::BIGINT AS uid, timestamp::BIGINT AS timestamp, item_id::BIGINT AS item,
  is_organic::BIGINT AS is_organic,
  list_position({sql.texts(EVENT_TYPES)}, event_type) - 1 AS kind,
  coalesce(played_ratio_pct >= {LONG_PERCENT}, false) AS is_long
FROM events ORDER BY uid, timestamp, events.rowid
"""
DENSE = ("hour_cos", "hour_sin", "weekday_cos", "weekday_sin")
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


class _Raw(NamedTuple):
    events: Path
    artists: Path
    albums: Path


def prepare(
    raw: Path,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    progress: Progress = silent,
) -> Manifest:
    """Prepares Yambda in the folder ``out``.

    Args:
      raw: folder with the files as they are downloaded, of one size.
      out: a new or empty folder.
      options: the user's options.
      made_from: what else determines the samples; it is kept in the manifest.
      progress: is told how far the work is.

    Raises:
      DataError: if a raw file is bad, or ``out`` holds something.
    """
    files = _find(raw)
    sizes = {str(path): path.stat().st_size for path in files}
    made_from = {**made_from, **options.model_dump(), "raw": sizes}
    with new_folder(out) as folder:
        manifest = _prepare(files, folder, options, made_from, progress)
        shutil.rmtree(folder / ".work", ignore_errors=True)
        return manifest


def _prepare(
    files: _Raw,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    progress: Progress,
) -> Manifest:
    """Fills a new folder."""
    database = sql.Database(out / ".work")
    with contextlib.closing(database):
        define(database)
        total, user, item = _read_events(database, files.events)
        items = _items(database, files, 1 + item)
        write_arrow(out / "items.arrow", pa.table(items))
        manifest = _manifest(out, made_from, options, items, user, total)
        writer = _Writer(out, manifest, options, items)
        in_order = database.batches(IN_ORDER, 2**17)
        event_files, samples = [], []
        for number, group in enumerate(_by_users(in_order)):
            file, of_group = writer.write(number, group)
            event_files.append(file)
            samples += of_group
            done = sum(file.rows for file in event_files)
            progress("write", min(done, total), total)
    if not samples:
        raise DataError(
            f"{files.events}: no user has a listen after {options.min_history:,} "
            "events; lower min_history"
        )
    samples.sort(key=lambda file: (file.window, file.file))
    assert manifest.events is not None
    manifest = manifest.model_copy(
        update={
            "files": dict.fromkeys(manifests.SPLITS, ())
            | {manifests.SPLITS[0]: tuple(samples)},
            "events": manifest.events.model_copy(update={"files": tuple(event_files)}),
        }
    )
    manifest.save(out)
    return manifest


def _find(raw: Path) -> _Raw:
    """Returns the paths of the raw files.

    Raises:
      DataError: if one is missing, or there are several sizes.
    """
    event_files = sorted(raw.glob("flat/*/multi_event.parquet"))
    root = raw
    if not event_files and (raw / "multi_event.parquet").exists():
        event_files, root = [raw / "multi_event.parquet"], raw.parents[1]
    if len(event_files) != 1:
        what = ", ".join(path.parent.name for path in event_files) or "no size"
        raise DataError(
            f"{raw}: has {what} in flat/, must have one with multi_event.parquet; give "
            "its own folder, such as flat/50m, with --raw"
        )
    sides = [root / f"{name}.parquet" for name in (ARTISTS, ALBUMS)]
    for path in sides:
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; Yambda has it beside the folder flat"
            )
    return _Raw(event_files[0], *sides)


def _read_events(database: sql.Database, path: Path) -> tuple[int, int, int]:
    """Makes a table of all events; returns how many there are, and the largest user and
    item.

    Raises:
      DataError: if a column or a value is missing, or a value is unknown.
    """
    names = tuple(column.name for column in COLUMNS)
    read(database, "events", ParquetFile(path, names), COLUMNS)
    known = sql.texts(EVENT_TYPES)
    unknown = database.rows(
        f"SELECT rowid, event_type FROM events WHERE NOT list_contains({known}, "
        "event_type) ORDER BY rowid LIMIT 1"
    )
    for row, kind in unknown:
        raise DataError(
            f"{path}, row {row}: event_type is {kind!r}, must be one of "
            f"{', '.join(EVENT_TYPES)}"
        )
    (found,) = database.rows(
        "SELECT count(*), max(uid)::BIGINT, max(item_id)::BIGINT FROM events"
    )
    return found


def _items(database: sql.Database, files: _Raw, least: int) -> dict[str, np.ndarray]:
    """Returns artist and album of each item, 0 where it has none; the last of
    several.

    Raises:
      DataError: if an id is missing, negative, or too large for 32 bits.
    """
    found = {}
    for path, name in ((files.artists, "artist"), (files.albums, "album")):
        names = (f"{name}_id", "item_id")
        columns = [Column(n, "integer", required=True, bounds=_ID) for n in names]
        read(database, name, ParquetFile(path, names), columns)
        table = database.table(f"SELECT * FROM {name} ORDER BY {name}.rowid")
        found[name] = [table[n].to_numpy().astype(np.int64) for n in names]
    size = max(least, *(int(items.max(initial=0)) + 1 for _, items in found.values()))
    sides = {name: np.zeros(size, np.uint32) for name in found}
    for name, (ids, items) in found.items():
        sides[name][items] = ids
    return sides


def _by_users(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, np.ndarray]]:
    """Joins batches, in the order of users, to groups of about GROUP_EVENTS; all events
    of a user are in one."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) < GROUP_EVENTS:
            continue
        whole = pa.Table.from_batches(held)
        users = whole["uid"].to_numpy()
        last = int(np.searchsorted(users, users[-1]))
        if last:
            yield _arrays(whole.slice(0, last))
            held = whole.slice(last).to_batches()
    if held:
        yield _arrays(pa.Table.from_batches(held))


def _arrays(table: pa.Table) -> dict[str, np.ndarray]:
    return {name: table[name].to_numpy() for name in table.column_names}


class _Writer:
    """Writes the events and the samples of groups of users."""

    def __init__(
        self,
        out: Path,
        manifest: Manifest,
        options: Options,
        items: Mapping[str, np.ndarray],
    ):
        self._out, self._manifest = out, manifest
        self._options, self._items = options, items

    def write(
        self, number: int, raw: Mapping[str, np.ndarray]
    ) -> tuple[EventFile, list[SampleFile]]:
        """Writes a group, whose events are in the order of user and time."""
        is_long = raw["is_long"].astype(bool)
        pool = np.select(
            [(raw["kind"] == LISTEN) & is_long, raw["kind"] == LIKE], [0, 1], 2
        )
        in_pool = raw["kind"] <= LIKE
        events = {
            "item": raw["item"][in_pool].astype(np.uint32),
            "time": raw["timestamp"][in_pool].astype(np.uint32),
            "action": pool[in_pool].astype(np.uint8),
        }
        name = f"events/{number:06}.arrow"
        write_arrow(self._out / name, pa.table(events))
        starts = np.flatnonzero(np.diff(raw["uid"], prepend=-1))
        total = len(raw["uid"])
        of_user = np.repeat(np.arange(len(starts)), np.diff(starts, append=total))
        before = np.cumsum(in_pool) - in_pool
        is_sample = raw["kind"] == LISTEN
        is_sample &= np.arange(total) - starts[of_user] >= self._options.min_history
        chosen = np.flatnonzero(is_sample)
        end = before[chosen]
        first = before[starts[of_user[chosen]]]
        begin = np.maximum(first, end - self._options.scan)
        ranges = np.stack([np.full(len(chosen), number), begin, end], axis=1)
        batch = self._batch(raw, chosen, ranges, events["time"])
        length = self._options.window
        windows = raw["timestamp"][chosen] // length * length
        files = [
            manifests.write_samples(
                self._out,
                f"train/{window:012}-{number:06}.arrow",
                batch.take(rows := windows == window),
                self._manifest,
                int(window),
                ranges[rows],
            )
            for window in np.unique(windows)
        ]
        return EventFile.of(self._out, name, rows=len(events["item"])), files

    def _batch(
        self,
        raw: Mapping[str, np.ndarray],
        chosen: np.ndarray,
        ranges: np.ndarray,
        event_times: np.ndarray,
    ) -> Batch:
        """Returns samples in the manifest's layout."""
        time, item = raw["timestamp"][chosen], raw["item"][chosen]
        values = {
            "item": item,
            "artist": self._items["artist"][item].astype(np.int64),
            "album": self._items["album"][item].astype(np.int64),
            "uid": raw["uid"][chosen],
            "hour": time // HOUR_S % 24,
            "is_organic": raw["is_organic"][chosen],
            "time": np.zeros(len(chosen), np.int64),
            "action": np.full(len(chosen), lists.CANDIDATE_ACTION),
        }
        rows = self._manifest.table_rows
        for name, (keys, _) in CROSSES.items():
            values[name] = cross([values[key] for key in keys], rows[name])
        layout = self._manifest.layout()
        batch = Batch.of(layout, layout.padding(len(chosen)))
        batch.labels[...] = raw["is_long"][chosen]
        # The time of the request is that of the last event, as in the reference.
        has_history = ranges[:, 2] > ranges[:, 1]
        asked = time.copy()
        asked[has_history] = event_times[ranges[has_history, 2] - 1]
        batch.dense[...] = cyclical(asked)
        for name, ids in batch.ids.items():
            np.asarray(ids)[...] = values[name][:, None]
        return batch


def _manifest(
    out: Path,
    made_from: Mapping[str, Any],
    options: Options,
    items: Mapping[str, np.ndarray],
    largest_user: int,
    events: int,
) -> Manifest:
    """Returns the manifest, complete but for the files of events and samples."""
    table_rows = {
        "item": len(items["artist"]),
        "artist": int(items["artist"].max()) + 1,
        "album": int(items["album"].max()) + 1,
        "uid": 1 + largest_user,
        **{n: min(r, options.most_cross_rows) for n, (_, r) in CROSSES.items()},
        "time": lists.TIME_BUCKETS + 1,
        "action": lists.POOLS + 1,
    }
    features = {
        name: PreparedFeature(table=name, hotness=1, pooling="sum")
        for name in table_rows
    }
    for name in lists.SEQUENCES:
        features[name] = PreparedFeature(
            table=name.removeprefix("past_"), hotness=options.longest, pooling="none"
        )
    return Manifest.of(
        made_from=made_from,
        dense=DENSE,
        features=features,
        table_rows=table_rows,
        hashed_tables=tuple(CROSSES),
        raw_rows=events,
        events=EventLists(
            files=(),
            items=HashedFile.of(out, "items.arrow"),
            longest=options.longest,
            history=options.history,
        ),
    )


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
