"""A recipe describes a data set: its raw files, and how they become samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax.data.batch import DataError
from embark_jax.data.hashing import splitmix64
from embark_jax.data.manifest import LABEL, SPLITS
from embark_jax.data.prepare.columns import Columns, NumberColumn
from embark_jax.data.prepare.raw_files import RawFile, TextFile
from embark_jax.data.prepare.values import Column
from embark_jax.plans.options import SplitBy
from embark_jax.plans.tables import FeatureSpec

ROW = "number of the row"
"""A column of samples with the number of each one's line or row in its file."""
SPLIT = "split"
"""A column of samples with the split of each one, if the data set gives splits."""
TRAIN, VALIDATION, TEST = range(len(SPLITS))
TIME = "time of the sample"
"""A column of samples with the time of each one, a number, if the data set has
times."""
WEIGHT = "weight of the sample"
"""A column of samples with the weight of each one, if the data set has weights."""


class Extent(NamedTuple):
    """The number of all samples, and the position of the last file's first sample."""

    total: int
    last_file: int


Split = Callable[[pa.Table, int, Extent], np.ndarray]
"""Returns the split of each row, uint8, of a table of samples from a position on."""


class SideTable(NamedTuple):
    """A file with what is known by key, such as of each user.

    Attributes:
      file: the file, whose bad lines are errors.
      columns: its columns, of which the first is the key, which no two lines have.
    """

    file: TextFile
    columns: Sequence[Column]


class History(NamedTuple):
    """Sequences of what a user met before each sample.

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
      query: SQL that makes samples of ``raw``, which has those columns and ROW: it
        gives ROW, the label, the dense features, and for each feature its values:
        integers, text, or lists of these. Missing values are null; dense ones are
        counted. It may also give SPLIT, TIME, WEIGHT, and what the history needs.
      dense: names of the dense features.
      features: the features in order; if the data have longer bags than a feature's
        hotness here, its hotness grows.
      sides: further tables that the query joins, by name.
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
    query: str
    dense: tuple[str, ...]
    features: tuple[FeatureSpec, ...]
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
        if own := sorted({ROW, LABEL, SPLIT, TIME, WEIGHT} & {*names}):
            raise DataError(
                f"{where}: column {own[0]!r} is a feature, must have another name, "
                "which prepared data keep for themselves; rename it, or leave it out"
            )
        lower = [name.lower() for name in names]
        if twice := sorted({n for n in names if lower.count(n.lower()) > 1}):
            raise DataError(
                f"{where}: columns {', '.join(twice)} are used twice, or differ in "
                "capital letters alone"
            )
        for feature in self.features:
            _check_table(feature, where)


def _check_table(feature: FeatureSpec, where: Path) -> None:
    """Raises ``DataError`` if the name of a table cannot be that of a file, as its
    vocabulary and its rows have."""
    table = feature.table
    if not table.strip() or set(table) & set("/\0") or len(table.encode()) > 200:
        raise DataError(
            f"{where}: column {feature.name!r} reads a table named {table!r:.300}, "
            "which also names files: must be text of at most 200 bytes, without /; "
            "rename the column, or give its table a name: features.NAME.table"
        )


def labels_of(samples: pa.Table) -> np.ndarray:
    """Returns the labels of samples, ``[samples]``, or ``[samples, tasks]`` if there
    are several."""
    column = samples[LABEL].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        return column.to_numpy()
    return column.flatten().to_numpy().reshape(len(column), -1)


def random_split(table: pa.Table, start: int, extent: Extent) -> np.ndarray:
    """Splits 8:1:1 by a hash of the position, equal for every run and machine."""
    positions = np.arange(start, start + len(table), dtype=np.uint64)
    return _cut(splitmix64(positions) % np.uint64(10), 8, 9)


def all_train(table: pa.Table, start: int, extent: Extent) -> np.ndarray:
    """Holds out nothing."""
    return np.full(len(table), TRAIN, np.uint8)


def last_share(shares: int) -> Split:
    """Holds out the last of ``shares`` equal shares: its first half is the test set,
    its second half the validation set."""

    def split(table: pa.Table, start: int, extent: Extent) -> np.ndarray:
        held_out = extent.total // shares
        begin, middle = extent.total - held_out, extent.total - held_out // 2
        positions = np.arange(start, start + len(table))
        return _cut(positions, begin, middle, (TEST, VALIDATION))

    return split


def last_file(table: pa.Table, start: int, extent: Extent) -> np.ndarray:
    """Holds out the last file: its first half is the validation set, its second half
    the test set."""
    middle = (extent.last_file + extent.total + 1) // 2
    return _cut(np.arange(start, start + len(table)), extent.last_file, middle)


def times_of(samples: pa.Table) -> np.ndarray:
    """Returns the TIME of samples as int64 or float64."""
    times = samples[TIME].combine_chunks()
    is_timestamp = pa.types.is_timestamp(times.type)
    return (times.cast(pa.int64()) if is_timestamp else times).to_numpy()


def as_times(times: pa.Array) -> pa.Array:
    """Returns times as int64, float64, or timestamps: none loses a digit. Those with a
    time zone are instants of UTC.

    Raises:
      ValueError: if a value is no time.
    """
    kinds = [pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC")]
    if pa.types.is_timestamp(times.type):
        kinds = [pa.timestamp(times.type.unit, times.type.tz and "UTC")]
    cast = next(filter(None, (_cast(times, kind) for kind in kinds)), None)
    if cast is None:
        no_times = (
            value.as_py()
            for value in times.unique()
            if not any(_cast(pa.array([value]), kind) for kind in kinds)
        )
        example = next(no_times, times[0].as_py())
        raise ValueError(
            f"values such as {example!r} are not times, must be numbers, whole ones "
            "from -2^63 to 2^63 - 1, or dates such as 2024-05-31 12:30:00, all with a "
            "time zone or none"
        )
    if pa.types.is_floating(cast.type) and not np.isfinite(cast.to_numpy()).all():
        raise ValueError("has times that are not finite")
    return cast


def _cast(times: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return times.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def after_times(validation: float, test: float) -> Split:
    """Splits by TIME: the validation set begins at ``validation``, the test set at
    ``test``."""
    return lambda table, start, extent: _cut(times_of(table), validation, test)


def time_windows(samples: pa.Table, length: int) -> np.ndarray:
    """Returns the begin of the time window of each sample, int64: multiples of a length
    in the units of TIME, in seconds if these are dates."""
    times, kind = times_of(samples), samples.schema.field(TIME).type
    if pa.types.is_timestamp(kind):
        times = times // {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    return np.floor_divide(times, length).astype(np.int64) * length


def given_split(table: pa.Table, start: int, extent: Extent) -> np.ndarray:
    """Takes the splits that the samples give themselves."""
    return table[SPLIT].to_numpy()


def _cut(
    values: np.ndarray,
    begin: float,
    middle: float,
    halves: tuple[int, int] = (VALIDATION, TEST),
) -> np.ndarray:
    """Trains on values below ``begin``; ``middle`` begins the second half of others."""
    conditions = [values < begin, values < middle]
    return np.select(conditions, [TRAIN, halves[0]], halves[1]).astype(np.uint8)


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
