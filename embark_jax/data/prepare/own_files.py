"""Reads a user's own CSV or Parquet files, whose columns the user names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL, SPLITS
from embark_jax.data.prepare.chunks import read_chunks
from embark_jax.data.prepare.columns import CategoryColumn, Columns, check_there
from embark_jax.data.prepare.delimited import Column, header_names, with_header
from embark_jax.data.prepare.engine_files import PartitionedFiles, parquet_names
from embark_jax.data.prepare.recipe import (
    SPLIT,
    TIME,
    WEIGHT,
    DelimitedFile,
    ParquetFile,
    RawFile,
    Recipe,
    given_split,
    label_column,
    last_share,
)
from embark_jax.data.prepare.values import MISSING, ValueRule
from embark_jax.plans.tables import FeatureSpec

HELD_OUT_SHARES = 10
"""A split by time holds out one of this many parts; files are in the order of names."""
TEXT_FILES = ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz")
PARQUET_FILES = ("*.parquet",)
RULE = ValueRule()
_SPLIT_NAMES = {"train": 0, "valid": 1, "val": 1, "dev": 1, "test": 2}
"""The beginnings of the names of splits, in names of files and in columns."""


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
        return cls(paths, _header(paths[0], separator), separator)

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

    def readers(
        self,
        used: Sequence[str],
        column: Callable[[str], Column],
        missing: tuple[str, ...],
    ) -> list[RawFile]:
        """Returns what reads the files.

        Args:
          used: columns of Parquet that are read; of text all are.
          column: type of a column of text.
          missing: texts that stand for a missing value.
        """
        if self.separator is None:
            partitions = self.partitions or [{} for _ in self.paths]
            return [
                ParquetFile(path, tuple(used), partition)
                for path, partition in zip(self.paths, partitions, strict=True)
            ]
        layout = with_header(
            list(map(column, self.names)), self.separator, quotes=True, missing=missing
        )
        return [DelimitedFile(path, layout) for path in self.paths]


def csv(raw: Path, columns: Columns) -> Recipe:
    """Reads a .csv or .tsv file, plain or gzip, or all of a folder, with one header."""
    return _recipe(OwnFiles.find(raw, columns, TEXT_FILES), columns)


def parquet(raw: Path, columns: Columns) -> Recipe:
    """Reads a .parquet file, or all of a folder, with the same columns."""
    return _recipe(OwnFiles.find(raw, columns, PARQUET_FILES), columns)


def raw_rows(path: Path, columns: Columns) -> list[RawFile]:
    """Reads files with rows to score. They have the columns of the prepared files;
    label, time and split are optional.

    Raises:
      DataError: if there are no files, or a column is missing.
    """
    files = OwnFiles.of_rows(path, columns, columns.inputs)
    used = {*columns.inputs, *columns.targets, columns.weight} & set(files.names)
    check_there(sorted(used), files.names, str(files.paths[0]))
    column = functools.partial(_column, columns, label_required=False)
    return files.readers(sorted(used), column, MISSING)


def as_they_are(path: Path, columns: Columns, wanted: Sequence[str]) -> pa.Table:
    """Reads columns of the same files, of text files as their texts.

    Raises:
      DataError: if there are no files, or a column is missing.
    """
    files = OwnFiles.of_rows(path, columns, wanted)
    tables = [
        chunk.read("error").table.select(list(wanted))
        for file in files.readers(wanted, Column, missing=())
        for chunk in file.chunks()
    ]
    if not tables:
        return pa.table({name: [] for name in wanted})
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{path}: columns differ between files: {error}") from None


def _column(columns: Columns, name: str, label_required: bool = True) -> Column:
    """Returns the type of a column of text."""
    if name in columns.targets:
        bounds = None if columns.positive_from is not None else (0, 1)
        return Column(name, "number", required=label_required, bounds=bounds)
    if name == columns.weight:
        return Column(name, "number", required=label_required)
    return Column(name, "number" if name in columns.dense else "text")


def _recipe(files: OwnFiles, columns: Columns) -> Recipe:
    paths = files.paths
    columns = columns.completed(files.names, str(paths[0]))

    def samples(table: pa.Table, file: int) -> pa.Table:
        path = paths[file]
        made = inputs(table, columns, path)
        if columns.weight:
            weight = pa.array(weights(table, columns.weight, path))
            made = made.append_column(WEIGHT, weight)
        if columns.time:
            made = made.append_column(TIME, _times(table, columns.time, path))
        if columns.split:
            made = made.append_column(SPLIT, _splits(table, columns.split, path))
        elif of_files is not None:
            split = pa.array(np.full(len(table), of_files[file], np.uint8))
            made = made.append_column(SPLIT, split)
        return made.append_column(LABEL, label_column(labels(table, columns, path)))

    of_files = None if columns.time or columns.split else _splits_of_files(paths)
    ranges = [n for n, c in columns.dense.items() if c.transform == "quantiles"]
    is_given = columns.split or of_files is not None
    in_order = None if columns.time else last_share(HELD_OUT_SHARES)
    return Recipe(
        raw=files.readers(columns.named, functools.partial(_column, columns), MISSING),
        dense=tuple(name for name in columns.dense if name not in ranges),
        features=(
            *(_feature(name, column) for name, column in columns.features.items()),
            *map(FeatureSpec, ranges),
        ),
        samples=samples,
        time_split=given_split if is_given else in_order,
        usual_split="time" if is_given or columns.time else "random",
        numbers=columns.dense,
        columns=columns,
    )


def inputs(
    table: pa.Table,
    columns: Columns,
    path: Path,
    rule: ValueRule = RULE,
    text_features: Collection[str] | None = None,
) -> pa.Table:
    """Returns numbers and values of features, from the columns of a file.

    Args:
      table: the columns.
      columns: the columns' description.
      path: the file, for messages.
      rule: says which values are the same.
      text_features: features that had texts in training; None takes what the columns
        are.

    Raises:
      DataError: if a value breaks a rule.
    """
    dense = {name: _numbers(table, name, path, rule) for name in columns.dense}
    features = {}
    for name, column in columns.features.items():
        features[name] = rule.categories(
            table[name],
            f"{path}: column {name}",
            None if text_features is None else name in text_features,
            column.separator,
        )
    return pa.table({**dense, **features})


def labels(table: pa.Table, columns: Columns, path: Path) -> np.ndarray:
    """Returns float32 ``[samples]``, or ``[samples, tasks]`` if there are several, each
    from 0 to 1.

    Raises:
      DataError: if a label is missing or out of range.
    """
    arrays = [_label(table, name, columns, path) for name in columns.targets]
    return np.stack(arrays, axis=1) if columns.labels else arrays[0]


def weights(table: pa.Table, name: str, path: Path) -> np.ndarray:
    """Returns float32 ``[samples]``, 0 or more.

    Raises:
      DataError: if a weight is missing or negative.
    """
    weight = _complete(table, name, path, "weights")
    if len(bad := weight[weight < 0]):
        raise DataError(f"{path}: column {name}: is {bad[0]:g}, must be 0 or more")
    return weight.astype(np.float32)


def _label(table: pa.Table, name: str, columns: Columns, path: Path) -> np.ndarray:
    label = _complete(table, name, path, "labels")
    if columns.positive_from is not None:
        return (label >= columns.positive_from).astype(np.float32)
    label = label.astype(np.float32)
    if len(bad := label[(label < 0) | (label > 1)]):
        raise DataError(
            f"{path}: column {name}: value is {bad[0]:g}, must be from 0 to 1; for "
            "ratings, give the lowest positive one: positive_from=4"
        )
    return label


def _complete(table: pa.Table, name: str, path: Path, what: str) -> np.ndarray:
    """Returns a column as float64 in which no number may be missing."""
    numbers = _numbers(table, name, path)
    if numbers.null_count:
        raise DataError(f"{path}: column {name}: has missing {what}")
    return numbers.to_numpy()


def _feature(name: str, column: CategoryColumn) -> FeatureSpec:
    # Bags are pooled by their mean; the mean of a single id's row is that row.
    pooling = "none" if column.sequence else "mean"
    return FeatureSpec(name, column.table or name, pooling=pooling)


def _numbers(
    table: pa.Table, name: str, path: Path, rule: ValueRule = RULE
) -> pa.Array:
    """Returns a column as float64, with nulls for missing numbers: transforms are of
    all their digits, and their results alone are rounded to float32."""
    try:
        column = rule.numbers(table[name])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{path}: column {name}: {error}") from None
    numbers = column.fill_null(0).to_numpy()
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(numbers.astype(np.float32))
    if len(bad := numbers[~is_finite]):
        raise DataError(
            f"{path}: column {name}: value is {bad[0]:g}, must be finite in float32"
        )
    return column


def _times(table: pa.Table, name: str, path: Path) -> pa.Array:
    """Returns the times as int64, float64, or timestamps: none loses a digit.
    Those with a time zone are instants of UTC."""
    times = table[name].combine_chunks()
    if times.null_count:
        raise DataError(f"{path}: column {name}: has missing times")
    if (cast := _as_times(times)) is None:
        texts = (value.as_py() for value in times.unique())
        no_time = (t for t in texts if _as_times(pa.array([t], times.type)) is None)
        example = next(no_time, times[0].as_py())
        raise DataError(
            f"{path}: column {name}: values such as {example!r} are not "
            "times, must be numbers, whole ones from -2^63 to 2^63 - 1, or "
            "dates such as 2024-05-31 12:30:00, all with a time zone or none"
        )
    if pa.types.is_floating(cast.type) and not np.isfinite(cast.to_numpy()).all():
        raise DataError(f"{path}: column {name}: has times that are not finite")
    return cast


def _as_times(times: pa.Array) -> pa.Array | None:
    """Returns times in the first type that holds all of them; None if none does."""
    kinds = [pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
    if pa.types.is_timestamp(times.type):
        kinds = [pa.timestamp(times.type.unit, times.type.tz and "UTC")]
    for kind in kinds:
        try:
            return times.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    return None


def _splits(table: pa.Table, name: str, path: Path) -> pa.Array:
    values = table[name].combine_chunks().cast(pa.string()).dictionary_encode()
    numbers = []
    for value in values.dictionary.to_pylist():
        if (number := _split_named(value)) is None:
            raise DataError(
                f"{path}: column {name}: value is {value!r}, must be "
                f"{', '.join(SPLITS)}"
            )
        numbers.append(number)
    if values.null_count:
        raise DataError(f"{path}: column {name}: has missing values")
    return pa.array(np.array(numbers, np.uint8)[values.indices.to_numpy()])


def _splits_of_files(paths: Sequence[Path]) -> list[int] | None:
    """Returns the split of each file, if all names give one, and some give training."""
    splits = [_split_named(path.name) for path in paths]
    numbers = [number for number in splits if number is not None]
    return numbers if len(numbers) == len(paths) and {0, 2} <= set(numbers) else None


def _split_named(text: str) -> int | None:
    numbers = (n for start, n in _SPLIT_NAMES.items() if text.lower().startswith(start))
    return next(numbers, None)


def _header(path: Path, separator: str) -> list[str]:
    line = next((c.text for c in read_chunks(path, 1)), b"")
    if not line.strip():
        raise DataError(f"{path}, line 1: is empty, must name the columns")
    try:
        return header_names(line, separator)
    except DataError as error:
        raise DataError(f"{path}, line 1: {error}") from None
