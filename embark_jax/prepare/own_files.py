"""Reads a user's own files: text with a header, or Parquet."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from embark_jax.data.batch import DataError
from embark_jax.data.columns import (
    CategoryColumn,
    Columns,
    Preparation,
    check_there,
)
from embark_jax.data.manifest import LABEL
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare import sql
from embark_jax.prepare.raw_files import (
    ParquetFile,
    RawFile,
    TextFile,
    check_columns,
    header_names,
    parquet_names,
    separator_of,
    texts_of,
)
from embark_jax.prepare.recipe import (
    GIVEN_TIME,
    SPLIT,
    USER,
    WEIGHT,
    Recipe,
    last_share,
    weights_column,
)
from embark_jax.prepare.values import Column, split_named

EVENTS = "events"
HELD_OUT_SHARES = 10
"""A split by time holds out one of this many parts; files are in the order of names."""
TEXT_FILES = ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz", "*.inter")
PARQUET_FILES = ("*.parquet",)
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def csv(raw: Path, columns: Columns) -> Recipe:
    """Reads a .csv or .tsv file, plain or gzip, or all of a folder, with one header."""
    return _recipe(raw, _find(raw, TEXT_FILES), columns)


def parquet(raw: Path, columns: Columns) -> Recipe:
    """Reads a .parquet file, or all of a folder, with the same columns, as an engine
    such as Spark writes it: also in folders that give columns (``day=2024-05-01``)."""
    return _recipe(raw, _find(raw, PARQUET_FILES), columns)


def files_of_rows(
    path: Path, columns: Columns, wanted: Sequence[str], optional: Collection[str]
) -> list[RawFile]:
    """Returns files with rows to score, which have the wanted columns, and may have
    optional ones.

    Raises:
      DataError: if there are no files, or a column is missing.
    """
    has_parquet = path.is_dir() and any(path.rglob(PARQUET_FILES[0]))
    is_parquet = path.suffix == ".parquet" or has_parquet
    # Without Parquet files, both are what the error says that there are none of.
    patterns = PARQUET_FILES if is_parquet else (*TEXT_FILES, *PARQUET_FILES)
    paths = _find(path, patterns)
    return [_reader(path, each, columns, wanted, optional) for each in paths]


def _find(raw: Path, patterns: Sequence[str]) -> list[Path]:
    """Returns a file, or the files of a folder and of those below it, in the order of
    their paths, but for what is hidden or begins with _, as engines name their
    notes."""
    if raw.is_file() and any(raw.match(pattern) for pattern in patterns):
        return [raw]
    paths = [
        path
        for pattern in patterns
        for path in raw.rglob(pattern)
        if not any(p.startswith((".", "_")) for p in path.relative_to(raw).parts)
    ]
    if paths:
        return sorted(paths)
    if not raw.exists():
        raise DataError(f"{raw}: no such file or folder")
    raise DataError(
        f"{raw}: {'has' if raw.is_dir() else 'is'} no {' or '.join(patterns)}; name "
        "such a file, or a folder of such files"
    )


def _names(raw: Path, path: Path, columns: Columns) -> list[str]:
    """Returns the names of the columns of a file, and of its folders."""
    if path.suffix == ".parquet":
        names = parquet_names(path)
    else:
        names = header_names(path, separator_of(path, columns.separator))
    return [*names, *(n for n in _partition(raw, path) if n not in names)]


def _partition(raw: Path, path: Path) -> dict[str, str | None]:
    """Returns the values that folders below ``raw``, such as ``day=2024-05-01``, give
    to columns."""
    named = (folder.partition("=") for folder in path.relative_to(raw).parts[:-1])
    return {
        urllib.parse.unquote(name): None if v == _NO_VALUE else urllib.parse.unquote(v)
        for name, equals, v in named
        if equals
    }


def _reader(
    raw: Path,
    path: Path,
    columns: Columns,
    used: Sequence[str],
    optional: Collection[str] = (),
) -> RawFile:
    """Returns what reads a file that has the used columns, in its own order."""
    given: dict[str, Any] = {"partition": _partition(raw, path), "optional": optional}
    if path.suffix == ".parquet":
        return ParquetFile(path, tuple(used), **given)
    separator = separator_of(path, columns.separator)
    names = tuple(header_names(path, separator))
    file = TextFile(path, names, separator, True, True, **given)
    check_columns(file, used)
    return file


def _recipe(raw: Path, paths: Sequence[Path], columns: Columns) -> Recipe:
    folder = raw if raw.is_dir() else raw.parent
    joined = {folder / file: key for file, key in columns.join.items()}
    paths = [path for path in paths if path not in joined]
    names = _names(raw, paths[0], columns)
    if columns.optional:  # which another file may have alone
        of_all = [name for path in paths for name in _names(raw, path, columns)]
        names += [n for n in columns.optional if n in of_all and n not in names]
    of_side = {path: _names(folder, path, columns) for path in joined}
    for path, key in joined.items():
        check_there([key], names, str(paths[0]))
        check_there([key], of_side[path], str(path))
        of_side[path].remove(key)
    beside = [name for added in of_side.values() for name in added]
    columns = columns.completed([*names, *beside], str(paths[0]))
    texts = {
        n for p in (*paths, *joined) if p.suffix == ".parquet" for n in texts_of(p)
    }
    features = {
        name: column.model_copy(update={"text": name in texts})
        for name, column in columns.features.items()
        if column.text is None
    }
    user_text = columns.user_text
    if user_text is None:
        user_text = columns.user in texts
    columns = columns.model_copy(
        update={
            "features": {**columns.features, **features},
            "user_text": user_text,
        }
    )
    split_column = columns.split_column
    of_files = None if columns.time or split_column else _splits_of_files(paths)
    ranges = [n for n, c in columns.dense.items() if c.transform == "quantiles"]
    is_given = split_column or of_files is not None
    in_order = None if columns.time else last_share(HELD_OUT_SHARES)
    read = [*label_columns(columns), *input_columns(columns)]
    read += time_and_user(columns)
    if split_column:
        read.append(Column(split_column, "split", alias=SPLIT))
    keys = {
        path: Column(key, "category", is_text=True, alias=f"{key} in {path.name}")
        for path, key in joined.items()
    }
    sides = {
        path.name: (
            _reader(folder, path, columns, [joined[path]]),
            [keys[path], *(column for column in read if column.name in added)],
        )
        for path, added in of_side.items()
    }
    numbered = columns.features
    own = [column for column in read if column.name not in beside]
    used = [*(c.name for c in own if c.name not in columns.optional), *joined.values()]
    return Recipe(
        raw=[
            _reader(raw, path, columns, [*used, *columns.optional], columns.optional)
            for path in paths
        ],
        raw_columns=[*own, *keys.values()],
        select={LABEL: label_of(columns)}
        | {name: cross_of(crossed) for name, crossed in columns.cross.items()},
        dense=tuple(name for name in columns.dense if name not in ranges),
        features=(
            *(
                _feature(name, column, name in columns.weights)
                for name, column in columns.features.items()
            ),
            *(FeatureSpec(name, pooling="mean") for name in columns.cross),
            *map(FeatureSpec, ranges),
        ),
        sides=sides,
        query=_join([column.alias or "" for column in keys.values()], [*sides]),
        time_split=sql.name(SPLIT) if is_given else in_order,
        rows={n: column.rows for n, column in numbered.items() if column.rows},
        usual=Preparation(split="time" if is_given or columns.time else "random"),
        file_splits=of_files,
        history=columns.history,
        numbers=columns.dense,
        columns=columns.scored,
    )


def _join(keys: Sequence[str], sides: Sequence[str]) -> str | None:
    """Returns the query that joins tables of side files by their keys."""
    if not sides:
        return None
    of_sides, joins = [], ""
    for key, side in zip(map(sql.name, keys), map(sql.name, sides), strict=True):
        of_sides.append(f"{side}.* EXCLUDE ({key})")
        joins += f" LEFT JOIN {side} ON raw.{key} = {side}.{key}"
    exclude = ", ".join(map(sql.name, keys))
    return f"SELECT raw.* EXCLUDE ({exclude}), {', '.join(of_sides)} FROM raw{joins}"


def label_columns(columns: Columns, required: bool = True) -> list[Column]:
    """Returns how labels and weights are read; one of several labels may be missing."""
    labels = []
    for name in columns.targets:
        alone = required and len(columns.marks) == 1
        label = Column(name, "number", alone, alias=f"{LABEL} of {name}")
        if any(mark == (name, None) for mark in columns.marks.values()):
            rule = "must be from 0 to 1, such as 1 for yes; for ratings, give the "
            rule += "lowest positive one: positive_from=4"
            label = dataclasses.replace(label, bounds=(0, 1), rule=rule)
        labels.append(label)
    if columns.weight:
        rule = "must be 0 or more"
        weight = Column(columns.weight, "number", required, (0, 3e38), rule=rule)
        labels.append(dataclasses.replace(weight, alias=WEIGHT))
    return labels


def time_and_user(columns: Columns) -> list[Column]:
    """Returns how the columns of the time of a sample, and of its user, are read."""
    read = []
    if columns.time:
        read.append(Column(columns.time, "time", required=True, alias=GIVEN_TIME))
    if columns.user:
        alone = CategoryColumn(text=columns.user_text)
        described = columns.features.get(columns.user, alone)
        user = _category(columns.user, described, None, columns.missing)
        read.append(dataclasses.replace(user, alias=USER))
    return read


def input_columns(columns: Columns, texts: Sequence[str] | None = None) -> list[Column]:
    """Returns how the columns that a prediction needs are read.

    Args:
      columns: the columns.
      texts: features that had texts in training; None takes what the columns are.
    """
    read = []
    for name in columns.dense:
        missing, decimal = columns.missing, columns.decimal
        read.append(Column(name, "number", missing=missing, decimal=decimal))
    for name, column in columns.features.items():
        is_text = None if texts is None else name in texts
        category = _category(name, column, is_text, columns.missing)
        if column.sequence and not column.independent:
            category = dataclasses.replace(category, beside=EVENTS)
        if name in columns.weights:
            beside = category.beside or f"values of {name}"
            category = dataclasses.replace(category, events=True, beside=beside)
            weights = Column(
                columns.weights[name],
                "weights",
                decimal=columns.decimal,
                separator=column.separator,
                beside=beside,
                alias=weights_column(name),
            )
            read.append(weights)
        read.append(category)
    return read


def label_of(columns: Columns) -> str:
    """Returns SQL of the label, or of a list of the labels; 1 if there is none."""
    if not columns.targets:
        return "1::FLOAT"
    marks = [
        sql.name(f"{LABEL} of {name}") + (f" >= {least!r}" if least is not None else "")
        for name, least in columns.marks.values()
    ]
    if columns.labels:
        return f"[{', '.join(marks)}]::FLOAT[{len(marks)}]"
    return f"({marks[0]})::FLOAT"


def cross_of(names: Sequence[str]) -> str:
    """Returns SQL of the values of several columns as one text, which is null if one of
    them is. Between them is a character that no text has: 31 separates units."""
    return " || chr(31) || ".join(f"{sql.name(name)}::VARCHAR" for name in names)


def _category(
    name: str,
    column: CategoryColumn,
    is_text: bool | None,
    missing: tuple[str, ...] | None,
) -> Column:
    bounds, rule = None, None
    is_text = True if column.text else is_text
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
        events=column.sequence,
        missing=missing if column.missing is None else column.missing,
        text=bool(column.text),
        is_text=is_text,
        rule=rule,
    )


def _feature(name: str, column: CategoryColumn, weighted: bool) -> FeatureSpec:
    # Bags are pooled by their mean; the mean of a single id's row is that row.
    pooling = "none" if column.sequence else "mean"
    return FeatureSpec(name, column.table or name, 1, pooling, weighted)


def _splits_of_files(paths: Sequence[Path]) -> list[int] | None:
    """Returns the split of each file, if all names give one, and some give training."""
    splits = [split_named(path.name) for path in paths]
    numbers = [number for number in splits if number is not None]
    return numbers if len(numbers) == len(paths) and {0, 2} <= set(numbers) else None
