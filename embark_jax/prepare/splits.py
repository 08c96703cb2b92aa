"""Which samples validate and test: the latest, random ones, those of some users, or the
last of each user."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from embark_jax._base.config import ConfigError
from embark_jax._base.errors import DataError
from embark_jax.plans.options import SPLITS_BY
from embark_jax.prepare import sql
from embark_jax.prepare.recipe import (
    RANDOM_SPLIT,
    ROW,
    SPLIT,
    TEST,
    TIME,
    TRAIN,
    USER,
    VALIDATION,
    Recipe,
    cut,
)

HELD_OUT = "samples held out"
"""A table of the rows that are held out, and the split of each."""
_PARTS = 10**6


@dataclasses.dataclass(frozen=True)
class Split:
    """A split as a user asks for it, such as ``time=0.2``.

    Attributes:
      by: one of SPLITS_BY.
      share: the share of samples, or of users, that are held out, half for validation
        and half for the test; None takes a tenth by time, and otherwise a fifth.
      begins: times when validation and test begin; of one alone the test.
    """

    by: str
    share: float | None = None
    begins: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> Split:
        """Raises ``ConfigError`` if the text is no split."""
        by, equals, value = text.partition("=")
        begins = tuple(part.strip() for part in value.split(","))
        if by == "column" and value:
            return cls(by)
        wrong = by not in SPLITS_BY or (equals and by in ("none", "leave-one-out"))
        if not wrong and not equals:
            return cls(by)
        if not wrong and len(begins) == 1 and _is_share(value):
            return cls(by, float(value))
        if not wrong and by == "time" and all(begins) and len(begins) <= 2:
            return cls(by, None, begins)
        raise ConfigError(
            f"split={text}: must be one of {', '.join(SPLITS_BY)}; random, user and "
            "time take a share from 0 to 1, such as time=0.2; time also takes one time "
            "or two, such as time=2024-05-01,2024-05-08, when validation and test begin"
        )


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def split_of(
    split: Split,
    database: sql.Database,
    recipe: Recipe,
    files: Sequence[str],
    time: str | None,
    seconds: int,
) -> str:
    """Returns SQL of the split of a sample of these files, of which HELD_OUT is joined
    for ``leave-one-out``.

    Args:
      split: the split.
      database: has the tables of files.
      recipe: the recipe.
      files: names of the tables.
      time: SQL of the time of a sample, a number; None if there are none.
      seconds: how many units of time are a second, or 1 if times are numbers.

    Raises:
      DataError: if the data cannot be split so.
    """
    columns = recipe.columns
    if split.by in ("user", "leave-one-out") and (not columns or not columns.user):
        raise DataError(f"split={split.by}: needs the column of users: user=NAME")
    if split.by == "none":
        return str(TRAIN)
    if split.by == "column":
        if not columns or not columns.split_column:
            raise DataError("split=column=NAME: is for csv and parquet")
        return sql.name(SPLIT)
    if split.by == "random" and split.share is None:
        return RANDOM_SPLIT
    if split.by in ("random", "user"):
        key = ROW if split.by == "random" else USER
        number = f"md5_number_lower(({sql.name(key)})::VARCHAR) % {_PARTS}"
        held_out = int(_PARTS * (split.share or 0.2))
        return (
            f"CASE WHEN {number} >= {held_out} THEN {TRAIN} "
            f"WHEN {number} >= {held_out // 2} THEN {VALIDATION} "
            f"WHEN {number} >= 0 THEN {TEST} ELSE {TRAIN} END"  # of no user: train
        )
    if split.by == "leave-one-out":
        if time is None:
            raise DataError("split=leave-one-out: needs the column of times: time=NAME")
        _leave_one_out(database, files, time)
        return f"coalesce({sql.name(HELD_OUT)}.split, {TRAIN})"
    if split.share is None and not split.begins:
        if recipe.time_split is not None:
            return recipe.time_split
        if time is None:
            raise DataError(
                "these data are not in the order of time; take split=random"
            )
    if time is None:
        raise DataError("split=time=...: needs the column of times: time=NAME")
    if split.begins:
        begins = [_time_of(database, each, seconds) for each in split.begins]
        return cut(TIME, repr(begins[0]), repr(begins[-1]))
    return _split_by_time(database, files, time, split.share or 0.1)


def _time_of(database: sql.Database, text: str, seconds: int) -> float:
    """Returns a time in the units of the data's."""
    ((kind, at, number),) = database.rows(
        "SELECT time.kind::VARCHAR, time.at, time.number FROM "
        f"(SELECT time_of({sql.text(text)}) AS time)"
    )
    if kind is None or (kind in ("whole", "number")) != (seconds == 1):
        raise DataError(
            f"split=time={text}: must be a {'number' if seconds == 1 else 'date'}, "
            "as the column of times has them"
        )
    return number if at is None else at if seconds == 1 else at * (seconds // 10**6)


def _leave_one_out(database: sql.Database, files: Sequence[str], time: str) -> None:
    """Makes HELD_OUT: the last event of each user tests, the one before it validates;
    of one time the last in the order of the files. Users of fewer than three train."""
    user, row, parts, first = sql.name(USER), sql.name(ROW), [], 0
    for file in files:
        parts.append(
            f"SELECT rowid + {first} AS {row}, {user}, {time} AS time FROM {file}"
        )
        first += database.rows(f"SELECT count(*) FROM {file}")[0][0]
    database.run(
        f"CREATE TABLE {sql.name(HELD_OUT)} AS SELECT {row}, if(number = 1, {TEST}, "
        f"{VALIDATION}) AS split FROM (SELECT {row}, row_number() OVER of_user AS "
        f"number, count(*) OVER (PARTITION BY {user}) AS events FROM "
        f"({' UNION ALL '.join(parts)}) WHERE {user} IS NOT NULL WINDOW of_user AS "
        f"(PARTITION BY {user} ORDER BY time DESC, {row} DESC)) "
        "WHERE number <= 2 AND events >= 3"
    )


def _split_by_time(
    database: sql.Database, files: Sequence[str], time: str, share: float
) -> str:
    """Returns a split that holds out the latest share: its first half is the validation
    set, the second the test set. Samples of one time are in one split: where few times
    make them the same, the last time is the test set, the one before it the validation
    set."""
    held_out = round(share * _PARTS)
    whole = " UNION ALL ".join(f"SELECT {time} AS t FROM {file}" for file in files)
    ((validation, test, first, before),) = database.rows(
        "WITH times AS (SELECT t, sum(count(*)) OVER (ORDER BY t) AS upto, "
        f"sum(count(*)) OVER () - 1 AS last FROM ({whole}) GROUP BY t), cuts AS ("
        f"SELECT min(t) FILTER (upto > ceil(last * {_PARTS - held_out} / {_PARTS})) "
        f"AS a, min(t) FILTER (upto > ceil(last * {_PARTS - held_out // 2} / {_PARTS}))"
        " AS b FROM times) "
        "SELECT a, b, min(t), max(t) FILTER (t < b) FROM times, cuts GROUP BY ALL"
    )
    if validation == test and before is not None and first < before:
        validation = before
    return cut(TIME, repr(validation), repr(test))
