"""A recipe describes a data set: its raw files, and how they become samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embark_jax.data.batch import DataError
from embark_jax.data.columns import (
    Columns,
    HistoryColumns,
    NumberColumn,
    Preparation,
)
from embark_jax.data.manifest import LABEL, SPLITS
from embark_jax.data.pipeline import Progress, silent
from embark_jax.data.table_values import TableValues
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare import sql
from embark_jax.prepare.raw_files import RawFile
from embark_jax.prepare.reading import GOOD
from embark_jax.prepare.values import Column

ROW = "number of the sample"
"""A column of samples with the position of each one among all, from 0."""
IN_FILE = "number in the file"
"""A column of the samples of a file: their place in it."""
SPLIT = "split"
"""A column of samples with the split of each one, if the data set gives splits."""
TRAIN, VALIDATION, TEST = range(len(SPLITS))
TIME = "time of the sample"
"""A column of samples with the time of each one, if the data set has times."""
GIVEN_TIME = "time as it is given"
"""A column of raw files, from which that is made."""
USER = "user of the sample"
"""A column of samples with the user of each one, if the data set has histories."""
WEIGHT = "weight of the sample"
"""A column of samples with the weight of each one, if the data set has weights."""
IS_SAMPLE, IS_EVENT = "is a sample", "is an event"
"""Columns of samples: whether a line is one, and whether it is in later histories."""
ALONE = "events alone"
"""A table of the rows that are events of histories, but no samples."""
WINDOW = "window of the sample"
"""A column of samples with the begin of the time window of each one."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a data set becomes samples.

    A split is SQL of the split of a sample, with ``{total}`` for the number of all
    samples, and ``{last_file}`` for the position of the last file's first sample.

    Attributes:
      raw: the raw files, in the order of the samples.
      raw_columns: their columns that are read.
      dense: names of the dense features.
      features: the features in order; if the data have longer bags than a feature's
        hotness here, its hotness grows.
      select: SQL of columns of samples that are not columns of the files as they are:
        the label LABEL, and what a feature is computed from.
      sides: further files with their columns, by the name of the table that they become
        for ``query``; the first column is a key, which no two lines have.
      query: SQL of the columns of a file's samples, of a table ``raw`` with its lines,
        ``place`` being the place of each, and of ``sides``; None takes the files as
        they are.
      history: what each sample has of the earlier events of its USER, by TIME.
      time_split: holds out the latest samples; None if the data set is in no order, or
        has TIME.
      unique_sides: whether no two lines of a side file have a key.
      rows: numbers of rows of tables whose row numbers the data have themselves.
      usual: what is taken unless the user says otherwise.
      file_splits: the split of each file, if files say it.
      bags_of_one_id: hotness of features that reading makes multi-hot.
      numbers: transforms of columns of numbers, for dense features and for features;
        other columns are taken as they are.
      columns: the columns of a user's own files, which raw rows to score must have,
        too.
    """

    raw: Sequence[RawFile]
    raw_columns: Sequence[Column]
    dense: tuple[str, ...]
    features: tuple[FeatureSpec, ...]
    select: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sides: Mapping[str, tuple[RawFile, Sequence[Column]]] = dataclasses.field(
        default_factory=dict
    )
    query: str | None = None
    history: HistoryColumns | None = None
    time_split: str | None = None
    unique_sides: bool = True
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    usual: Preparation = dataclasses.field(default_factory=Preparation)
    file_splits: Sequence[int] | None = None
    bags_of_one_id: Mapping[str, int] = dataclasses.field(default_factory=dict)
    numbers: Mapping[str, NumberColumn] = dataclasses.field(default_factory=dict)
    columns: Columns | None = None

    @property
    def paths(self) -> list[Path]:
        """Returns all files that samples are made of."""
        files = [*self.raw, *(file for file, _ in self.sides.values())]
        return [file.path for file in files]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, if samples have several."""
        return tuple(self.columns.labels) if self.columns is not None else ()

    @property
    def all_numbers(self) -> dict[str, NumberColumn]:
        """Returns every column of numbers, and its transform."""
        return dict.fromkeys(self.dense, NumberColumn()) | dict(self.numbers)

    @property
    def categories(self) -> list[FeatureSpec]:
        """Returns the features that have values, not ranges of numbers."""
        return [
            feature for feature in self.features if feature.name not in self.numbers
        ]

    def __post_init__(self):
        where = self.raw[0].path
        names = [*self.dense, *(feature.name for feature in self.features)]
        own = {ROW, IN_FILE, LABEL, SPLIT, TIME, USER, WEIGHT, WINDOW, GOOD, "rowid"}
        own |= {IS_SAMPLE, IS_EVENT}
        own |= {column.alias for column in self.raw_columns if column.alias}
        own = {name.lower() for name in own}  # as DuckDB compares names
        if taken := [name for name in names if name.lower() in own]:
            raise DataError(
                f"{where}: column {taken[0]!r} is a feature, must have another name, "
                "as queries use this one themselves; rename it, or leave it out"
            )
        lower = [name.lower() for name in names]
        if twice := sorted({n for n in names if lower.count(n.lower()) > 1}):
            raise DataError(
                f"{where}: columns {', '.join(twice)} are used twice, or differ in "
                "capital letters alone"
            )
        for feature in self.features:
            table = feature.table  # its vocabulary and its rows are files
            if not table.strip() or {*table} & {*"/\0"} or len(table.encode()) > 200:
                raise DataError(
                    f"{where}: column {feature.name!r} reads a table named "
                    f"{table!r:.300}, which also names files: must be text of at most "
                    "200 bytes, without /; rename the column, or give its table a "
                    "name: features.NAME.table"
                )


def weights_column(feature: str) -> str:
    """Returns the column of samples with the weights of a feature's values."""
    return f"weights of {feature}"


def event_column(name: str) -> str:
    """Returns the column of samples with what an event has where a sample has another
    value of a column."""
    return f"{name} of an event"


def cut(
    column: str,
    begin: int | str,
    middle: int | str,
    halves: tuple[int, int] = (VALIDATION, TEST),
) -> str:
    """Returns a split that trains on values below ``begin``; ``middle`` begins the
    second half of others."""
    value = sql.name(column)
    return (
        f"CASE WHEN {value} < {begin} THEN {TRAIN} WHEN {value} < {middle} THEN "
        f"{halves[0]} ELSE {halves[1]} END"
    )


_TENTH = f"md5_number_lower(({sql.name(ROW)})::VARCHAR) % 10"
RANDOM_SPLIT = f"greatest(({_TENTH})::INT - {10 - len(SPLITS)}, {TRAIN})"
"""Splits 8:1:1 by a hash of the position, equal for every run and machine."""
LAST_FILE = cut(ROW, "{last_file}", "({last_file} + {total} + 1) // 2")
"""Holds out the last file: its first half is the validation set, its second half the
test set."""


def last_share(shares: int, halves: tuple[int, int] = (VALIDATION, TEST)) -> str:
    """Holds out the last of ``shares`` equal shares, in two halves."""
    held_out = f"{{total}} // {shares}"
    begin, middle = f"{{total}} - {held_out}", f"{{total}} - {held_out} // 2"
    return cut(ROW, begin, middle, halves)


def check_folder(raw: Path) -> None:
    """Raises ``DataError`` if this is not a folder."""
    if not raw.is_dir():
        problem = "is a file" if raw.exists() else "no such folder"
        raise DataError(
            f"{raw}: {problem}; --raw is the folder of the downloaded files"
        )


def find(folder: Path, *names: str) -> Path:
    """Returns the first of these files that exists, plain or gzip.

    Raises:
      DataError: if none exists, or there is no such folder.
    """
    check_folder(folder)
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(
        f"{folder}: has no {' or '.join(names)}, plain or with .gz; --raw is the "
        "folder of the files as they were downloaded"
    )


@dataclasses.dataclass(frozen=True)
class Work:
    """What all stages of preparing need.

    Attributes:
      database: has the functions of ``values``, and gets samples and vocabularies.
      recipe: the recipe of the data set.
      options: how samples are split and get rows.
      out: folder of the prepared data.
      made_from: what determines the samples, as the manifest has it.
      progress: is told how far the work is.
      earlier: data whose rows and transforms are kept, if any.
    """

    database: sql.Database
    recipe: Recipe
    options: Preparation
    out: Path
    made_from: Mapping[str, Any]
    progress: Progress = silent
    earlier: TableValues | None = None
