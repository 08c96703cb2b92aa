"""Reads a user's own files: text with a header, or Parquet."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.columns import CategoryColumn, Columns, check_there
from embark_jax.data.prepare.raw_files import (
    ParquetFile,
    PartitionedFiles,
    RawFile,
    TextFile,
    first_line,
    header_names,
    parquet_names,
)
from embark_jax.data.prepare.recipe import (
    ROW,
    SPLIT,
    TIME,
    WEIGHT,
    Recipe,
    given_split,
    last_share,
)
from embark_jax.data.prepare.values import Column, split_named
from embark_jax.plans.tables import FeatureSpec

HELD_OUT_SHARES = 10
"""A split by time holds out one of this many parts; files are in the order of names."""
TEXT_FILES = ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz")
PARQUET_FILES = ("*.parquet",)


class OwnFiles(NamedTuple):
    """A user's own files.

    Attributes:
      paths: the files, in the order of their names.
      names: names of the columns, which all files have.
      separator: separator of the columns; None if the files are Parquet.
      partitions: for each file in folders that an engine wrote, the values of columns
        that their names give.
    """

    paths: list[Path]
    names: list[str]
    separator: str | None
    partitions: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def find(cls, raw: Path, columns: Columns, patterns: Sequence[str]) -> OwnFiles:
        """Finds the files, and reads the columns of the first.

        Raises:
          DataError: if there are no files, or the first names no columns.
        """
        if patterns is PARQUET_FILES and raw.is_dir():
            files = PartitionedFiles.find(raw)
            if files.paths:
                return cls(files.paths, files.names, None, files.partitions)
        if raw.is_file() and any(raw.match(pattern) for pattern in patterns):
            paths = [raw]
        else:
            paths = sorted(path for pattern in patterns for path in raw.glob(pattern))
        if not paths:
            verb = "has" if raw.is_dir() else "is"
            problem = f"{verb} no {' or '.join(patterns)}"
            if not raw.exists():
                raise DataError(f"{raw}: no such file or folder")
            raise DataError(
                f"{raw}: {problem}; name such a file, or a folder of such files"
            )
        if patterns is PARQUET_FILES:
            return cls(paths, parquet_names(paths[0]), None)
        by_suffix = "\t" if ".tsv" in paths[0].name else ","
        separator = columns.separator or by_suffix
        line = first_line(paths[0])
        if not line.strip():
            raise DataError(f"{paths[0]}, line 1: is empty, must name the columns")
        return cls(paths, header_names(paths[0], line, separator), separator)

    @classmethod
    def of_rows(cls, path: Path, columns: Columns, wanted: Sequence[str]) -> OwnFiles:
        """Finds files with rows to score, which must have the wanted columns.

        Raises:
          DataError: if there are no files, or a column is missing.
        """
        has_parquet = path.is_dir() and any(path.glob(PARQUET_FILES[0]))
        is_parquet = path.suffix == ".parquet" or has_parquet
        files = cls.find(path, columns, PARQUET_FILES if is_parquet else TEXT_FILES)
        check_there(wanted, files.names, str(files.paths[0]))
        return files

    def readers(self, used: Sequence[str]) -> list[RawFile]:
        """Returns what reads the files; of Parquet the used columns alone."""
        if self.separator is not None:
            return [
                TextFile(path, tuple(self.names), self.separator, True, True)
                for path in self.paths
            ]
        partitions = self.partitions or [{} for _ in self.paths]
        return [
            ParquetFile(path, tuple(used), partition)
            for path, partition in zip(self.paths, partitions, strict=True)
        ]


def csv(raw: Path, columns: Columns) -> Recipe:
    """Reads a .csv or .tsv file, plain or gzip, or all of a folder, with one header."""
    return _recipe(OwnFiles.find(raw, columns, TEXT_FILES), columns)


def parquet(raw: Path, columns: Columns) -> Recipe:
    """Reads a .parquet file, or all of a folder, with the same columns."""
    return _recipe(OwnFiles.find(raw, columns, PARQUET_FILES), columns)


def as_they_are(path: Path, columns: Columns, wanted: Sequence[str]) -> pa.Table:
    """Reads columns of files with rows to score, of text files as their texts.

    Raises:
      DataError: if there are no files, or a column is missing, or a line is bad.
    """
    from embark_jax.data.prepare.samples import typed_samples

    files = OwnFiles.of_rows(path, columns, wanted)
    read = [Column(name, "as it is") for name in wanted]
    tables = []
    with contextlib.closing(sql.Database()) as database:
        for file in files.readers(wanted):
            for chunk in file.chunks():
                table, bad = typed_samples(
                    database, file, chunk, read, "SELECT * FROM raw"
                )
                if bad:
                    raise DataError(bad[0])
                tables.append(table.drop_columns([ROW]))
    if not tables:
        return pa.table({name: [] for name in wanted})
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{path}: columns differ between files: {error}") from None


def _recipe(files: OwnFiles, columns: Columns) -> Recipe:
    paths = files.paths
    columns = columns.completed(files.names, str(paths[0]))
    of_files = None if columns.time or columns.split else _splits_of_files(paths)
    ranges = [n for n, c in columns.dense.items() if c.transform == "quantiles"]
    is_given = columns.split or of_files is not None
    in_order = None if columns.time else last_share(HELD_OUT_SHARES)
    read = [*label_columns(columns), *input_columns(columns), *_others(columns)]
    return Recipe(
        raw=files.readers(columns.named),
        raw_columns=read,
        query=samples_query(columns, read),
        dense=tuple(name for name in columns.dense if name not in ranges),
        features=(
            *(_feature(name, column) for name, column in columns.features.items()),
            *map(FeatureSpec, ranges),
        ),
        time_split=given_split if is_given else in_order,
        usual_split="time" if is_given or columns.time else "random",
        file_splits=of_files,
        numbers=columns.dense,
        columns=columns,
    )


def label_columns(columns: Columns, required: bool = True) -> list[Column]:
    """Returns how labels and weights are read."""
    bounds, rule = None, None
    if columns.positive_from is None:
        bounds = (0, 1)
        rule = "must be from 0 to 1; for ratings, give the lowest positive one: "
        rule += "positive_from=4"
    labels = [
        Column(name, "number", required, bounds, rule=rule, alias=f"{LABEL} of {name}")
        for name in columns.targets
    ]
    if columns.weight:
        rule = "must be 0 or more"
        weight = Column(columns.weight, "number", required, (0, 3e38), rule=rule)
        labels.append(dataclasses.replace(weight, alias=WEIGHT))
    return labels


def _others(columns: Columns) -> list[Column]:
    """Returns how the columns are read that say when a sample was, or its split."""
    others = []
    if columns.time:
        others.append(Column(columns.time, "time", required=True, alias=TIME))
    if columns.split:
        others.append(Column(columns.split, "split", alias=SPLIT))
    return others


def input_columns(columns: Columns, texts: Sequence[str] | None = None) -> list[Column]:
    """Returns how the columns that a prediction needs are read.

    Args:
      columns: the columns.
      texts: features that had texts in training; None takes what the columns are.
    """
    numbers = [Column(name, "number") for name in columns.dense]
    return numbers + [
        _category(name, column, None if texts is None else name in texts)
        for name, column in columns.features.items()
    ]


def samples_query(columns: Columns, read: Sequence[Column]) -> str:
    """Returns SQL that makes samples of these of the columns; without all labels, they
    have none."""
    aliases = {column.alias for column in read} - {None}
    marks = [name for column in read if (name := column.alias or "").startswith(LABEL)]
    marks = [sql.name(mark) for mark in marks]
    if columns.positive_from is not None:
        marks = [f"({mark} >= {columns.positive_from!r})" for mark in marks]
    made = [ROW, *columns.inputs, *sorted({WEIGHT, TIME, SPLIT} & aliases)]
    made = list(map(sql.name, made))
    if len(marks) == len(columns.targets):
        label = f"{marks[0]}::FLOAT"
        if columns.labels:
            label = f"[{', '.join(marks)}]::FLOAT[{len(marks)}]"
        made.append(f"{label} AS {sql.name(LABEL)}")
    return f"SELECT {', '.join(made)} FROM raw"


def _category(name: str, column: CategoryColumn, is_text: bool | None) -> Column:
    bounds, rule = None, None
    if column.rows is not None:
        bounds, is_text = (0, column.rows - 1), False
        rule = (
            f"must be a row number from 0 to {column.rows - 1:,}, as features.{name}"
            ".rows says"
        )
    return Column(
        name,
        "category",
        bounds=bounds,
        separator=column.separator,
        is_text=is_text,
        rule=rule,
    )


def _feature(name: str, column: CategoryColumn) -> FeatureSpec:
    # Bags are pooled by their mean; the mean of a single id's row is that row.
    pooling = "none" if column.sequence else "mean"
    return FeatureSpec(name, column.table or name, pooling=pooling)


def _splits_of_files(paths: Sequence[Path]) -> list[int] | None:
    """Returns the split of each file, if all names give one, and some give training."""
    splits = [split_named(path.name) for path in paths]
    numbers = [number for number in splits if number is not None]
    return numbers if len(numbers) == len(paths) and {0, 2} <= set(numbers) else None
