"""A recipe describes a data set: its raw files, and how they become samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL, SPLITS
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.columns import Columns, NumberColumn
from embark_jax.data.prepare.raw_files import RawFile, TextFile
from embark_jax.data.prepare.reading import GOOD
from embark_jax.data.prepare.values import Column
from embark_jax.plans.options import SplitBy
from embark_jax.plans.tables import FeatureSpec

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
WEIGHT = "weight of the sample"
"""A column of samples with the weight of each one, if the data set has weights."""
WINDOW = "window of the sample"
"""A column of samples with the begin of the time window of each one."""


class Extent(NamedTuple):
    """The number of all samples, and the position of the last file's first sample."""

    total: int
    last_file: int


Split = Callable[[Extent], str]
"""Returns SQL of the split of a sample."""


class SideTable(NamedTuple):
    """A file with what is known by key, such as of each user.

    Attributes:
      file: the file, whose bad lines are errors.
      columns: its columns, of which the first is the key, which no two lines have.
      found_by: the column of samples that has the key.
    """

    file: TextFile
    columns: Sequence[Column]
    found_by: str


class History(NamedTuple):
    """Sequences of what a user met before each sample, of data in one raw file.

    Attributes:
      user: a column of samples; a sequence has samples of one user.
      time: a column of numbers; a sequence has samples of earlier times only, not of
        the same time.
      sequences: for each sequence, the column whose past it is.
      length: largest number of events of a sequence.
    """

    user: str
    time: str
    sequences: Mapping[str, str]
    length: int


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a data set becomes samples.

    Attributes:
      raw: the raw files, in the order of the samples.
      raw_columns: their columns that are read.
      dense: names of the dense features.
      features: the features in order; if the data have longer bags than a feature's
        hotness here, its hotness grows.
      select: SQL of columns of samples that are not columns of the files as they are:
        the label LABEL, and what a feature is computed from.
      sides: further files, by name, whose columns samples have, too.
      time_split: holds out the latest samples; None if the data set is in no order, or
        has TIME.
      usual_split: split that is taken unless the user asks for another.
      file_splits: the split of each file, if files say it.
      bags_of_one_id: hotness of features that reading makes multi-hot.
      history: makes features from what a user met before.
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
    sides: Mapping[str, SideTable] = dataclasses.field(default_factory=dict)
    time_split: Split | None = None
    usual_split: SplitBy = "random"
    file_splits: Sequence[int] | None = None
    bags_of_one_id: Mapping[str, int] = dataclasses.field(default_factory=dict)
    history: History | None = None
    numbers: Mapping[str, NumberColumn] = dataclasses.field(default_factory=dict)
    columns: Columns | None = None

    @property
    def paths(self) -> list[Path]:
        """Returns all files that samples are made of."""
        files = [*self.raw, *(side.file for side in self.sides.values())]
        return [file.path for file in files]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, if samples have several."""
        return self.columns.labels if self.columns is not None else ()

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
        own = {ROW, IN_FILE, LABEL, SPLIT, TIME, WEIGHT, WINDOW, GOOD, "rowid"}
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


def all_train(extent: Extent) -> str:
    """Holds out nothing."""
    return str(TRAIN)


def random_split(extent: Extent) -> str:
    """Splits 8:1:1 by a hash of the position, equal for every run and machine."""
    tenth = f"md5_number_lower(({sql.name(ROW)})::VARCHAR) % 10"
    return f"greatest({tenth}::INT - {10 - len(SPLITS)}, {TRAIN})"


def last_share(shares: int) -> Split:
    """Holds out the last of ``shares`` equal shares: its first half is the test set,
    its second half the validation set."""

    def split(extent: Extent) -> str:
        held_out = extent.total // shares
        begin, middle = extent.total - held_out, extent.total - held_out // 2
        return _cut(ROW, begin, middle, (TEST, VALIDATION))

    return split


def last_file(extent: Extent) -> str:
    """Holds out the last file: its first half is the validation set, its second half
    the test set."""
    middle = (extent.last_file + extent.total + 1) // 2
    return _cut(ROW, extent.last_file, middle)


def given_split(extent: Extent) -> str:
    """Takes the splits that the samples give themselves."""
    return sql.name(SPLIT)


def after_times(validation: str, test: str) -> Split:
    """Splits by TIME: the validation set begins at ``validation``, the test set at
    ``test``."""
    return lambda extent: _cut(TIME, validation, test)


def _cut(
    column: str,
    begin: int | str,
    middle: int | str,
    halves: tuple[int, int] = (VALIDATION, TEST),
) -> str:
    """Trains on values below ``begin``; ``middle`` begins the second half of others."""
    value = sql.name(column)
    return (
        f"CASE WHEN {value} < {begin} THEN {TRAIN} WHEN {value} < {middle} THEN "
        f"{halves[0]} ELSE {halves[1]} END"
    )


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
