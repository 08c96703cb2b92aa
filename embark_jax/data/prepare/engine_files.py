"""Files as engines such as Spark, BigQuery, Ray Data and Polars write them: folders of
many Parquet files, partitioned by columns that are in the names of folders alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from embark_jax.data.batch import DataError
from embark_jax.data.prepare.values import ValueRule
from embark_jax.data.prepare.vocabulary import ValueCounter

VALUE, COUNT = "value", "count"
"""Columns of a vocabulary that was made elsewhere."""


class PartitionedFiles(NamedTuple):
    """The files of a folder, in the order of their paths.

    Attributes:
      paths: the files.
      partitions: for each the values that the names of its folders give to columns.
      names: names of the columns of the first file, and of those.
    """

    paths: list[Path]
    partitions: list[dict[str, Any]]
    names: list[str]

    @classmethod
    def find(cls, folder: Path) -> PartitionedFiles:
        """Finds the Parquet files in a folder and in those below it, but for what is
        hidden, or begins with _, as engines name their notes.

        Raises:
          DataError: if the first file cannot be read.
        """
        paths, partitions = [], []
        names: list[str] = []
        for path in sorted(folder.rglob("*.parquet")):
            folders = path.relative_to(folder).parts[:-1]
            if not any(name.startswith((".", "_")) for name in (*folders, path.name)):
                paths.append(path)
                partitions.append(_partition_of(folders))
        if paths:
            names = parquet_names(paths[0])
            names += [name for name in partitions[0] if name not in names]
        return cls(paths, partitions, names)


def _partition_of(folders: Sequence[str]) -> dict[str, Any]:
    """Returns the values, as texts, that folders such as ``day=2024-05-01`` give to
    columns."""
    columns = [
        name for name, equals, _ in (f.partition("=") for f in folders) if equals
    ]
    schema = pa.schema([(name, pa.string()) for name in columns])
    expression = ds.HivePartitioning(schema).parse("/".join([*folders, ""]))
    return dict(ds.get_partition_keys(expression))


def parquet_names(path: Path) -> list[str]:
    """Returns the names of a file's columns.

    Raises:
      DataError: if it cannot be read.
    """
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: {error}") from None


def with_partition(
    table: pa.Table, partition: Mapping[str, Any], wanted: Sequence[str]
) -> pa.Table:
    """Returns the wanted columns of a file, with those that its folders name."""
    for name, value in partition.items():
        if name in wanted and name not in table.column_names:
            column = pa.repeat(pa.scalar(value, pa.string()), len(table))
            table = table.append_column(name, column)
    return table.select(list(wanted))


class Vocabularies:
    """Values of tables and their counts, as an engine wrote them.

    Args:
      folder: has ``TABLE.parquet``, or a folder ``TABLE`` of Parquet files, for each
        table whose values were counted there, with the columns ``value`` and ``count``.
      tables: names of the tables.

    Raises:
      DataError: if there are files of none of the tables.
    """

    def __init__(self, folder: Path, tables: Iterable[str]):
        self._paths = {
            table: path
            for table in tables
            for path in (folder / table, folder / f"{table}.parquet")
            if path.exists()
        }
        if not self._paths:
            raise DataError(
                f"--vocabulary {folder}: has no TABLE.parquet, and no folder TABLE, of "
                f"the tables {', '.join(tables)}"
            )

    def read(self, rule: ValueRule, max_rows: int) -> dict[str, pa.Table]:
        """Returns ``key`` and ``count`` of the values of each table, the most frequent
        first.

        Raises:
          DataError: if a file lacks a column, or a table has more values than rows.
        """
        return {table: self._read(table, rule, max_rows) for table in self._paths}

    def _read(self, table: str, rule: ValueRule, max_rows: int) -> pa.Table:
        path = self._paths[table]
        try:
            counted = self._dataset(table).to_table([VALUE, COUNT])
        except (OSError, KeyError, pa.ArrowInvalid) as error:
            raise DataError(
                f"{path}: must have the columns {VALUE} and {COUNT} ({error})"
            ) from None
        keys = rule.categories(counted[VALUE], f"{path}: column {VALUE}", None, None)
        counts = counted[COUNT].cast(pa.int64())
        counter = ValueCounter(max_rows)
        both = pa.table({"key": keys, "count": counts})
        counter.add(both.filter(pa.array(both["key"].is_valid())))
        values = counter.values()
        if counter.too_many:
            raise DataError(
                f"{path}: has more than --max-rows {max_rows:,} values; raise it, or "
                "hash the column"
            )
        return values

    def _dataset(self, table: str) -> ds.Dataset:
        return ds.dataset(self._paths[table], format="parquet")
