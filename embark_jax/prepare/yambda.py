"""Reads Yambda, events of users of a music service: 50m, 500m or 5b
(https://huggingface.co/datasets/yandex/yambda, https://arxiv.org/abs/2505.22238).

The rules are those of MLPerf Training's DLRMv4
(https://github.com/mlcommons/training): a sample is a listen after enough events, and
its label is whether half of the track was played. A sample has three ids of its item, a
user, and crosses of these; its history is a range of the user's events before it
(``data/event_lists.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import NonNegativeInt, PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.files import new_folder, write_arrow
from embark_jax.data import event_lists as lists
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.event_lists import EventFile, EventLists
from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.manifest import Manifest, SampleFile
from embark_jax.data.pipeline import Progress, silent
from embark_jax.prepare import sql
from embark_jax.prepare.raw_files import ParquetFile
from embark_jax.prepare.reading import read
from embark_jax.prepare.values import Column, define

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
    """Largest number of events of a history: the last third of so many of each of three
    actions (long listens, likes, skips)."""
    min_history: NonNegativeInt = 4086
    """Number of a user's events before the first sample."""
    scan: PositiveInt = 20_000
    """How many of the latest events a history is chosen from."""
    most_cross_rows: PositiveInt = 100_000_000
    """Most rows of a table of crosses."""
    window: PositiveInt = DAY_S
    """Length of a time window in seconds."""


# The events of some users in their order: how many the user had before, and in the file
# of events, which has those with an action, where those before it end and begin. The
# time of a request is that of the last of them, as in the reference. A null, as likes
# have it, is no long listen.
PART = f"""
CREATE OR REPLACE TABLE part AS
WITH chosen AS (
  SELECT uid::BIGINT AS uid, timestamp::BIGINT AS time, item_id::BIGINT AS item,
    is_organic::BIGINT AS is_organic, rowid AS place,
    list_position({sql.texts(EVENT_TYPES)}, event_type) - 1 AS kind,
    kind IN ({LISTEN}, {LIKE}) AS is_kept,
    coalesce(played_ratio_pct >= {LONG_PERCENT}, false) AS is_long
  FROM events WHERE uid BETWEEN {{first}} AND {{last}})
SELECT *, row_number() OVER of_user - 1 AS number,
  count(*) FILTER (is_kept) OVER before_all AS last,
  last - least(count(*) FILTER (is_kept) OVER before, {{scan}}) AS first,
  coalesce(max(time) FILTER (is_kept) OVER before, time) AS asked
FROM chosen WINDOW of_user AS (PARTITION BY uid ORDER BY time, place),
  before AS (of_user ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
  before_all AS (ORDER BY uid, time, place ROWS BETWEEN UNBOUNDED PRECEDING AND
    1 PRECEDING)
"""
EVENT_COLUMNS = f"""
SELECT item::UINTEGER AS item, coalesce(artist, 0)::UINTEGER AS artist,
  coalesce(album, 0)::UINTEGER AS album, time::UINTEGER AS time, CASE WHEN kind = {LIKE}
  THEN 1 WHEN is_long THEN 0 ELSE 2 END::UTINYINT AS action
FROM part LEFT JOIN items USING (item) WHERE is_kept ORDER BY uid, time, place
"""
SAMPLE_COLUMNS = f"""
SELECT is_long, time // {{window}} * {{window}} AS window, first, last,
  item::INTEGER AS item, coalesce(artist, 0)::INTEGER AS artist,
  coalesce(album, 0)::INTEGER AS album,
  uid::INTEGER AS uid, (time // {HOUR_S} % 24)::TINYINT AS hour,
  is_organic::TINYINT AS is_organic, 0::TINYINT AS time,
  {lists.CANDIDATE_ACTION}::TINYINT AS action, cos(of_hour)::FLOAT AS hour_cos,
  sin(of_hour)::FLOAT AS hour_sin, cos(of_day)::FLOAT AS weekday_cos,
  sin(of_day)::FLOAT AS weekday_sin
FROM (SELECT *, 2 * pi() * (asked // {HOUR_S} % 24) / 24 AS of_hour,
  2 * pi() * (asked // {DAY_S} % 7) / 7 AS of_day FROM part) AS part
LEFT JOIN items USING (item) WHERE kind = {LISTEN} AND number >= {{least}}
ORDER BY uid, part.time, place
"""
GROUPS = """
SELECT min(uid)::BIGINT, max(uid)::BIGINT FROM (
  SELECT uid, sum(count(*)) OVER (ORDER BY uid) // {most} AS number
  FROM events GROUP BY uid) GROUP BY number ORDER BY 1
"""
ITEMS = """
CREATE TABLE items AS SELECT item, artist, album FROM
  (SELECT item_id AS item, last(artist_id ORDER BY rowid) AS artist FROM artists
   GROUP BY 1) FULL JOIN
  (SELECT item_id AS item, last(album_id ORDER BY rowid) AS album FROM albums
   GROUP BY 1) USING (item)
"""
"""Artist and album of each item, if it has one; the last of several."""
LARGEST = """
WITH numbers AS (SELECT item_id AS item, uid FROM events)
SELECT greatest((SELECT max(item) FROM numbers), max(item))::BIGINT AS item,
  coalesce(max(artist), 0)::BIGINT AS artist, coalesce(max(album), 0)::BIGINT AS album,
  (SELECT max(uid) FROM numbers)::BIGINT AS uid
FROM items
"""
"""The largest number in each table."""


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
    events, *sides = paths = _find(raw)
    sizes = {str(path): path.stat().st_size for path in paths}
    made_from = {**made_from, **options.model_dump(), "raw": sizes}
    with new_folder(out) as folder, sql.Database(folder / ".work") as database:
        define(database)
        _read_events(database, events)
        for path, name in zip(sides, ("artist", "album"), strict=True):
            names = (f"{name}_id", "item_id")
            columns = [Column(n, "integer", required=True, bounds=_ID) for n in names]
            read(database, f"{name}s", ParquetFile(path, names), columns)
        database.run(ITEMS)
        manifest = _manifest(database, made_from, options)
        event_files, samples = list[EventFile](), list[SampleFile]()
        groups = database.rows(GROUPS.format(most=GROUP_EVENTS))
        for number, (first, last) in enumerate(groups):
            users = {"first": first, "last": last}
            database.run(PART.format(**users, scan=options.scan))
            name = f"events/{number:06}.arrow"
            table = database.table(EVENT_COLUMNS)
            write_arrow(folder / name, table)
            event_files.append(EventFile.of(folder, name, rows=len(table)))
            query = SAMPLE_COLUMNS.format(
                window=options.window, least=options.min_history
            )
            samples += _write(folder, manifest, number, database.table(query))
            progress("write", number + 1, len(groups))
        if not samples:
            raise DataError(
                f"{events}: no user has a listen after {options.min_history:,} events; "
                "lower min_history"
            )
        samples.sort(key=lambda file: (file.window, file.file))
        files = dict.fromkeys(manifests.SPLITS, ())
        files |= {manifests.SPLITS[0]: tuple(samples)}
        assert manifest.events is not None
        lists_ = manifest.events.model_copy(update={"files": tuple(event_files)})
        manifest = manifest.model_copy(update={"files": files, "events": lists_})
        manifest.save(folder)
    return manifest


def _find(raw: Path) -> list[Path]:
    """Returns the paths of events, and of artists and albums of items."""
    own = raw / EVENTS
    files = [own] if own.is_file() else sorted(raw.glob(f"flat/*/{EVENTS}"))
    if len(files) != 1:
        what = ", ".join(path.parent.name for path in files) or "no size"
        raise DataError(
            f"{raw}: has {what} in flat/, must have one with {EVENTS}; give its own "
            "folder, such as flat/50m, with --raw"
        )
    root = files[0].parents[2]
    sides = [root / f"{name}.parquet" for name in (ARTISTS, ALBUMS)]
    if missing := [path for path in sides if not path.is_file()]:
        raise DataError(
            f"{missing[0]}: no such file; Yambda has it beside the folder flat"
        )
    return [*files, *sides]


def _read_events(database: sql.Database, path: Path) -> None:
    """Makes a table of all events."""
    names = tuple(column.name for column in COLUMNS)
    read(database, "events", ParquetFile(path, names), COLUMNS)
    unknown = database.rows(
        f"SELECT rowid, event_type FROM events WHERE NOT list_contains("
        f"{sql.texts(EVENT_TYPES)}, event_type) ORDER BY rowid LIMIT 1"
    )
    for row, kind in unknown:
        raise DataError(
            f"{path}, row {row}: event_type is {kind!r}, must be one of "
            f"{', '.join(EVENT_TYPES)}"
        )


def _write(
    out: Path, manifest: Manifest, number: int, samples: pa.Table
) -> list[SampleFile]:
    """Writes the samples of a group of users, a file for each window."""
    values = {name: samples[name].to_numpy() for name in samples.column_names}
    for name, (keys, _) in CROSSES.items():
        rows = manifest.tables[name].rows
        values[name] = cross([values[key] for key in keys], rows)
    layout = manifest.layout()
    batch = Batch.of(layout, layout.padding(len(samples)))
    batch.labels[...] = values["is_long"]
    batch.dense[...] = np.stack([values[name] for name in DENSE], axis=1)
    for name, ids in batch.ids.items():
        np.asarray(ids)[...] = values[name][:, None]
    ranges = [np.full(len(samples), number), values["first"], values["last"]]
    ranges = np.stack(ranges, axis=1).astype(np.int64)
    windows = values["window"]
    return [
        manifests.write_samples(
            out,
            f"train/{window:012}-{number:06}.arrow",
            batch.take(rows := windows == window),
            manifest,
            int(window),
            ranges[rows],
        )
        for window in np.unique(windows)
    ]


def _manifest(
    database: sql.Database, made_from: Mapping[str, Any], options: Options
) -> Manifest:
    """Returns the manifest, complete but for the files of events and samples."""
    ((events,),) = database.rows("SELECT count(*) FROM events")
    (largest,) = database.table(LARGEST).to_pylist()
    rows = {name: 1 + number for name, number in largest.items()}
    rows |= {n: min(most, options.most_cross_rows) for n, (_, most) in CROSSES.items()}
    rows |= {"time": lists.TIME_BUCKETS + 1, "action": lists.POOLS + 1}
    single = {"hotness": 1, "pooling": "sum"}
    several = {"hotness": options.longest, "pooling": "none"}
    features = {name: {"table": name, **single} for name in rows}
    for name in lists.SEQUENCES:
        features[name] = {"table": name.removeprefix("past_"), **several}
    kinds = dict.fromkeys(rows, "numbers") | dict.fromkeys(CROSSES, "hashes")
    return Manifest.of(
        made_from=made_from,
        dense=DENSE,
        features=features,
        tables={name: {"rows": rows[name], "kind": kinds[name]} for name in rows},
        raw_rows=events,
        events=EventLists(files=(), longest=options.longest),
    )


def cross(values: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Returns rows of a table of crosses by a hash of several values of each sample."""
    hashes = np.zeros(len(values[0]), np.uint64)
    for column in values:
        hashes = splitmix64((hashes ^ column.astype(np.uint64)) + GOLDEN_GAMMA)
    return (hashes % np.uint64(rows)).astype(np.int64)
