"""The manifest describes a folder of prepared data, which `embark data prepare` made.

The folder holds ``data.json`` and, for each split, Arrow files of samples. Training
reads them by memory mapping. ``vocabulary/`` says which value each id stands for.

Samples are checked when they are written; afterwards a checksum of each file shows
whoever reads it first that they have not changed. The manifest has the hashes of
vocabularies and of events, which whoever opens one compares.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.files import write_arrow
from embark_jax.data.batch import Batch, DataError, is_long
from embark_jax.data.checks import BatchChecker
from embark_jax.data.columns import Columns
from embark_jax.data.event_lists import EVENT_RANGES, EVENTS, EventLists
from embark_jax.data.hashed_file import MEND as MEND
from embark_jax.data.hashed_file import ChecksummedFile, HashedFile, checksum_of
from embark_jax.data.layout import TYPES, Layout
from embark_jax.data.numbers import FittedNumber
from embark_jax.data.vocabulary import FIRST_ID, RARE_ID
from embark_jax.plans.options import Pooling
from embark_jax.plans.tables import HASHED_KEYS, FeatureSpec

FILE_NAME = "data.json"
Hotness = Annotated[int, Field(ge=1, le=2**20)]
"""Largest number of ids in a bag; with more, a batch would fit into no memory."""
VERSION = 7
LABEL = "label"
SPLITS = ("train", "validation", "test")
BLOCK_BYTES = 2**20
"""Bytes of samples that are read and shuffled together; a disk reads this much at full
speed."""


MatrixType = tuple[np.dtype, int]
"""Type of the values of a matrix, and number of its columns."""


class SampleFile(HashedFile):
    """A file of samples: Arrow, which any tool opens. Each matrix of ``data/layout.py``
    is a column of lists of one length.

    Attributes:
      rows: number of samples.
      window: begin of the time window that the samples are of, in units of the column
        of times; None if data are not cut into windows.
    """

    rows: PositiveInt
    window: int | None = None

    def mapped(
        self, folder: Path, types: Mapping[str, MatrixType]
    ) -> dict[str, np.ndarray]:
        """Maps the matrices into memory.

        Raises:
          DataError: if the file is not as it was written.
        """
        path = self.verified(folder)
        try:
            with pa.memory_map(str(path)) as file:
                batch = pa.ipc.open_file(file).get_batch(0)
            matrices = {}
            for name, (dtype, width) in types.items():
                type_ = pa.list_(pa.from_numpy_dtype(dtype), width)
                column = batch.column(name)
                found, wanted = (column.type, len(column)), (type_, self.rows)
                if found != wanted or column.null_count:
                    raise ValueError(
                        f"column {name} has {len(column)} of {column.type}, must have "
                        f"{self.rows} of {type_}"
                    )
                flat = column.flatten().to_numpy()
                matrices[name] = flat.reshape(self.rows, width)
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"{path}: {error}; {MEND}") from None
        return matrices


class Feature(Config):
    """A feature, like ``FeatureSpec``."""

    table: str
    hotness: Hotness
    pooling: Pooling
    weighted: bool = False

    def spec(self, name: str) -> FeatureSpec:
        return FeatureSpec(name, self.table, self.hotness, self.pooling, self.weighted)


class PreparedFeature(Feature):
    """A feature of prepared data. With ``bags_of_one_id`` the files hold one id per
    sample, and reading makes the bag from it (``data/prepared.py``)."""

    bags_of_one_id: bool = False

    @property
    def stored_hotness(self) -> int:
        return 1 if self.bags_of_one_id else self.hotness


class Table(Config):
    """What the rows of a table stand for.

    Attributes:
      rows: number of rows.
      kind: ``values`` have a vocabulary, ``hashes`` of values none, ``numbers`` are the
        rows themselves, and ``ranges`` are those of a column of numbers.
      is_text: whether values are text; others are integers.
      file: the vocabulary, which says which value each row stands for.
    """

    rows: PositiveInt
    kind: Literal["values", "hashes", "numbers", "ranges"]
    is_text: bool = False
    file: HashedFile | None = None

    @property
    def is_shared(self) -> bool:
        """Whether rows may stand for several values, but for that of rare ones."""
        return self.kind == "hashes" and self.rows != HASHED_KEYS

    @property
    def first(self) -> int:
        """The first row that stands for a value: those before it are of missing values
        and of rare ones."""
        first = {"values": FIRST_ID, "ranges": FIRST_ID, "hashes": RARE_ID}
        return first.get(self.kind, 0)


class SplitFacts(Config):
    """What is known of a split but its samples.

    Attributes:
      times: the first and the last time, if samples have such: dates, or numbers.
      unknown: of each column of categories with such, the share of values without a row
        of their own, as no training sample has them, or too few.
    """

    times: tuple[str, str] | None = None
    unknown: Mapping[str, float] = {}


class Manifest(ChecksummedFile):
    """All that is known of a folder of prepared data.

    Attributes:
      made_from: data set, options and raw files, as given.
      dense: names of the dense features.
      labels: names of the labels, if samples have several.
      sample_weights: whether samples have weights.
      features: the features by name, in order.
      tables: the tables by name.
      files: files of each split, in order.
      raw_rows: number of lines or rows of the raw files: each became a sample, or is
        among ``skipped_lines``. None for synthetic data.
      negatives: number of samples whose items were drawn, beside those of lines.
      skipped_lines: number of bad lines of the raw files, which are left out.
      missing_dense: for each dense column, how many values the raw files lack, if any;
        they are 0 in the samples.
      splits: what is known of each split that has samples.
      numbers: transforms of columns of numbers, for dense columns and features.
      columns: columns of a user's own files, which raw rows must have.
      events: events of the samples' histories, which are features without ids in the
        files of samples; None if there are none.
    """

    version: Literal[7] = VERSION
    made_from: Mapping[str, Any]
    dense: tuple[str, ...]
    labels: tuple[str, ...] = ()
    sample_weights: bool = False
    features: Mapping[str, PreparedFeature]
    tables: Mapping[str, Table]
    files: Mapping[str, tuple[SampleFile, ...]]
    raw_rows: NonNegativeInt | None = None
    skipped_lines: NonNegativeInt = 0
    negatives: NonNegativeInt = 0
    missing_dense: Mapping[str, PositiveInt] = {}
    splits: Mapping[str, SplitFacts] = {}
    numbers: Mapping[str, FittedNumber] = {}
    columns: Columns | None = None
    events: EventLists | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> Manifest:
        """Raises ``ValueError`` if what the manifest says does not fit together."""
        if self.files.keys() != set(SPLITS):
            raise ValueError(f"files: must be of {', '.join(SPLITS)}")
        for name, feature in self.features.items():
            if feature.table not in self.tables:
                raise ValueError(f"features.{name}: has no table {feature.table!r}")
        for name, table in self.tables.items():
            if table.kind == "values" and table.file is None:
                raise ValueError(f"tables.{name}: has no vocabulary")
            if table.kind == "ranges" and name not in self.numbers:
                raise ValueError(f"tables.{name}: has no ranges under numbers")
        if strange := {*self.numbers} - {*self.dense, *self.features}:
            raise ValueError(f"{sorted(strange)[0]!r} is no column")
        return self

    @classmethod
    def of(cls, **fields: Any) -> Manifest:
        """Makes a manifest without files."""
        return cls(**fields, files=dict.fromkeys(SPLITS, ()))

    @property
    def block_rows(self) -> int:
        """Number of samples that are read together, about BLOCK_BYTES."""
        sample_bytes = sum(t.itemsize * n for t, n in self.matrix_types.values())
        return 2 ** max(0, int(math.log2(BLOCK_BYTES / sample_bytes)))

    def digest(self) -> str:
        """Identifies the samples and the values that their ids stand for: it differs if
        the files or the vocabularies differ."""
        hashes = "".join(file.xxh3 for file in self.all_files)
        return hashlib.sha256(hashes.encode()).hexdigest()[:16]

    def meaning(self) -> dict[str, Any]:
        """Identifies what raw values become: by digests of all columns and their
        transforms, and of each table's values."""
        of_samples = {"split", "window", "on_bad_line", "negatives", "unseen"}
        described = self.model_dump(
            mode="json",
            include={"numbers", "columns", "tables"},
            exclude={"columns": of_samples},
            exclude_defaults=True,  # of which another version may have more
        )
        tables = described.pop("tables")
        return {
            "columns": checksum_of(described | self.column_names),
            "tables": {name: checksum_of(table) for name, table in tables.items()},
        }

    @property
    def column_names(self) -> dict[str, list[str]]:
        """Returns the names of the columns of a sample, in their order."""
        names = {"dense": self.dense, "features": self.features, "labels": self.labels}
        return {what: list(columns) for what, columns in names.items()}

    @property
    def table_rows(self) -> dict[str, int]:
        """Returns the number of rows of each table."""
        return {name: table.rows for name, table in self.tables.items()}

    @property
    def vocabularies(self) -> list[HashedFile]:
        """Returns the files of tables."""
        return [table.file for table in self.tables.values() if table.file]

    @property
    def all_files(self) -> list[HashedFile]:
        """Returns the files of samples, vocabularies and events."""
        samples = [file for files in self.files.values() for file in files]
        events = self.events.files if self.events else ()
        return [*samples, *self.vocabularies, *events]

    @property
    def stored_features(self) -> dict[str, PreparedFeature]:
        """Returns the features whose ids are in the files."""
        gathered = self.events.sequences if self.events else ()
        return {n: f for n, f in self.features.items() if n not in gathered}

    @property
    def windows(self) -> list[int | None]:
        """Returns the begins of the time windows of the training samples, in order;
        [None] if the data are not cut into windows."""
        return list(dict.fromkeys(file.window for file in self.files[SPLITS[0]]))

    def table_of(self, feature: str) -> Table:
        """Returns the table that a feature reads."""
        return self.tables[self.features[feature].table]

    def of_window(self, window: int | None) -> Manifest:
        """Returns the manifest of the training samples of one time window alone."""
        files = tuple(f for f in self.files[SPLITS[0]] if f.window == window)
        return self.model_copy(
            update={"files": dict.fromkeys(SPLITS, ()) | {SPLITS[0]: files}}
        )

    def rows(self, split: str) -> int:
        """Returns the number of samples of a split."""
        return sum(file.rows for file in self.files[split])

    def layout(self) -> Layout:
        """Returns the layout of the matrices of every file."""
        rows = self.table_rows
        return Layout(
            max(1, len(self.labels)),
            len(self.dense),
            tuple(
                (name, feature.stored_hotness, is_long(rows[feature.table]))
                for name, feature in self.stored_features.items()
            ),
            tuple(
                (name, feature.stored_hotness)
                for name, feature in self.stored_features.items()
                if feature.weighted
            ),
            sample_weights=self.sample_weights,
        )

    @property
    def matrix_types(self) -> dict[str, MatrixType]:
        """Returns the types of the matrices of every file."""
        types = {name: (TYPES[name], n) for name, n in self.layout().widths.items()}
        return types | ({EVENTS: EVENT_RANGES} if self.events else {})

    def checked_rows(self) -> dict[str, int]:
        """Returns for each feature the number of rows of its table, which its ids are
        below."""
        return {name: self.table_rows[f.table] for name, f in self.features.items()}

    def save(self, folder: Path) -> None:
        """Writes the manifest: from then on the folder is complete."""
        self.write(folder / FILE_NAME)


def load(folder: Path) -> Manifest:
    """Reads the manifest of a folder, and checks the sizes of its files.

    Raises:
      DataError: if the folder is not, or not wholly, prepared, or a file is not whole.
    """
    manifest = read(folder)
    for file in manifest.all_files:
        file.sized(folder)
    return manifest


def read(folder: Path, mend: str = MEND) -> Manifest:
    """Reads the manifest of a folder, but no other file; ``mend`` says what to do about
    one that is damaged.

    Raises:
      DataError: if the folder is not, or not wholly, prepared.
    """
    path = folder / FILE_NAME
    try:
        return Manifest.of_file(path, mend)
    except FileNotFoundError:
        if not folder.exists():
            raise DataError(
                f"{folder}: no such folder, seen from the working directory; `embark "
                "data prepare --out` makes one"
            ) from None
        raise DataError(
            f"{path}: no such file; `embark data prepare --out` makes a folder that "
            "has it"
        ) from None


def write_samples(
    folder: Path,
    file: str,
    batch: Batch,
    manifest: Manifest,
    window: int | None = None,
    events: np.ndarray | None = None,
) -> SampleFile:
    """Checks samples, and writes them as a file, whole or not at all.

    Args:
      folder: the manifest's folder.
      file: path of the file in the folder.
      batch: samples in the manifest's layout.
      manifest: the manifest, complete but for the files.
      window: begin of the time window that the samples are of, if they have one.
      events: ``[samples, 3]`` range of each sample's events, if the data have such.

    Raises:
      DataError: if a sample breaks a rule of ``data.BatchChecker``.
    """
    stored = [
        FeatureSpec(
            name, feature.table, feature.stored_hotness, weighted=feature.weighted
        )
        for name, feature in manifest.stored_features.items()
    ]
    check = BatchChecker(stored, manifest.table_rows, len(manifest.dense))
    located = dataclasses.replace(batch, locate=f"{folder / file}, row {{}}".format)
    _, matrices = check(located).matrices()
    if events is not None:
        matrices = {**matrices, EVENTS: events}
    columns = {
        name: pa.FixedSizeListArray.from_arrays(
            pa.array(np.ascontiguousarray(matrix).ravel()), matrix.shape[1]
        )
        for name, matrix in matrices.items()
    }
    write_arrow(folder / file, pa.table(columns))
    return SampleFile.of(folder, file, rows=len(batch), window=window)
