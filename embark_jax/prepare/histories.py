"""Histories of users: of each sample the earlier events of its user.

They are not written out for each sample: files of events have all of them, a user's
together in the order of time, and a sample the range of those before it
(``data/event_lists.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.errors import DataError
from embark_jax._base.files import allocate, write_arrow
from embark_jax.data.batch import id_dtype
from embark_jax.data.columns import HistoryColumns
from embark_jax.data.event_lists import EVENT_RANGES, EventFile, EventLists
from embark_jax.data.manifest import LABEL, Manifest
from embark_jax.prepare import sql
from embark_jax.prepare.encode import id_of, known_id, vocabulary_table
from embark_jax.prepare.recipe import IS_EVENT, ROW, TIME, USER, Work, event_column

FILE_EVENTS = 2**19
"""About how many lines of users are taken together, and become a file of events."""


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
    user, time, row = map(sql.name, (USER, TIME, ROW))
    query = (
        f"SELECT {user}, {time}, {row}, {kept} AS {sql.name(IS_EVENT)}, "
        f"{', '.join(made)} FROM samples {joins} WHERE {user} IS NOT NULL "
        f"ORDER BY {user}, {time}, {row}"
    )
    done = 0
    for number, lines in enumerate(_of_whole_users(work.database, query)):
        user, time = (lines[name].combine_chunks() for name in (USER, TIME))
        row, is_event = (lines[name].to_numpy() for name in (ROW, IS_EVENT))
        place = np.arange(len(lines))
        of_user = np.maximum.accumulate(np.where(_changes(user), place, 0))
        of_time = place
        if not columns.ties:
            is_later = _changes(user) | _changes(time)
            of_time = np.maximum.accumulate(np.where(is_later, place, 0))
        before = np.cumsum(is_event) - is_event  # events of the group before each line
        begin, end = before[of_user], before[of_time]
        if columns.scan is not None:
            begin = np.maximum(begin, end - columns.scan)
        ranges[row] = np.stack([np.full(len(row), number), begin, end], axis=1)
        name = f"events/{number:06}.arrow"
        lines = lines.filter(lines[IS_EVENT])
        events = {
            each: lines[each].to_numpy().astype(_dtype(manifest, columns, each))
            for each in columns.columns
        }
        write_arrow(work.out / name, pa.table(events))
        files.append(EventFile.of(work.out, name, rows=len(lines)))
        done += len(row)
        work.progress("histories", done, samples)
    if not files:
        where = work.recipe.raw[0].path
        raise DataError(f"{where}: no line has a user, must be some for histories")
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


def _of_whole_users(database: sql.Database, query: str) -> Iterator[pa.Table]:
    """Yields the lines of a query, which are in the order of users, in tables that have
    all lines of a user."""
    parts, count = list[pa.Table](), 0
    for batch in database.batches(query):
        parts.append(pa.Table.from_batches([batch]))
        count += len(batch)
        if count < FILE_EVENTS:
            continue
        table = pa.concat_tables(parts)
        last = np.flatnonzero(_changes(table[USER].combine_chunks()))[-1]
        if last:
            yield table.slice(0, last)
        parts, count = [table.slice(last)], count - last
    if count:
        yield pa.concat_tables(parts)


def _changes(values: pa.Array) -> np.ndarray:
    """Returns which values are not those before them, as the first is."""
    unlike = pc.call_function("not_equal", [values[1:], values[:-1]])
    return np.concatenate([[True], unlike.to_numpy(zero_copy_only=False)])
