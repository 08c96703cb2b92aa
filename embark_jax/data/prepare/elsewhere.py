"""Values that were counted elsewhere, by an engine such as Spark."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from embark_jax.data.batch import DataError
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.recipe import Recipe
from embark_jax.data.prepare.values import Column

VALUE, COUNT = "value", "count"
"""Columns of a vocabulary that was made elsewhere."""


def counted_elsewhere(
    database: sql.Database,
    folder: Path | None,
    recipe: Recipe,
    hashed: Collection[str],
) -> dict[str, pa.Table]:
    """Returns ``key`` and ``count`` of the values of each table that are given.

    Args:
      database: has the functions of ``values``.
      folder: has ``TABLE.parquet``, or a folder ``TABLE`` of Parquet files, for each
        table whose values were counted there, with the columns ``value`` and ``count``.
        None gives nothing.
      recipe: names the tables.
      hashed: tables without a vocabulary.

    Raises:
      DataError: if there are files of none of the tables, or one lacks a column.
    """
    if folder is None:
        return {}
    tables = sorted({feature.table for feature in recipe.categories} - {*hashed})
    paths = {
        table: path
        for table in tables
        for path in (folder / table, folder / f"{table}.parquet")
        if path.exists()
    }
    if not paths:
        raise DataError(
            f"--vocabulary {folder}: has no TABLE.parquet, and no folder TABLE, of "
            f"the tables {', '.join(tables)}"
        )
    return {table: _read(database, path) for table, path in paths.items()}


def _read(database: sql.Database, path: Path) -> pa.Table:
    try:
        given = ds.dataset(path, format="parquet").to_table([VALUE, COUNT])
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{path}: must have the columns {VALUE} and {COUNT} ({error})"
        ) from None
    (type_,) = database.rows("SELECT any_value(typeof(value)) FROM given", given=given)[
        0
    ]
    try:
        key = Column(VALUE, "category").typed("value", type_ or "VARCHAR")
    except DataError as error:
        raise DataError(f"{path}: column {VALUE}: {error}") from None
    return database.table(
        f"SELECT {key.value} AS key, sum(count)::BIGINT AS count FROM given "
        "WHERE key IS NOT NULL GROUP BY ALL",
        given=given,
    )
