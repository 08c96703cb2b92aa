"""The second stage: counts the values of the training samples, and numbers them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax._base.files import write_arrow
from embark_jax.data.batch import DataError
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.pipeline import Workers
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.column_report import (
    FeatureSeen,
    Report,
    ValuesSeen,
    values_seen,
)
from embark_jax.data.prepare.encode import values_of
from embark_jax.data.prepare.extension import Earlier
from embark_jax.data.prepare.numbers import FittedNumber, NumberFit, in_sample
from embark_jax.data.prepare.recipe import TRAIN, Recipe, labels_of
from embark_jax.data.prepare.samples import SampleChunk
from embark_jax.data.prepare.vocabulary import (
    FIRST_ID,
    MISSING_ID,
    hash_of,
    is_text,
    vocabulary_file,
)
from embark_jax.data.row_order import rows_by_counts
from embark_jax.plans.tables import FeatureSpec


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
      report: the report that a user reads.
    """

    table_rows: Mapping[str, int]
    hashed_tables: tuple[str, ...]
    hotness: Mapping[str, int]
    numbers: Mapping[str, FittedNumber]
    vocabularies: tuple[HashedFile, ...]
    report: Report


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
      vocabularies: values of tables that were counted elsewhere, by table: a folder or
        file of Parquet with the columns ``value`` and ``count``.
    """

    min_count: int
    max_rows: int
    hashed: Mapping[str, int]
    numbered: Mapping[str, int]
    by_frequency: Collection[str]
    vocabularies: Mapping[str, pa.Table]


def count(
    database: sql.Database,
    recipe: Recipe,
    chunks: Sequence[SampleChunk],
    splits: Sequence[np.ndarray],
    out: Path,
    tables: Tables,
    earlier: Earlier | None,
    workers: Workers,
) -> Counted:
    """Counts the values of the training samples; writes the vocabularies.

    Args:
      database: for the queries.
      recipe: the recipe of the data set.
      chunks: the samples of the data set.
      splits: the split of each sample of each chunk.
      out: folder of the prepared data, for the vocabularies.
      tables: how rows are numbered.
      earlier: data whose rows and transforms are kept; None if there are none.
      workers: progress is a number of tables.
    """
    samples = [chunk.read() for chunk in chunks]  # mapped into memory
    train = pa.concat_tables(
        [
            table.append_column("is training", pa.array(split == TRAIN))
            for table, split in zip(samples, splits, strict=True)
        ]
    )
    longest = {}
    if recipe.columns is not None:
        longest = {n: column.longest for n, column in recipe.columns.features.items()}
    fits = _fits(recipe, samples, splits)
    columns = {feature.name: f"c{i}" for i, feature in enumerate(recipe.categories)}
    queried = train.select([*columns, "is training"])
    queried = queried.rename_columns([*columns.values(), "training"])
    with database.tables(samples=queried):
        bags = _bags(database, recipe, columns, train.schema, longest)
        of_tables: dict[str, list[FeatureSpec]] = {}
        for feature in recipe.categories:
            of_tables.setdefault(feature.table, []).append(feature)
        rows, seen = dict(tables.numbered), {}
        hashed, files = [], []
        for done, (table, features) in enumerate(of_tables.items(), 1):
            # Values that a history repeats were counted where they occurred.
            repeats = recipe.history.sequences if recipe.history else ()
            names = [f.name for f in features if f.name not in repeats]
            kinds = [train.schema.field(name).type for name in names]
            values = " UNION ALL ".join(
                f"SELECT {values_of(columns[name], kind)} AS key FROM samples "
                "WHERE training"
                for name, kind in zip(names, kinds, strict=True)
            )
            if table not in {**tables.hashed, **tables.numbered}:
                file = _count_table(
                    database, table, values, kinds[0], out, tables, earlier, seen
                )
                if file is None:
                    rows[table] = tables.max_rows
                    hashed.append(table)
                else:
                    files.append(file)
                    rows[table] = FIRST_ID + _length(database, "kept")
            elif table in tables.hashed:
                rows[table] = tables.hashed[table]
                hashed.append(table)
            if table in tables.by_frequency:
                row = "key" if table in tables.numbered else hash_of("key", rows[table])
                files.append(
                    _number_rows(
                        database, table, values, row, rows[table], out, earlier
                    )
                )
            workers.progress("count", done, len(of_tables))
    fitted = {name: fit.fitted() for name, fit in fits.items()}
    ranges = {f.name for f in recipe.features if f.name in recipe.numbers}
    hotness = {
        name: min(seen.longest, longest.get(name) or seen.longest)
        for name, seen in bags.items()
    }
    if earlier is not None:
        fitted |= earlier.manifest.numbers
        before = earlier.manifest.features
        hotness = {n: max(ids, before[n].hotness) for n, ids in hotness.items()}
    positive = _mean_labels(samples, splits)
    return Counted(
        table_rows=rows | {name: fitted[name].rows for name in ranges},
        hotness=hotness | dict.fromkeys(ranges, 1),
        hashed_tables=tuple(hashed),
        numbers=fitted,
        vocabularies=tuple(files),
        report=Report(
            positive=float(positive.mean()),
            labels=dict(zip(recipe.labels, positive.tolist(), strict=False)),
            features=bags,
            tables=seen,
            numbers={name: fit.seen() for name, fit in fits.items()},
        ),
    )


def _count_table(
    database: sql.Database,
    table: str,
    values: str,
    kind: pa.DataType,
    out: Path,
    tables: Tables,
    earlier: Earlier | None,
    seen: dict[str, ValuesSeen],
) -> HashedFile | None:
    """Writes the vocabulary of a table, which is ``kept`` then; None if it has too many
    values.

    Raises:
      DataError: if earlier data do not allow it to be hashed.
    """
    if table in tables.vocabularies:
        query = "CREATE OR REPLACE TEMP TABLE counted AS FROM elsewhere"
        database.run(query, elsewhere=tables.vocabularies[table])
    else:
        database.run(
            "CREATE OR REPLACE TEMP TABLE counted AS SELECT key, count(*) AS count "
            f"FROM ({values}) WHERE key IS NOT NULL GROUP BY key"
        )
    if _length(database, "counted") > tables.max_rows:
        if table in tables.vocabularies:
            raise DataError(
                f"--vocabulary: table {table!r} has more than --max-rows "
                f"{tables.max_rows:,} values; raise it, or hash the column"
            )
        if earlier is not None:
            earlier.refuse(table, tables.max_rows)
        return None
    seen[table] = values_seen(database, is_text(kind))
    if earlier is not None:
        earlier.extend(database, table, tables.min_count, tables.max_rows)
    else:
        database.run(
            "CREATE OR REPLACE TEMP TABLE kept AS SELECT key, count, row_number() OVER "
            "(ORDER BY count DESC, key) AS place FROM counted "
            f"WHERE count >= {tables.min_count}"
        )
    kept = database.table("SELECT key, count FROM kept ORDER BY place")
    file = vocabulary_file(table)
    write_arrow(out / file, kept)
    return HashedFile.of(out, file)


def _mean_labels(
    samples: Sequence[pa.Table], splits: Sequence[np.ndarray]
) -> np.ndarray:
    """Returns the mean of each label of the training samples."""
    labels = [
        np.atleast_2d(labels_of(table)[split == TRAIN].T)
        for table, split in zip(samples, splits, strict=True)
    ]
    total = sum(of_chunk.shape[1] for of_chunk in labels)
    ones = sum(of_chunk.sum(axis=1, dtype=np.float64) for of_chunk in labels)
    return np.asarray(ones) / max(total, 1)


def _length(database: sql.Database, table: str) -> int:
    return database.rows(f"SELECT count(*) FROM {table}")[0][0]


def _number_rows(
    database: sql.Database,
    table: str,
    values: str,
    row: str,
    rows: int,
    out: Path,
    earlier: Earlier | None,
) -> HashedFile:
    """Writes the row of each hash or number of a table, and returns the file: by how
    often they occur, or as in earlier data; missing values keep their row."""
    if earlier is not None:
        numbers = earlier.row_numbers(table)
    else:
        found = database.table(
            f"SELECT ({row})::BIGINT AS id, count(*) AS count FROM ({values}) "
            "WHERE key IS NOT NULL GROUP BY 1"
        )
        counts = np.zeros(rows, np.int64)
        counts[found["id"].to_numpy()] = found["count"].to_numpy()
        if row != "key":
            counts[MISSING_ID] = counts.max() + 1
        numbers = rows_by_counts(counts)
    file = vocabulary_file(table)
    write_arrow(out / file, pa.table({"row": numbers}))
    return HashedFile.of(out, file)


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


def _bags(
    database: sql.Database,
    recipe: Recipe,
    columns: Mapping[str, str],
    schema: pa.Schema,
    longest: Mapping[str, int | None],
) -> dict[str, FeatureSeen]:
    """Returns what the bags of each feature are like."""
    bags = {}
    for feature in recipe.categories:
        column = columns[feature.name]
        length = f"({column} IS NOT NULL)::BIGINT"
        if pa.types.is_list(schema.field(feature.name).type):
            length = f"len({column})"
        most = longest.get(feature.name)
        cut = "0" if most is None else f"sum(greatest({length} - {most}, 0))"
        ((samples, empty, ids, largest, cut),) = database.rows(
            f"SELECT count(*) FILTER (training), "
            f"count(*) FILTER (training AND {length} = 0), "
            f"sum({length}) FILTER (training), max({length}), {cut} FROM samples"
        )
        bags[feature.name] = FeatureSeen(
            table=feature.table,
            samples=samples,
            empty=empty,
            ids=ids or 0,
            longest=max(feature.hotness, largest or 0),
            cut=cut,
        )
    return bags


def _fits(
    recipe: Recipe, samples: Sequence[pa.Table], splits: Sequence[np.ndarray]
) -> dict[str, NumberFit]:
    """Fits the transforms of numbers, in NumPy: sums of floats are the same for any
    number of threads."""
    fits = {name: NumberFit(column) for name, column in recipe.all_numbers.items()}
    start, total = 0, sum(map(len, samples))
    for table, split in zip(samples, splits, strict=True):
        is_train = split == TRAIN
        sampled = in_sample(start, len(table), total)[is_train]
        for name, fit in fits.items():
            numbers = table[name].combine_chunks().filter(pa.array(is_train))
            fit.add(numbers, sampled)
        start += len(table)
    return fits
