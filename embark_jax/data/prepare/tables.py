"""Tables of one's own: CSV or Parquet files whose columns the user names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax.config import nearest
from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL
from embark_jax.data.prepare.chunks import read_chunks
from embark_jax.data.prepare.delimited import Column, shown, with_header
from embark_jax.data.prepare.recipe import (
    DelimitedFile,
    ParquetFile,
    Recipe,
    last_part,
    missing_where,
)
from embark_jax.tables import FeatureSpec

HELD_OUT_PARTS = 10
"""By time, one of so many is held out; files are in the order of their names."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """What the columns are.

    Attributes:
      label: from 0 to 1.
      dense: numbers; a missing one becomes 0, and is counted.
      features: categories, in Parquet also lists of them; () is all others.
      log: whether dense features become log(1 + x), and those below 0 become 0.
    """

    label: str
    dense: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    log: bool = False

    def completed(self, names: Sequence[str], path: Path) -> Columns:
        """With all features, for a file of these columns.

        Raises:
          DataError: if a column is not there, or none is left for features.
        """
        for name in (self.label, *self.dense, *self.features):
            if name not in names:
                raise DataError(
                    f"{path}: has no column {name!r}; {nearest(name, names)}"
                )
        others = [name for name in names if name not in (self.label, *self.dense)]
        if not others:
            raise DataError(f"{path}: no column is left for features")
        return dataclasses.replace(self, features=self.features or tuple(others))


def csv(raw: Path, columns: Columns) -> Recipe:
    """A .csv or .tsv file, plain or gzip, or all of a folder, with the same header."""
    paths = _paths(raw, "*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz")
    separator = "\t" if ".tsv" in paths[0].name else ","
    names = _header(paths[0], separator)
    columns = columns.completed(names, paths[0])

    def column(name: str) -> Column:
        if name == columns.label:
            return Column(name, "number", required=True, bounds=(0, 1))
        return Column(name, "number" if name in columns.dense else "text")

    layout = with_header(list(map(column, names)), separator, quotes=True)
    return _recipe([DelimitedFile(path, layout) for path in paths], columns)


def parquet(raw: Path, columns: Columns) -> Recipe:
    """A .parquet file, or all of a folder, with the same columns."""
    paths = _paths(raw, "*.parquet")
    try:
        names = pq.read_schema(paths[0]).names
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{paths[0]}: {error}") from None
    columns = columns.completed(names, paths[0])
    used = (columns.label, *columns.dense, *columns.features)
    return _recipe([ParquetFile(path, used) for path in paths], columns)


def _recipe(raw: Sequence[DelimitedFile | ParquetFile], columns: Columns) -> Recipe:
    def samples(table: pa.Table, file: int) -> pa.Table:
        path = raw[file].path
        label = _numbers(table, columns.label, path)
        if ((label < 0) | (label > 1)).any():
            bad = label[(label < 0) | (label > 1)][0]
            raise DataError(
                f"{path}: column {columns.label}: value is {bad}, must be from 0 to 1"
            )
        dense = {name: _numbers(table, name, path) for name in columns.dense}
        if columns.log:
            dense = {n: np.log1p(np.maximum(v, 0)) for n, v in dense.items()}
        dense = {n: missing_where(table[n], v) for n, v in dense.items()}
        features = {n: _values(table[n], n, path) for n in columns.features}
        return pa.table({LABEL: label, **dense, **features})

    bag = FeatureSpec  # pooled by their mean: a single id's mean is itself
    return Recipe(
        raw=raw,
        dense=columns.dense,
        features=tuple(bag(name, pooling="mean") for name in columns.features),
        samples=samples,
        time_split=last_part(HELD_OUT_PARTS),
    )


def _numbers(table: pa.Table, name: str, path: Path) -> np.ndarray:
    try:
        column = table[name].cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{path}: column {name}: {error}") from None
    numbers = column.fill_null(0).to_numpy().astype(np.float32)
    if not np.isfinite(numbers).all():
        raise DataError(f"{path}: column {name}: must be finite in float32")
    return numbers


def _values(values: pa.ChunkedArray, name: str, path: Path) -> pa.ChunkedArray:
    """Integers as int64 and text as it is, alone or in lists."""
    is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    kind = values.type.value_type if is_list else values.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        kind = pa.int64()
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        kind = pa.string()
    else:
        raise DataError(
            f"{path}: column {name}: type is {values.type}, must be integers or text, "
            "or lists of them"
        )
    return values.cast(pa.list_(kind) if is_list else kind)


def _paths(raw: Path, *patterns: str) -> list[Path]:
    if raw.is_file() and any(raw.match(pattern) for pattern in patterns):
        return [raw]
    paths = sorted(path for pattern in patterns for path in raw.glob(pattern))
    if not paths:
        found = f"has no {' or '.join(patterns)}" if raw.is_dir() else "no such file"
        if raw.is_file():
            found = f"is no {' or '.join(patterns)}"
        raise DataError(f"{raw}: {found}; --raw is such a file, or a folder of them")
    return paths


def _header(path: Path, separator: str) -> list[str]:
    line = next((c.text for c in read_chunks(path, 0, 1, 1)), b"")
    if not line.strip():
        raise DataError(f"{path}, line 1: is empty, must name the columns")
    try:
        names = line.decode("utf-8").rstrip("\r\n").split(separator)
    except UnicodeDecodeError:
        raise DataError(
            f"{path}, line 1: is {shown(line)}, no UTF-8 text; must name the columns"
        ) from None
    return [name.strip().strip('"') for name in names]
