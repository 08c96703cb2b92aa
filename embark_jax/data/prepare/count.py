"""The second stage: counts the values of the training samples and numbers them, and
fits the transforms of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from embark_jax._base.errors import DataError
from embark_jax._base.files import write_arrow
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.pipeline import Progress
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.columns import NumberColumn
from embark_jax.data.prepare.encode import values_of, vocabulary_table
from embark_jax.data.prepare.extension import Earlier
from embark_jax.data.prepare.numbers import FittedNumber
from embark_jax.data.prepare.recipe import ROW, TRAIN, Recipe
from embark_jax.data.prepare.values import Column
from embark_jax.data.prepare.vocabulary import (
    FIRST_ID,
    MISSING_ID,
    hash_of,
    vocabulary_file,
)
from embark_jax.data.row_order import rows_by_counts
from embark_jax.plans.tables import FeatureSpec

SAMPLED = 2**17
"""How many samples quantiles are computed from: all of smaller data, otherwise about so
many, whose quantiles are off by about a thousandth of the samples."""
VALUE, COUNT = "value", "count"
"""Columns of a vocabulary that was made elsewhere."""


@dataclasses.dataclass(frozen=True)
class Counted:
    """What encoding needs.

    Attributes:
      table_rows: number of rows of each table.
      hashed_tables: tables whose values are hashed.
      hotness: hotness of each feature: its longest bag, as far as bags are kept.
      numbers: transforms by column.
      vocabularies: the files of the tables that are not hashed, and of those whose rows
        are numbered by frequency.
    """

    table_rows: Mapping[str, int]
    hashed_tables: tuple[str, ...]
    hotness: Mapping[str, int]
    numbers: Mapping[str, FittedNumber]
    vocabularies: tuple[HashedFile, ...]


@dataclasses.dataclass(frozen=True)
class Tables:
    """How the rows of tables are numbered.

    Attributes:
      min_count: number of samples that a value needs for a row of its own.
      max_rows: most rows of a table; a table with more values is hashed to them.
      hashed: tables that are hashed whatever their values, with their rows.
      numbered: tables whose row numbers the data have themselves, with their rows.
      by_frequency: tables that are hashed or have row numbers, whose rows are numbered
        by frequency.
      elsewhere: values of tables that were counted elsewhere, by an engine such as
        Spark: a folder with ``TABLE.parquet``, or a folder ``TABLE`` of Parquet files,
        with the columns ``value`` and ``count``.
      earlier: data whose rows and transforms are kept; None if there are none.
    """

    min_count: int
    max_rows: int
    hashed: Mapping[str, int]
    numbered: Mapping[str, int]
    by_frequency: Collection[str]
    elsewhere: Path | None = None
    earlier: Earlier | None = None


def count(
    database: sql.Database,
    recipe: Recipe,
    types: Mapping[str, str],
    total: int,
    out: Path,
    tables: Tables,
    progress: Progress,
) -> Counted:
    """Counts the values of the training samples; writes the vocabularies.

    Args:
      database: has the samples, and gets the vocabularies.
      recipe: the recipe of the data set.
      types: types of the columns of samples.
      total: number of samples.
      out: folder of the prepared data, for the vocabularies.
      tables: how rows are numbered.
      progress: is told how many tables are done.
    """
    longest = {}
    if recipe.columns is not None:
        longest = {n: column.longest for n, column in recipe.columns.features.items()}
    of_tables: dict[str, list[FeatureSpec]] = {}
    for feature in recipe.categories:
        of_tables.setdefault(feature.table, []).append(feature)
    elsewhere = _elsewhere(tables, of_tables)
    rows, hashed, files = dict(tables.numbered), [], []
    hotness = {}
    # Values that a history repeats were counted where they occurred.
    repeats = recipe.history.sequences if recipe.history else ()
    for done, (table, features) in enumerate(of_tables.items(), 1):
        for feature in features:
            bags = _longest_bag(database, feature, types[feature.name])
            hotness[feature.name] = min(bags, longest.get(feature.name) or bags)
        values = " UNION ALL ".join(
            f"SELECT {values_of(sql.name(f.name), types[f.name])} AS key FROM samples "
            f"WHERE split = {TRAIN}"
            for f in features
            if f.name not in repeats
        )
        if table in tables.hashed:
            rows[table] = tables.hashed[table]
        elif table not in tables.numbered:
            kept = _count_table(database, table, values, tables, elsewhere.get(table))
            if kept is None:
                rows[table] = tables.max_rows
            else:
                write_arrow(out / vocabulary_file(table), kept)
                rows[table] = FIRST_ID + len(kept)
                files.append(vocabulary_file(table))
        if vocabulary_file(table) not in files and table not in tables.numbered:
            hashed.append(table)
        if table in tables.by_frequency:
            row = "key" if table in tables.numbered else hash_of("key", rows[table])
            numbers = _row_numbers(database, table, values, row, rows[table], tables)
            write_arrow(out / vocabulary_file(table), pa.table({"row": numbers}))
            files.append(vocabulary_file(table))
        progress("count", done, len(of_tables))
    fitted = _fit(database, recipe.all_numbers, total)
    ranges = {f.name for f in recipe.features if f.name in recipe.numbers}
    if tables.earlier is not None:
        fitted |= tables.earlier.manifest.numbers
        before = tables.earlier.manifest.features
        hotness = {n: max(ids, before[n].hotness) for n, ids in hotness.items()}
    return Counted(
        table_rows=rows | {name: fitted[name].rows for name in ranges},
        hotness=hotness | dict.fromkeys(ranges, 1),
        hashed_tables=tuple(hashed),
        numbers=fitted,
        vocabularies=tuple(HashedFile.of(out, file) for file in files),
    )


def _count_table(
    database: sql.Database,
    table: str,
    values: str,
    tables: Tables,
    elsewhere: Path | None,
) -> pa.Table | None:
    """Makes the vocabulary of a table, and returns the values that have rows, in the
    order of these, with their counts; None if it has too many values.

    Raises:
      DataError: if earlier data do not allow it to be hashed.
    """
    counted = (
        "CREATE OR REPLACE TABLE counted AS SELECT key, count(*) AS count "
        f"FROM ({values}) WHERE key IS NOT NULL GROUP BY key"
    )
    if elsewhere is None:
        database.run(counted)
    else:
        _read_elsewhere(database, elsewhere)
    ((values_there,),) = database.rows("SELECT count(*) FROM counted")
    if values_there > tables.max_rows:
        if elsewhere is not None:
            raise DataError(
                f"--vocabulary: table {table!r} has more than --max-rows "
                f"{tables.max_rows:,} values; raise it, or hash the column"
            )
        if tables.earlier is not None:
            tables.earlier.refuse(table, tables.max_rows)
        return None
    if tables.earlier is not None:
        tables.earlier.extend(database, table, tables.min_count, tables.max_rows)
    else:
        database.run(
            "CREATE OR REPLACE TABLE kept AS SELECT key, count, row_number() OVER "
            "(ORDER BY count DESC, key) AS place FROM counted "
            f"WHERE count >= {tables.min_count}"
        )
    database.run(
        f"CREATE TABLE {vocabulary_table(table)} AS SELECT key, place + "
        f"{FIRST_ID - 1} AS id FROM kept"
    )
    kept = database.table("SELECT key, count FROM kept ORDER BY place")
    database.run("DROP TABLE counted; DROP TABLE kept")
    return kept


def _elsewhere(tables: Tables, names: Collection[str]) -> dict[str, Path]:
    """Returns the files of the tables whose values were counted elsewhere.

    Raises:
      DataError: if there are files of none of the tables.
    """
    if (folder := tables.elsewhere) is None:
        return {}
    wanted = sorted({*names} - {*tables.hashed})
    paths = {
        table: path
        for table in wanted
        for path in (folder / table, folder / f"{table}.parquet")
        if path.exists()
    }
    if not paths:
        raise DataError(
            f"--vocabulary {folder}: has no TABLE.parquet, and no folder TABLE, of "
            f"the tables {', '.join(wanted)}"
        )
    return paths


def _read_elsewhere(database: sql.Database, path: Path) -> None:
    """Makes ``counted`` of values that were counted elsewhere."""
    try:
        given = ds.dataset(path, format="parquet").to_table([VALUE, COUNT])
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{path}: must have the columns {VALUE} and {COUNT} ({error})"
        ) from None
    type_ = database.types("FROM given", given=given)[VALUE]
    try:
        key = Column(VALUE, "category").typed(VALUE, type_)
    except DataError as error:
        raise DataError(f"{path}: column {VALUE}: {error}") from None
    database.run(
        f"CREATE OR REPLACE TABLE counted AS SELECT {key.value} AS key, "
        "sum(count)::BIGINT AS count FROM given WHERE key IS NOT NULL GROUP BY ALL",
        given=given,
    )


def _row_numbers(
    database: sql.Database,
    table: str,
    values: str,
    row: str,
    rows: int,
    tables: Tables,
) -> np.ndarray:
    """Returns the row of each hash or number of a table: by how often they occur, or as
    in earlier data; missing values keep their row."""
    if tables.earlier is not None:
        return tables.earlier.row_numbers(table)
    found = database.table(
        f"SELECT ({row})::BIGINT AS id, count(*) AS count FROM ({values}) "
        "WHERE key IS NOT NULL GROUP BY 1"
    )
    counts = np.zeros(rows, np.int64)
    counts[found["id"].to_numpy()] = found["count"].to_numpy()
    if row != "key":
        counts[MISSING_ID] = counts.max() + 1
    return rows_by_counts(counts)


def numbered_tables(recipe: Recipe) -> dict[str, int]:
    """Returns the rows of the tables whose row numbers the data have themselves.

    Raises:
      DataError: if a table has several numbers of rows.
    """
    rows_of: dict[str, int] = {}
    columns = {} if recipe.columns is None else recipe.columns.features
    for feature in recipe.features:
        column = columns.get(feature.name)
        rows = None if column is None else column.rows
        if rows_of.setdefault(feature.table, rows or 0) != (rows or 0):
            raise DataError(
                f"features.{feature.name}.rows: is {rows}, another column of table "
                f"{feature.table!r} says otherwise; columns of one table must agree"
            )
    return {table: rows for table, rows in rows_of.items() if rows}


def _longest_bag(database: sql.Database, feature: FeatureSpec, type_: str) -> int:
    """Returns the length of the longest bag of a feature in all splits."""
    if not type_.endswith("]"):
        return feature.hotness
    longest = f"SELECT max(len({sql.name(feature.name)})) FROM samples"
    return max(feature.hotness, database.rows(longest)[0][0] or 0)


def _fit(
    database: sql.Database, columns: Mapping[str, NumberColumn], total: int
) -> dict[str, FittedNumber]:
    """Fits the transform of each column to the training samples among ``samples``."""
    if not columns:
        return {}
    queried = []
    for name, column in columns.items():
        value = sql.name(name)
        if column.transform == "log":
            value = f"ln(1 + if({value} < 0, 0, {value}))"
        queried.append(f"min({value}), favg({value}), stddev_pop({value})")
    with database.one_thread():
        (found,) = database.rows(
            f"SELECT {', '.join(queried)} FROM samples WHERE split = {TRAIN}"
        )
    fitted = {}
    for place, (name, column) in enumerate(columns.items()):
        least, mean, deviation = (each or 0.0 for each in found[3 * place :][:3])
        edges = ()
        if column.transform == "quantiles":
            edges = _edges(database, name, column.quantiles, total)
        fitted[name] = FittedNumber(
            column=column,
            mean=mean,
            deviation=deviation or 1.0,  # a constant becomes 0
            edges=tuple(edge for edge in edges if edge > least),
        )
    return fitted


def _edges(
    database: sql.Database, name: str, ranges: int, total: int
) -> tuple[float, ...]:
    """Returns where ranges with equally many samples begin, but for the first."""
    sampled = "true"
    if total > SAMPLED:
        most = int(SAMPLED / total * 2.0**64)
        sampled = f"md5_number_lower(({sql.name(ROW)})::VARCHAR) < {most}"
    column = sql.name(name)
    values = database.table(
        f"SELECT ({column})::DOUBLE AS value FROM samples WHERE split = {TRAIN} AND "
        f"{column} IS NOT NULL AND {sampled}"
    )["value"].to_numpy()
    if not len(values):
        return ()
    shares = np.arange(1, ranges) / ranges
    return tuple(np.unique(np.quantile(values, shares, method="higher")).tolist())
