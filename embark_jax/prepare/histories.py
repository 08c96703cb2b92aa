"""Histories of users: of each sample the earlier events of its user.

They are not written out for each sample: files of events have all of them, a user's
together in the order of time, and a sample the range of those before it
(``data/event_lists.py``).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embark_jax._base.errors import DataError
from embark_jax._base.files import allocate, write_arrow
from embark_jax.data.batch import id_dtype
from embark_jax.data.columns import HistoryColumns
from embark_jax.data.event_lists import EVENT_RANGES, EventFile, EventLists
from embark_jax.data.manifest import LABEL, Manifest
from embark_jax.prepare import sql
from embark_jax.prepare.encode import id_of, known_id, vocabulary_table
from embark_jax.prepare.recipe import IS_EVENT, ROW, TIME, USER, Work, event_column

FILE_EVENTS = 2**22
"""About how many lines of users are read together, and become a file of events."""
_GROUPS = f"""
SELECT min(key), max(key) FROM (
  SELECT {sql.name(USER)} AS key,
    sum(count(*)) OVER (ORDER BY key) // {{most}} AS number
  FROM samples WHERE key IS NOT NULL GROUP BY key)
GROUP BY number ORDER BY number
"""
# The lines of some users: whether each is an event, the first of its user, and of the
# time of the one before it.
_LINES = f"""
SELECT {sql.name(ROW)} AS row, {{is_event}} AS is_event, {{columns}},
  row_number() OVER of_user = 1 AS is_first,
  lag({sql.name(TIME)}) OVER of_user IS NOT DISTINCT FROM {sql.name(TIME)} AS is_tie
FROM samples {{joins}} WHERE {sql.name(USER)} BETWEEN {{first}} AND {{last}}
WINDOW of_user AS (PARTITION BY {sql.name(USER)} ORDER BY {sql.name(TIME)},
  {sql.name(ROW)})
ORDER BY {sql.name(USER)}, {sql.name(TIME)}, {sql.name(ROW)}
"""


def write_events(
    work: Work, columns: HistoryColumns, manifest: Manifest, samples: int
) -> tuple[EventLists, np.ndarray]:
    """Writes the files of events.

    Args:
      work: what is prepared; the database has samples and vocabularies.
      columns: what of an event is in a history.
      manifest: the manifest, complete but for files and events.
      samples: number of samples.

    Returns:
      The events, and ``[samples, 3]`` the range of each sample's: those of its user
      that are earlier, in the order of time, and of one time in the order of the
      files; those of its own time only with ``ties``. Lines without a user are in no
      history, and have none.
    """
    dtype, width = EVENT_RANGES
    spill = work.database.spill
    spill.mkdir(parents=True, exist_ok=True)
    ranges = _mapped(spill / "ranges", dtype, (samples, width))
    files = list[EventFile]()
    kept, made, joins = "true", [], ""
    if columns.positive:
        kept = f"{LABEL} = 1"
    elif IS_EVENT in work.recipe.select:
        kept = sql.name(IS_EVENT)
    for name in columns.columns:
        given = event_column(name)
        column = sql.name(given if given in work.recipe.select else name)
        id_ = id_of(manifest.table_of(name), f"samples.{column}")
        if manifest.table_of(name).kind == "values":
            known = sql.name(f"values of {name}")
            vocabulary = vocabulary_table(manifest.features[name].table)
            joins += f" LEFT JOIN {vocabulary} AS {known} ON {known}.key = {id_}"
            id_ = known_id(id_, f"{known}.id")
        made.append(f"{id_} AS {sql.name(name)}")
    groups = work.database.rows(_GROUPS.format(most=FILE_EVENTS))
    if not groups:
        where = work.recipe.raw[0].path
        raise DataError(f"{where}: no line has a user, must be some for histories")
    for number, (first, last) in enumerate(groups):
        query = _LINES.format(
            is_event=kept,
            columns=", ".join(made),
            joins=joins,
            first=_literal(first),
            last=_literal(last),
        )
        lines = work.database.table(query).combine_chunks()
        row, is_event, is_first, is_tie = (
            lines[name].to_numpy() for name in ("row", "is_event", "is_first", "is_tie")
        )
        place = np.arange(len(lines))
        of_user = np.maximum.accumulate(np.where(is_first, place, 0))
        of_time = place
        if not columns.ties:
            of_time = np.maximum.accumulate(np.where(is_first | ~is_tie, place, 0))
        before = np.cumsum(is_event) - is_event  # events of the group before each line
        begin, end = before[of_user], before[of_time]
        if columns.scan is not None:
            begin = np.maximum(begin, end - columns.scan)
        ranges[row] = np.stack([np.full(len(row), number), begin, end], axis=1)
        name = f"events/{number:06}.arrow"
        lines = lines.select([*columns.columns]).filter(lines["is_event"])
        events = {
            each: lines[each].to_numpy().astype(_dtype(manifest, columns, each))
            for each in columns.columns
        }
        write_arrow(work.out / name, pa.table(events))
        files.append(EventFile.of(work.out, name, rows=len(lines)))
        work.progress("histories", number + 1, len(groups))
    lists = EventLists(
        files=tuple(files),
        longest=columns.longest,
        sequences=tuple(columns.features),
        pools=columns.pools,
        ages=columns.ages,
    )
    return lists, ranges


def _dtype(manifest: Manifest, columns: HistoryColumns, name: str) -> np.dtype:
    """Returns the type of a column of events: that of its ids, or of seconds."""
    if columns.ages is not None and name == columns.ages.column:
        return np.dtype(np.int64)
    return np.dtype(id_dtype(manifest.table_of(name).rows))


def _mapped(path: Path, dtype: Any, shape: tuple[int, int]) -> np.ndarray:
    """Returns an array in a new file."""
    with path.open("wb") as file:
        allocate(file.fileno(), np.dtype(dtype).itemsize * math.prod(shape), path)
    return np.memmap(path, dtype, "r+", shape=shape)


def _literal(user: str | int) -> str:
    """Returns a user in SQL."""
    return sql.text(user) if isinstance(user, str) else str(user)
