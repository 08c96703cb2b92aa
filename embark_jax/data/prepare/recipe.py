"""A recipe describes a data set: its raw files, and how they become samples."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax.data.batch import DataError
from embark_jax.data.hashing import splitmix64
from embark_jax.data.manifest import LABEL, SPLITS
from embark_jax.data.prepare import chunks
from embark_jax.data.prepare.chunks import read_chunks
from embark_jax.data.prepare.columns import Columns, NumberColumn, check_there
from embark_jax.data.prepare.delimited import Layout, Parsed, parse
from embark_jax.data.prepare.engine_files import with_partition
from embark_jax.data.prepare.sequences import History
from embark_jax.plans.options import OnBadLine, SplitBy
from embark_jax.plans.tables import FeatureSpec

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


class RawChunk(NamedTuple):
    """A chunk of a raw file, read when called.

    Attributes:
      read: returns its typed columns and its bad lines.
      progress: bytes of the file on disk up to its end.
      rows: number of its lines, without the header, or of its rows.
    """

    read: Callable[[OnBadLine], Parsed]
    progress: int
    rows: int


class RawFile(Protocol):
    """A file as users download it."""

    @property
    def path(self) -> Path: ...

    def chunks(self) -> Iterator[RawChunk]:
        """Yields the chunks in order."""
        ...


@dataclasses.dataclass(frozen=True)
class DelimitedFile:
    """A text file, plain or gzip."""

    path: Path
    layout: Layout

    def chunks(self) -> Iterator[RawChunk]:
        for text in read_chunks(self.path, chunks.CHUNK_BYTES):
            header_lines = text.first_line == 1 and bool(self.layout.header)
            yield RawChunk(
                functools.partial(parse, text, self.layout),
                text.disk_position,
                text.lines - header_lines,
            )

    def read(self) -> pa.Table:
        """Returns all lines of a file that fits in memory.

        Raises:
          DataError: if the file cannot be read, is empty, or a line is bad.
        """
        tables = [chunk.read("error").table for chunk in self.chunks()]
        if not tables:
            raise DataError(f"{self.path}: is empty")
        return pa.concat_tables(tables).combine_chunks()


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    """A Parquet file; each row group is a chunk. ``partition`` has the values of
    columns that the names of its folders give."""

    path: Path
    columns: tuple[str, ...]
    partition: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def chunks(self) -> Iterator[RawChunk]:
        try:
            metadata = pq.ParquetFile(self.path).metadata
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{self.path}: {error}") from None
        size, groups = self.path.stat().st_size, metadata.num_row_groups
        for group in range(groups):
            yield RawChunk(
                functools.partial(self._read, group),
                size * (group + 1) // groups,
                metadata.row_group(group).num_rows,
            )

    def _read(self, group: int, on_bad_line: OnBadLine) -> Parsed:
        try:
            file = pq.ParquetFile(self.path)
            there = file.schema_arrow.names  # some engines write what folders say, too
            folders = [name for name in self.partition if name not in there]
            check_there(self.columns, [*there, *folders], str(self.path))
            wanted = [n for n in self.columns if n in there or n not in self.partition]
            table = file.read_row_group(group, wanted)
            return Parsed(with_partition(table, self.partition, self.columns), {})
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{self.path}, row group {group}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a data set becomes samples.

    Attributes:
      raw: the raw files, in the order of the samples.
      dense: names of the dense features.
      features: the features in order; if the data have longer bags than a feature's
        hotness here, its hotness grows.
      samples: makes samples from the columns of a chunk and the number of its file: the
        label, the dense features (float32), and for each feature its values: uint32,
        int64, text, or lists of these. Missing values are null; dense ones are counted.
        It may also return SPLIT, TIME, WEIGHT, and what the history needs.
      time_split: holds out the latest samples; None if the data set is in no order, or
        has TIME.
      usual_split: split that is taken unless the user asks for another.
      bags_of_one_id: hotness of features that reading makes multi-hot.
      history: makes features from what a user met before.
      numbers: transforms of columns of numbers, for dense features and for features;
        other columns are taken as they are.
      columns: the columns of a user's own files, which raw rows to score must have,
        too.
      sides: further files that samples are made of, such as a table of the users.
    """

    raw: Sequence[RawFile]
    dense: tuple[str, ...]
    features: tuple[FeatureSpec, ...]
    samples: Callable[[pa.Table, int], pa.Table]
    time_split: Split | None = None
    usual_split: SplitBy = "random"
    bags_of_one_id: Mapping[str, int] = dataclasses.field(default_factory=dict)
    history: History | None = None
    numbers: Mapping[str, NumberColumn] = dataclasses.field(default_factory=dict)
    columns: Columns | None = None
    sides: Sequence[Path] = ()

    @property
    def paths(self) -> list[Path]:
        """Returns all files that samples are made of."""
        return [*(raw.path for raw in self.raw), *self.sides]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, if samples have several."""
        return self.columns.labels if self.columns is not None else ()

    @property
    def all_numbers(self) -> dict[str, NumberColumn]:
        """Returns every column of numbers, and its transform."""
        return dict.fromkeys(self.dense, NumberColumn()) | dict(self.numbers)

    def __post_init__(self):
        where = self.raw[0].path
        names = [*self.dense, *(feature.name for feature in self.features)]
        if own := sorted({LABEL, SPLIT, TIME, WEIGHT} & {*names}):
            raise DataError(
                f"{where}: column {own[0]!r} is a feature, must have another name, "
                "which prepared data keep for themselves; rename it, or leave it out"
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{where}: columns {', '.join(twice)} are used twice")
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


def label_column(labels: np.ndarray) -> pa.Array:
    """Returns a column of samples: numbers, or lists of them for ``[samples,
    tasks]``."""
    values = pa.array(labels.ravel())
    if labels.ndim == 1:
        return values
    return pa.FixedSizeListArray.from_arrays(values, labels.shape[1])


def labels_of(samples: pa.Table) -> np.ndarray:
    """Returns the labels of samples, which ``label_column`` made."""
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


def missing_where(raw: pa.ChunkedArray, values: np.ndarray) -> pa.Array:
    """Returns values made from a raw column, missing where its values are."""
    return pa.array(values, mask=raw.is_null().to_numpy())


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
