"""The second stage: counts the values of the training samples and numbers them, and
fits the transforms of numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from embark_jax._base.config import nearest
from embark_jax._base.errors import DataError
from embark_jax._base.files import write_arrow
from embark_jax.data.columns import NumberColumn, Preparation
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import Manifest, PreparedFeature, Table
from embark_jax.data.numbers import FittedNumber
from embark_jax.data.table_values import TableValues
from embark_jax.data.vocabulary import FIRST_ID, vocabulary_file
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare import sql
from embark_jax.prepare.encode import vocabulary_table
from embark_jax.prepare.recipe import ROW, TRAIN, Recipe, Work
from embark_jax.prepare.samples import Samples

SAMPLED = 2**17
"""How many samples quantiles are computed from: all of smaller data, otherwise about so
many, whose quantiles are off by about a thousandth of the samples."""


def known_tables(
    recipe: Recipe, options: Preparation, earlier: TableValues | None
) -> dict[str, Table]:
    """Returns the tables whose rows no count of values decides: hashed ones, and those
    whose row numbers the data have themselves.

    Raises:
      DataError: if a column cannot be so, or columns of one table differ.
    """
    tables = {feature.name: feature.table for feature in recipe.categories}
    hashed = dict.fromkeys(tables.values(), options.max_rows) if options.hashed else {}
    rows_of: dict[str, int] = {}
    for name, rows in options.hash_columns.items():
        if name not in tables:
            raise DataError(
                f"hash_columns.{name}: no such column of categories; "
                f"{nearest(name, tables)}"
            )
        rows = options.max_rows if rows is None else rows
        if rows_of.setdefault(tables[name], rows) != rows:
            raise DataError(
                f"hash_columns.{name}: {rows:,} rows, but another column of table "
                f"{tables[name]!r} has {rows_of[tables[name]]:,}; give one of them"
            )
    hashed |= rows_of
    if earlier is not None:
        kept = earlier.manifest.tables.items()
        hashed |= {name: table.rows for name, table in kept if table.kind == "hashes"}
    numbered: dict[str, int | None] = {}
    for feature in recipe.features:
        rows = recipe.rows.get(feature.name)
        if numbered.setdefault(feature.table, rows) != rows:
            raise DataError(
                f"features.{feature.name}.rows: is {rows}, another column of table "
                f"{feature.table!r} says otherwise; columns of one table must agree"
            )
    known = {name: Table(rows=n, kind="hashes") for name, n in hashed.items()}
    known |= {name: Table(rows=n, kind="numbers") for name, n in numbered.items() if n}
    return known


def describe(work: Work, samples: Samples, known: Mapping[str, Table]) -> Manifest:
    """Counts the values of the training samples, and writes the vocabularies.

    Args:
      work: what is prepared; the database gets the vocabularies.
      samples: the samples.
      known: the tables whose rows no count decides.

    Returns:
      The manifest, complete but for the files of samples.
    """
    recipe, types, earlier = work.recipe, samples.types, work.earlier
    of_tables: dict[str, list[FeatureSpec]] = {}
    for feature in recipe.categories:
        of_tables.setdefault(feature.table, []).append(feature)
    tables: dict[str, Table] = {}
    for done, (name, features) in enumerate(of_tables.items(), 1):
        values = " UNION ALL ".join(
            f"SELECT {_values_of(f.name, types)} AS key FROM samples "
            f"WHERE split = {TRAIN}"
            for f in features
        )
        table = known.get(name) or _counted(work, name, values)
        is_text = any(types[f.name].startswith("VARCHAR") for f in features)
        tables[name] = table.model_copy(update={"is_text": is_text})
        work.progress("count", done, len(of_tables))
    numbers = _fit(work.database, recipe.all_numbers, sum(samples.rows))
    hotness = {f.name: _longest_bag(work, f, types[f.name]) for f in recipe.categories}
    if earlier is not None:
        numbers |= earlier.manifest.numbers
        before = earlier.manifest.features
        hotness = {n: max(ids, before[n].hotness) for n, ids in hotness.items()}
    ranges = [f.name for f in recipe.features if f.name in recipe.numbers]
    tables |= {name: Table(rows=numbers[name].rows, kind="ranges") for name in ranges}
    bags = recipe.bags_of_one_id
    features = {
        feature.name: PreparedFeature(
            table=feature.table,
            hotness=bags.get(feature.name) or hotness.get(feature.name, 1),
            pooling=feature.pooling,
            weighted=feature.weighted,
            bags_of_one_id=feature.name in bags,
        )
        for feature in recipe.features
    }
    features |= (
        {
            sequence: PreparedFeature(
                table=features[name].table,
                hotness=recipe.history.longest,
                pooling="none",
            )
            for sequence, name in recipe.history.features.items()
        }
        if recipe.history
        else {}
    )
    return Manifest.of(
        made_from=work.made_from,
        dense=recipe.dense,
        labels=recipe.labels,
        sample_weights=recipe.columns is not None and recipe.columns.weight is not None,
        features=features,
        tables=tables,
        raw_rows=samples.raw_rows,
        skipped_lines=samples.skipped,
        missing_dense=_missing(work),
        numbers={name: numbers[name] for name in recipe.numbers},
        columns=recipe.columns,
    )


def _values_of(name: str, types: Mapping[str, str]) -> str:
    """Returns SQL of the single values of a column, which may have lists."""
    return f"unnest({sql.name(name)})" if types[name].endswith("]") else sql.name(name)


def _counted(work: Work, name: str, values: str) -> Table:
    """Makes and writes the vocabulary of a table: earlier values in their rows, with
    counts of all days, then those that are new and frequent enough. Of one with too
    many values there is none, and they are hashed.

    Raises:
      DataError: if earlier data have other rows: there are more values than rows, or
        they are of other types.
    """
    database, earlier, max_rows = work.database, work.earlier, work.options.max_rows
    database.run(
        "CREATE OR REPLACE TABLE counted AS SELECT key, count(*) AS count "
        f"FROM ({values}) WHERE key IS NOT NULL GROUP BY key"
    )
    ((there,),) = database.rows("SELECT count(*) FROM counted")
    if earlier is None and there > max_rows:
        return Table(rows=max_rows, kind="hashes")
    before = database.table("FROM counted LIMIT 0")
    if earlier is not None:
        before = earlier.vocabulary(name)
        _make_alike(database, name, before["key"])
    kept = database.table(
        "SELECT coalesce(before.key, counted.key) AS key, "
        "coalesce(before.count, 0) + coalesce(counted.count, 0) AS count "
        "FROM before FULL JOIN counted ON before.key = counted.key "
        f"WHERE before.key IS NOT NULL OR counted.count >= {work.options.min_count} "
        "ORDER BY before.place NULLS LAST, 2 DESC, 1",
        before=before.append_column("place", pa.array(np.arange(len(before)))),
    )
    if max(there, len(kept)) > max_rows:
        raise DataError(
            f"table {name!r}: has more values than max_rows {max_rows:,}, so it "
            "would be hashed, which gives those of the earlier data other rows; raise "
            "max_rows, or prepare anew without --extend"
        )
    ids = pa.array(np.arange(FIRST_ID, FIRST_ID + len(kept)))
    database.run(
        f"CREATE TABLE {vocabulary_table(name)} AS SELECT key, id FROM kept",
        kept=kept.append_column("id", ids),
    )
    database.run("DROP TABLE counted")
    write_arrow(work.out / vocabulary_file(name), kept)
    file = HashedFile.of(work.out, vocabulary_file(name))
    return Table(rows=FIRST_ID + len(kept), kind="values", file=file)


def _make_alike(database: sql.Database, table: str, earlier: pa.ChunkedArray) -> None:
    """Makes the values of ``counted`` of the type that earlier ones have."""
    (kind,) = database.rows("SELECT any_value(key) FROM counted")[0]
    known = earlier[0].as_py() if len(earlier) else kind
    if kind is None:  # a column without values is of any kind
        database.run("ALTER TABLE counted ALTER key TYPE VARCHAR")
    elif type(kind) is not type(known):
        words = {str: "text", int: "whole numbers"}
        raise DataError(
            f"table {table!r}: values are {words[type(kind)]}, but {earlier.type} in "
            "the earlier data; write the column as it was, or prepare anew without "
            "--extend"
        )


def _longest_bag(work: Work, feature: FeatureSpec, type_: str) -> int:
    """Returns the length of the longest bag of a feature in all splits, as far as bags
    are kept."""
    longest = feature.hotness
    if type_.endswith("]"):
        query = f"SELECT max(len({sql.name(feature.name)})) FROM samples"
        longest = max(longest, work.database.rows(query)[0][0] or 0)
    columns = work.recipe.columns
    described = columns.features.get(feature.name) if columns else None
    kept = described.longest if described else None
    return min(longest, kept or longest)


def _missing(work: Work) -> dict[str, int]:
    """Returns how many values of each dense column are missing, and become 0."""
    numbers = work.recipe.all_numbers
    names = [n for n in work.recipe.dense if numbers[n].missing == "zero"]
    if not names:
        return {}
    counts = ", ".join(f"count(*) - count({sql.name(name)})" for name in names)
    (found,) = work.database.rows(f"SELECT {counts} FROM samples")
    return {n: count for n, count in zip(names, found, strict=True) if count}


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
