"""Reads Yambda, events of users of a music service: 50m, 500m or 5b
(https://huggingface.co/datasets/yandex/yambda, https://arxiv.org/abs/2505.22238).

The rules are those of MLPerf Training's DLRMv4
(https://github.com/mlcommons/training): a sample is a listen after enough events, and
its label is whether half of the track was played. A sample has three ids of its item, a
user, and crosses of these; its history is of the user's listens and likes before it:
the last third of ``longest`` of each of three actions (long listens, likes, skips).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embark_jax.data.batch import DataError
from embark_jax.data.columns import AgeBuckets, HistoryColumns, Pools, Preparation
from embark_jax.data.manifest import LABEL
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare.own_files import cross_of
from embark_jax.prepare.raw_files import ParquetFile
from embark_jax.prepare.recipe import (
    IS_EVENT,
    IS_SAMPLE,
    TIME,
    USER,
    Recipe,
    event_column,
)
from embark_jax.prepare.values import Column

DAY_S, HOUR_S = 86_400, 3_600
EVENTS = "multi_event.parquet"
LONG_PERCENT = 50
"""Percentage of a track that a long listen has played at least."""
EVENT_TYPES = ("listen", "like", "dislike", "unlike", "undislike")
ACTIONS = 3
"""A long listen, a like, a skip; that of the candidate comes after them."""
_ID = (0, 2**31 - 1)


def _ids(*names: str) -> list[Column]:
    return [Column(name, "integer", required=True, bounds=_ID) for name in names]


COLUMNS = (
    *_ids("uid", "item_id"),
    Column("timestamp", "integer", required=True, bounds=(0, 2**32 - 1)),
    Column("is_organic", "integer", required=True, bounds=(0, 1)),
    Column("event_type", "category", required=True, texts=EVENT_TYPES),
    Column("played_ratio_pct", "number"),
)
DENSE = ("hour_cos", "hour_sin", "weekday_cos", "weekday_sin")
SINGLE = ("item", "artist", "album", "uid")
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
HISTORY = HistoryColumns(
    columns=("item", "artist", "album", "time", "action"),
    longest=4086,
    least=4086,
    scan=20_000,
    ties=True,
    pools=Pools(column="action", count=ACTIONS),
    ages=AgeBuckets(column="time"),
)
# An item has the last of several artists and albums. The time of a request is that of
# the last listen or like before it, as in the reference. A null, as likes have it, is
# no long listen.
QUERY = f"""
SELECT *, 2 * pi() * (asked // {HOUR_S} % 24) / 24 AS of_hour,
  2 * pi() * (asked // {DAY_S} % 7) / 7 AS of_day
FROM (
  SELECT raw.*, item_id AS item, artist, album, timestamp // {HOUR_S} % 24 AS hour,
    coalesce(played_ratio_pct >= {LONG_PERCENT}, false) AS is_long,
    event_type IN ('listen', 'like') AS is_kept,
    coalesce(max(timestamp) FILTER (event_type IN ('listen', 'like')) OVER (
      PARTITION BY uid ORDER BY timestamp, place
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), timestamp) AS asked
  FROM raw
  LEFT JOIN (SELECT item_id, last(artist_id ORDER BY rowid) AS artist FROM artists
    GROUP BY 1) USING (item_id)
  LEFT JOIN (SELECT item_id, last(album_id ORDER BY rowid) AS album FROM albums
    GROUP BY 1) USING (item_id))
"""


def yambda(raw: Path) -> Recipe:
    """Reads the files of one size."""
    events, *sides = _find(raw)
    of_crosses = {name: cross_of(keys) for name, (keys, _) in CROSSES.items()}
    waves = {"hour": "of_hour", "weekday": "of_day"}
    select = {
        LABEL: "is_long::FLOAT",
        TIME: "timestamp",
        USER: "uid",
        IS_SAMPLE: "event_type = 'listen'",
        IS_EVENT: "is_kept",
        "time": "0",
        "action": str(ACTIONS),
        event_column("time"): "timestamp",
        event_column("action"): "CASE WHEN event_type = 'like' THEN 1 WHEN is_long "
        "THEN 0 ELSE 2 END",
    }
    for name, angle in waves.items():
        select |= {f"{name}_cos": f"cos({angle})", f"{name}_sin": f"sin({angle})"}
    return Recipe(
        raw=[ParquetFile(events, tuple(column.name for column in COLUMNS))],
        raw_columns=COLUMNS,
        select=select | of_crosses,
        dense=DENSE,
        features=tuple(map(FeatureSpec, (*SINGLE, *CROSSES, "time", "action"))),
        sides={
            f"{kind}s": (ParquetFile(path, names), _ids(*names))
            for path, kind in zip(sides, ("artist", "album"), strict=True)
            for names in [(f"{kind}_id", "item_id")]
        },
        unique_sides=False,
        query=QUERY,
        history=HISTORY,
        rows={"time": HISTORY.ages.rows if HISTORY.ages else 0, "action": ACTIONS + 1},
        usual=Preparation(
            split="none",
            window=DAY_S,
            hash_columns={name: rows for name, (_, rows) in CROSSES.items()},
        ),
    )


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
    sides = [root / f"{kind}_item_mapping.parquet" for kind in ("artist", "album")]
    if missing := [path for path in sides if not path.is_file()]:
        raise DataError(
            f"{missing[0]}: no such file; Yambda has it beside the folder flat"
        )
    return [*files, *sides]
