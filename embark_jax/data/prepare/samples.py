"""The first stage: reads raw files, checks what their columns promise, and makes typed
samples, a chunk at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax._base.errors import DataError
from embark_jax._base.files import write_arrow
from embark_jax.data.pipeline import Workers, in_order
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.raw_files import (
    Chunk,
    RawFile,
    TextFile,
    numbered,
    shown,
)
from embark_jax.data.prepare.recipe import ROW, SPLIT, TIME, Recipe, as_times
from embark_jax.data.prepare.values import Column, Typed
from embark_jax.data.prepare.vocabulary import is_text
from embark_jax.plans.options import OnBadLine

SHOWN = 5
"""How many bad lines are told in words."""
_GOOD = "is good"


@dataclasses.dataclass(frozen=True)
class SampleChunk:
    """Typed samples.

    Attributes:
      path: path of the Arrow file that holds them.
      file: number of the raw file.
      rows: number of samples.
      raw_rows: number of lines or rows that they were made of.
      bad: some of the bad ones among these, which are left out, in words.
    """

    path: Path
    file: int
    rows: int
    raw_rows: int = 0
    bad: tuple[str, ...] = ()

    def read(self) -> pa.Table:
        """Maps the samples into memory: label, dense features, values of features."""
        with pa.memory_map(str(self.path)) as file:
            return pa.ipc.open_file(file).read_all()

    def schema(self) -> pa.Schema:
        with pa.memory_map(str(self.path)) as file:
            return pa.ipc.open_file(file).schema


def read_samples(
    database: sql.Database,
    recipe: Recipe,
    folder: Path,
    on_bad_line: OnBadLine,
    workers: Workers,
) -> Iterator[SampleChunk]:
    """Makes all chunks of a data set, in order.

    Args:
      database: has the functions of ``values``; side tables are made in it.
      recipe: the recipe of the data set.
      folder: folder of the chunks.
      on_bad_line: what to do with a bad line.
      workers: tells how far the work is, in bytes of raw files on disk.

    Raises:
      DataError: if a raw file cannot be read, or a line is bad and is not skipped.
    """
    for name, side in recipe.sides.items():
        make_side_table(database, name, side.file, side.columns)
    before, total = 0, sum(raw.path.stat().st_size for raw in recipe.raw)
    shown_lines = 0
    for file, raw in enumerate(recipe.raw):
        ahead = in_order(lambda chunk: chunk, raw.chunks(), workers=1, depth=1)
        with contextlib.closing(ahead) as chunks:
            for number, chunk in enumerate(chunks):
                most = SHOWN - shown_lines
                samples, bad = typed_samples(
                    database, raw, chunk, recipe.raw_columns, recipe.query, most
                )
                if bad and on_bad_line == "error":
                    raise DataError(bad[0])
                shown_lines += len(bad)
                if recipe.file_splits is not None:
                    splits = np.full(len(samples), recipe.file_splits[file], np.uint8)
                    samples = samples.append_column(SPLIT, pa.array(splits))
                if recipe.columns is not None and recipe.columns.time:
                    samples = _with_times(samples, raw.path, recipe.columns.time)
                path = folder / f"{file:03}-{number:06}.arrow"
                write_arrow(path, samples.drop_columns([ROW]))
                rows = len(chunk.rows)
                workers.progress("read", before + chunk.progress, total)
                yield SampleChunk(path, file, len(samples), rows, tuple(bad))
        before += raw.path.stat().st_size


def typed_samples(
    database: sql.Database,
    file: RawFile,
    chunk: Chunk,
    columns: Sequence[Column],
    query: str,
    most_bad: int = SHOWN,
) -> tuple[pa.Table, list[str]]:
    """Returns what a query makes of the good rows of a chunk, in their order, and what
    is wrong with the first bad ones.

    Args:
      database: has the functions of ``values``.
      file: the file.
      chunk: some of its rows.
      columns: the columns that the query reads, from ``raw``.
      query: gives ROW and any other columns; it leaves out no row and adds none.
      most_bad: how many bad rows to tell of, 1 at least.

    Raises:
      DataError: if a column is of a type that it may not have.
    """
    rows = numbered(chunk)
    made = _typed(database, file, columns, rows)
    values = [f"{t.value} AS {sql.name(c.alias or c.name)}" for c, t in made]
    checks = " AND ".join(f"({typed.check})" for _, typed in made)
    good = f"coalesce(problem IS NULL AND {checks or 'true'}, false)"
    samples = database.table(
        f"WITH typed AS MATERIALIZED (SELECT number AS {sql.name(ROW)}, "
        f"{', '.join([*values, good])} AS {sql.name(_GOOD)} FROM {file.source()}), "
        f"raw AS (SELECT * EXCLUDE {sql.name(_GOOD)} FROM typed "
        f"WHERE {sql.name(_GOOD)}) {query}",
        chunk=rows,
    )
    bad = []
    if len(samples) < len(rows):
        bad = _bad_rows(database, file, made, good, rows, max(1, most_bad))
    order = samples[ROW].to_numpy()
    if len(order) and (np.diff(order) <= 0).any():
        samples = samples.take(np.argsort(order, kind="stable"))
    return samples.combine_chunks(), bad


def make_side_table(
    database: sql.Database, name: str, file: RawFile, columns: Sequence[Column]
) -> None:
    """Makes a table of a file that samples are joined with.

    Raises:
      DataError: if the file cannot be read or a line is bad, or two have one key.
    """
    query, key = "SELECT * FROM raw", sql.name(columns[0].name)
    tables = []
    for chunk in file.chunks():
        table, bad = typed_samples(database, file, chunk, columns, query)
        if bad:
            raise DataError(bad[0])
        tables.append(table)
    if not tables:
        raise DataError(f"{file.path}: is empty")
    query = f"CREATE OR REPLACE TABLE {sql.name(name)} AS "
    query += f"SELECT * EXCLUDE {sql.name(ROW)} FROM side"
    database.run(query, side=pa.concat_tables(tables))
    twice = database.rows(
        f"SELECT {key}, count(*) FROM {sql.name(name)} GROUP BY 1 HAVING count(*) > 1 "
        "ORDER BY 1 LIMIT 1"
    )
    for value, count in twice:
        raise DataError(f"{file.path}: {columns[0].name} {value!r} has {count} lines")


def make_kinds_equal(recipe: Recipe, chunks: Sequence[SampleChunk]) -> None:
    """Checks that the values of each table are all text or all whole numbers; a column
    of a chunk that has no value is of any kind, and gets that of the others.

    Raises:
      DataError: if columns that share a table, or files, differ in this.
    """
    first: dict[str, tuple[pa.DataType, str]] = {}
    gathered = recipe.history.sequences if recipe.history else ()
    features = [f for f in recipe.categories if f.name not in gathered]
    schemas = [chunk.schema() for chunk in chunks]
    kinds: dict[str, set[pa.DataType]] = {}
    for schema in schemas:
        for feature in features:
            kinds.setdefault(feature.table, set()).add(schema.field(feature.name).type)
    mixed = [f for f in features if len(kinds[f.table]) > 1]
    if not mixed:
        return
    words = {True: "text", False: "whole numbers"}
    for chunk in chunks:
        samples = chunk.read()
        for feature in mixed:
            column = samples[feature.name].combine_chunks()
            if _has_values(column):
                where = f"column {feature.name!r} of {recipe.raw[chunk.file].path}"
                kind, there = first.setdefault(
                    feature.table, (_single(column.type), where)
                )
                if kind != _single(column.type):
                    raise DataError(
                        f"{where} has {words[is_text(column.type)]}, {there} has "
                        f"{words[is_text(kind)]}, and both read table "
                        f"{feature.table!r}: must be of one kind; write both alike, or "
                        "give them tables of their own"
                    )
    lists = {
        f.name
        for f in mixed
        for schema in schemas
        if pa.types.is_list(schema.field(f.name).type)
    }
    for chunk in chunks:
        samples = chunk.read()
        for feature in mixed:
            column = samples[feature.name].combine_chunks()
            kind, _ = first.get(feature.table, (pa.string(), ""))
            kind = pa.list_(kind) if feature.name in lists else kind
            if column.type != kind and not _has_values(column):
                place = samples.column_names.index(feature.name)
                empty = pa.nulls(len(samples), kind)
                samples = samples.set_column(place, feature.name, empty)
        write_arrow(chunk.path, samples)


def _single(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def _has_values(column: pa.Array) -> bool:
    singles = column.flatten() if pa.types.is_list(column.type) else column
    return singles.null_count < len(singles)


def _with_times(samples: pa.Table, path: Path, name: str) -> pa.Table:
    place = samples.column_names.index(TIME)
    try:
        times = as_times(samples[TIME].combine_chunks())
    except ValueError as error:
        raise DataError(f"{path}: column {name}: {error}") from None
    return samples.set_column(place, TIME, times)


def _typed(
    database: sql.Database, file: RawFile, columns: Sequence[Column], rows: pa.Table
) -> list[tuple[Column, Typed]]:
    """Returns the SQL of each column of some rows."""
    types = {}
    if not isinstance(file, TextFile):
        described = database.rows("DESCRIBE chunk", chunk=rows)
        types = {name: type_ for name, type_, *_ in described}
    made = []
    for column in columns:
        try:
            raw = file.column(column.name)
            made.append((column, column.typed(raw, types.get(raw, "VARCHAR"))))
        except DataError as error:
            raise DataError(f"{file.path}: column {column.name}: {error}") from None
    return made


def _bad_rows(
    database: sql.Database,
    file: RawFile,
    made: Sequence[tuple[Column, Typed]],
    good: str,
    rows: pa.Table,
    most: int,
) -> list[str]:
    """Returns what is wrong with the first bad ones of some rows."""
    which = " ".join(
        f"WHEN NOT coalesce({typed.check}, false) THEN {place}"
        for place, (_, typed) in enumerate(made)
    )
    values = " ".join(
        f"WHEN {place} THEN ({file.column(column.name)})::VARCHAR"
        for place, (column, _) in enumerate(made)
    )
    line = "line" if file.unit == "line" else "NULL"
    found = database.rows(
        f"SELECT number, problem, place, CASE place {values} END, {line} FROM "
        f"(SELECT *, CASE {which} END AS place FROM {file.source()} WHERE NOT {good}) "
        f"ORDER BY number LIMIT {most}",
        chunk=rows,
    )
    told = []
    for number, problem, place, value, line in found:
        if problem is not None:
            of_line = f": {shown(line.encode())}" if line is not None else ""
            what = f"{problem}{of_line}"
        else:
            column, typed = made[place]
            what = f"column {column.name}: "
            if value is None or not value.strip():
                what += "is empty, must have a value"
            else:
                what += f"value is {shown(value.encode())}, {typed.rule}"
        told.append(f"{file.path}, {file.unit} {number}: {what}")
    return told
