"""Reads a user's own CSV or Parquet files, whose columns the user names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL, SPLITS
from embark_jax.data.prepare.chunks import read_chunks
from embark_jax.data.prepare.columns import CategoryColumn, Columns, check_there
from embark_jax.data.prepare.delimited import Column, header_names, with_header
from embark_jax.data.prepare.recipe import (
    SPLIT,
    TIME,
    WEIGHT,
    DelimitedFile,
    ParquetFile,
    Position,
    RawFile,
    Recipe,
    given_split,
    label_column,
    last_part,
)
from embark_jax.data.prepare.values import MISSING, ValueRule
from embark_jax.plans.tables import FeatureSpec

HELD_OUT_PARTS = 10
"""A split by time holds out one of this many parts; files are in the order of names."""
TEXT_FILES = ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz")
PARQUET_FILES = ("*.parquet",)
RULE = ValueRule()
_SPLIT_NAMES = {"train": 0, "valid": 1, "val": 1, "dev": 1, "test": 2}
"""The beginnings of the names of splits, in names of files and in columns."""


def csv(raw: Path, columns: Columns) -> Recipe:
    """Reads a .csv or .tsv file, plain or gzip, or all of a folder, with one header."""
    paths = _paths(raw, *TEXT_FILES)
    names = _header(paths[0], _separator(paths[0], columns))
    columns = columns.completed(names, str(paths[0]))
    return _recipe(_text_files(paths, columns, names), columns)


def parquet(raw: Path, columns: Columns) -> Recipe:
    """Reads a .parquet file, or all of a folder, with the same columns."""
    paths = _paths(raw, *PARQUET_FILES)
    columns = columns.completed(_parquet_names(paths[0]), str(paths[0]))
    return _recipe([ParquetFile(path, columns.named) for path in paths], columns)


def raw_rows(path: Path, columns: Columns) -> list[RawFile]:
    """Reads files with rows to score. They have the columns of the prepared files;
    label, time and split are optional.

    Raises:
      DataError: if there are no files, or a column is missing.
    """
    paths, names = _paths_and_names(path, columns)
    check_there(columns.inputs, names, str(paths[0]))
    if not _is_parquet(paths):
        return _text_files(paths, columns, names, label_required=False)
    used = {*columns.inputs, *columns.targets, columns.weight} & set(names)
    return [ParquetFile(each, tuple(sorted(used))) for each in paths]


def as_they_are(path: Path, columns: Columns, wanted: Sequence[str]) -> pa.Table:
    """Reads columns of the same files, of text files as their texts.

    Raises:
      DataError: if there are no files, or a column is missing.
    """
    paths, names = _paths_and_names(path, columns)
    check_there(wanted, names, str(paths[0]))
    if _is_parquet(paths):
        files: list[RawFile] = [ParquetFile(each, tuple(wanted)) for each in paths]
    else:
        separator = _separator(paths[0], columns)
        layout = with_header(
            [Column(name) for name in names], separator, quotes=True, missing=()
        )
        files = [DelimitedFile(each, layout) for each in paths]
    pieces = [
        piece.read("error")[0].select(list(wanted))
        for file in files
        for piece in file.pieces(Position())
    ]
    if not pieces:
        return pa.table({name: [] for name in wanted})
    try:
        return pa.concat_tables(pieces, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{path}: columns differ between files: {error}") from None


def _paths_and_names(path: Path, columns: Columns) -> tuple[list[Path], list[str]]:
    """The files of rows to score, and their columns."""
    patterns = PARQUET_FILES if path.suffix == ".parquet" else TEXT_FILES
    if path.is_dir() and any(path.glob(PARQUET_FILES[0])):
        patterns = PARQUET_FILES
    paths = _paths(path, *patterns)
    if patterns is TEXT_FILES:
        return paths, _header(paths[0], _separator(paths[0], columns))
    return paths, _parquet_names(paths[0])


def _is_parquet(paths: Sequence[Path]) -> bool:
    return paths[0].suffix == ".parquet"


def _text_files(
    paths: Sequence[Path],
    columns: Columns,
    names: Sequence[str],
    label_required: bool = True,
) -> list[RawFile]:
    bounds = None if columns.positive_from is not None else (0, 1)

    def column(name: str) -> Column:
        if name in columns.targets:
            return Column(name, "number", required=label_required, bounds=bounds)
        if name == columns.weight:
            return Column(name, "number", required=label_required)
        return Column(name, "number" if name in columns.dense else "text")

    separator = _separator(paths[0], columns)
    layout = with_header(
        list(map(column, names)), separator, quotes=True, missing=MISSING
    )
    return [DelimitedFile(path, layout) for path in paths]


def _recipe(raw: Sequence[RawFile], columns: Columns) -> Recipe:
    paths = [file.path for file in raw]

    def samples(table: pa.Table, file: int) -> pa.Table:
        found = inputs(table, columns, paths[file])
        label = labels(table, columns, paths[file])
        if columns.weight:
            weight = weights(table, columns.weight, paths[file])
            found = found.append_column(WEIGHT, pa.array(weight))
        if columns.time:
            found = found.append_column(TIME, _times(table, columns.time, paths[file]))
        if columns.split:
            split = _splits(table, columns.split, paths[file])
            found = found.append_column(SPLIT, split)
        elif of_files is not None:
            split = pa.array(np.full(len(table), of_files[file], np.uint8))
            found = found.append_column(SPLIT, split)
        return found.append_column(LABEL, label_column(label))

    of_files = None if columns.time or columns.split else _splits_of_files(paths)
    bucketed = [n for n, c in columns.dense.items() if c.transform == "quantiles"]
    if columns.split or of_files is not None:
        time_split = given_split
    else:
        time_split = None if columns.time else last_part(HELD_OUT_PARTS)
    return Recipe(
        raw=raw,
        dense=tuple(name for name in columns.dense if name not in bucketed),
        features=(
            *(_feature(name, column) for name, column in columns.features.items()),
            *map(FeatureSpec, bucketed),
        ),
        samples=samples,
        time_split=time_split,
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
    """Numbers and values of features, from the columns of a file.

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
    """float32 ``[samples]``, or ``[samples, tasks]`` if there are several, each from 0
    to 1.

    Raises:
      DataError: if a label is missing or out of range.
    """
    found = [_label(table, name, columns, path) for name in columns.targets]
    return np.stack(found, axis=1) if columns.labels else found[0]


def weights(table: pa.Table, name: str, path: Path) -> np.ndarray:
    """float32 ``[samples]``, 0 or more.

    Raises:
      DataError: if a weight is missing or negative.
    """
    found = _numbers(table, name, path)
    if found.null_count:
        raise DataError(f"{path}: column {name}: has missing weights")
    weight = found.to_numpy()
    if len(bad := weight[weight < 0]):
        raise DataError(f"{path}: column {name}: is {bad[0]:g}, must be 0 or more")
    return weight


def _label(table: pa.Table, name: str, columns: Columns, path: Path) -> np.ndarray:
    found = _numbers(table, name, path)
    if found.null_count:
        raise DataError(f"{path}: column {name}: has missing labels")
    label = found.to_numpy()
    if columns.positive_from is not None:
        return (label >= columns.positive_from).astype(np.float32)
    if len(bad := label[(label < 0) | (label > 1)]):
        raise DataError(
            f"{path}: column {name}: value is {bad[0]:g}, must be from 0 to 1; for "
            "ratings, give the lowest positive one: --positive-from"
        )
    return label


def _feature(name: str, column: CategoryColumn) -> FeatureSpec:
    # Bags are pooled by their mean; the mean of a single id's row is that row.
    pooling = "none" if column.sequence else "mean"
    return FeatureSpec(name, column.table or name, pooling=pooling)


def _numbers(
    table: pa.Table, name: str, path: Path, rule: ValueRule = RULE
) -> pa.Array:
    """A column as float32, with nulls for missing numbers."""
    try:
        column = rule.numbers(table[name])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{path}: column {name}: {error}") from None
    with np.errstate(over="ignore"):  # the check names what overflows
        numbers = column.fill_null(0).to_numpy().astype(np.float32)
    if len(bad := column.fill_null(0).to_numpy()[~np.isfinite(numbers)]):
        raise DataError(
            f"{path}: column {name}: value is {bad[0]:g}, must be finite in float32"
        )
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers, mask=missing)


def _times(table: pa.Table, name: str, path: Path) -> pa.Array:
    """The times as int64, float64, or timestamps: none loses a digit."""
    times = table[name].combine_chunks()
    if times.null_count:
        raise DataError(f"{path}: column {name}: has missing times")
    if pa.types.is_timestamp(times.type):
        return times
    for kind in (pa.int64(), pa.float64(), pa.timestamp("us")):
        try:
            cast = times.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        if kind == pa.float64() and not np.isfinite(cast.to_numpy()).all():
            raise DataError(f"{path}: column {name}: has times that are not finite")
        return cast
    raise DataError(
        f"{path}: column {name}: values such as {times[0].as_py()!r} are not times, "
        "must be numbers, whole ones from -2^63 to 2^63 - 1, or dates such as "
        "2024-05-31 12:30:00"
    )


def _splits(table: pa.Table, name: str, path: Path) -> pa.Array:
    values = table[name].combine_chunks().cast(pa.string()).dictionary_encode()
    numbers = []
    for value in values.dictionary.to_pylist():
        if (number := _split_named(value)) is None:
            known = ", ".join(SPLITS)
            raise DataError(
                f"{path}: column {name}: value is {value!r}, must be {known}"
            )
        numbers.append(number)
    if values.null_count:
        raise DataError(f"{path}: column {name}: has missing values")
    return pa.array(np.array(numbers, np.uint8)[values.indices.to_numpy()])


def _splits_of_files(paths: Sequence[Path]) -> list[int] | None:
    """The split of each file, if all names give one, and some give training."""
    found = [_split_named(path.name) for path in paths]
    said = [number for number in found if number is not None]
    return said if len(said) == len(paths) and {0, 2} <= set(said) else None


def _split_named(text: str) -> int | None:
    return next(
        (
            number
            for start, number in _SPLIT_NAMES.items()
            if text.lower().startswith(start)
        ),
        None,
    )


def _paths(raw: Path, *patterns: str) -> list[Path]:
    if raw.is_file() and any(raw.match(pattern) for pattern in patterns):
        return [raw]
    paths = sorted(path for pattern in patterns for path in raw.glob(pattern))
    if not paths:
        found = f"has no {' or '.join(patterns)}" if raw.is_dir() else "no such file"
        if raw.is_file():
            found = f"is no {' or '.join(patterns)}"
        raise DataError(
            f"{raw}: {found}; --raw is such a file, or a folder of such files"
        )
    return paths


def _separator(path: Path, columns: Columns) -> str:
    return columns.separator or ("\t" if ".tsv" in path.name else ",")


def _parquet_names(path: Path) -> list[str]:
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: {error}") from None


def _header(path: Path, separator: str) -> list[str]:
    line = next((c.text for c in read_chunks(path, 0, 1, 1)), b"")
    if not line.strip():
        raise DataError(f"{path}, line 1: is empty, must name the columns")
    try:
        return header_names(line, separator)
    except DataError as error:
        raise DataError(f"{path}, line 1: {error}") from None
