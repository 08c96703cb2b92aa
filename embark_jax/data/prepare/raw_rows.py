"""Makes batches from raw rows, as training made them from a user's own files.

The folder ``encoding/`` of a run or an export holds what this needs: the manifest of
the data, and the vocabularies.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.files import confined
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.manifest import LABEL, SPLITS, VOCABULARY, Manifest
from embark_jax.data.prepare import own_files, sql
from embark_jax.data.prepare.encode import SampleEncoder
from embark_jax.data.prepare.raw_files import Chunk, Columns, RawFile, by_position
from embark_jax.data.prepare.recipe import ROW
from embark_jax.data.prepare.samples import typed_samples
from embark_jax.data.prepare.values import define
from embark_jax.data.prepare.vocabulary import RARE_ID, is_text, read_keys

FOLDER = "encoding"
FEWEST_WARNED = 10
"""A warning needs this many values: a few that training did not have are no sign."""


def save_encoding(prepared: Path, manifest: Manifest, out: Path) -> None:
    """Writes what encodes raw rows to a folder. Vocabularies are hard links where
    possible, since they never change in place.

    Args:
      prepared: folder of the data.
      manifest: manifest of the data.
      out: the folder to fill.

    Raises:
      DataError: if a vocabulary is not as it was written.
    """
    (out / VOCABULARY).mkdir(parents=True, exist_ok=True)
    for file in manifest.vocabularies:
        source, target = file.verified(prepared), confined(out, file.file)
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
    manifest.model_copy(update={"files": dict.fromkeys(SPLITS, ())}).save(out)


def read_encoding(folder: Path) -> Manifest:
    """Reads the manifest of an encoding, and checks all its files.

    Raises:
      DataError: if a file is missing or damaged.
    """
    mend = f"copy {folder} anew"
    manifest = manifests.read(folder, mend)
    for file in manifest.vocabularies:
        file.verified(folder, mend)
    listed = {file.file for file in manifest.vocabularies}
    for name, feature in manifest.features.items():
        if name in manifest.numbers or feature.table in manifest.hashed_tables:
            continue
        if feature.table in manifest.numbered_tables:
            continue
        if manifests.vocabulary_file(feature.table) not in listed:
            raise DataError(
                f"{folder / manifests.FILE_NAME}: lists no vocabulary of table "
                f"{feature.table!r}, which is not hashed"
            )
    return manifest


def copy_encoding(run: Path, out: Path) -> None:
    """Copies a run's encoding, if it has one."""
    if (run / FOLDER / manifests.FILE_NAME).exists():
        save_encoding(run / FOLDER, read_encoding(run / FOLDER), out / FOLDER)


def _check_kinds(manifest: Manifest, folder: Path) -> None:
    """Raises ``DataError`` unless the values of each vocabulary are texts, or whole
    numbers, as those of a feature that reads it."""
    kinds: dict[str, set[bool]] = {}
    for name, feature in manifest.features.items():
        if name not in manifest.numbers:
            kinds.setdefault(feature.table, set()).add(name in manifest.text_features)
    for table in kinds.keys() - {*manifest.hashed_tables} - manifest.numbered_tables:
        keys = read_keys(folder, table)
        if len(keys) and is_text(keys.type) not in kinds[table]:
            path = folder / manifests.vocabulary_file(table)
            wanted = "text" if True in kinds[table] else "integers"
            raise DataError(
                f"{path}: column 'key' has {keys.type}, must have {wanted}, as the "
                f"features of table {table!r}"
            )


class RowEncoder:
    """Makes batches from raw rows.

    Values that no training sample had share a row of their table, like rare ones.
    Lists that are longer than those in training are cut as in training.

    Args:
      folder: folder of a run or an export.

    Attributes:
      cut: for each feature, how many values of too long lists were left out.
      labels: names of the labels, if samples have several.
      dense: names of the dense columns, in words.

    Raises:
      DataError: if the folder has no encoding: its data were not a user's own files.
    """

    def __init__(self, folder: Path):
        encoding = local_copy(folder, without=["checkpoints"]) / FOLDER
        if not (encoding / manifests.FILE_NAME).exists():
            raise DataError(
                f"{folder}: has no {FOLDER}/, so raw rows cannot be read; runs have it "
                "whose data `embark data prepare csv` or parquet prepared"
            )
        self._manifest = read_encoding(encoding)
        if self._manifest.columns is None:
            raise DataError(f"{encoding}: does not describe the columns of raw rows")
        self._columns = self._manifest.columns
        self._database = sql.Database()
        define(self._database)
        self._encoder = SampleEncoder(self._database, self._manifest, encoding)
        _check_kinds(self._manifest, encoding)
        self.cut = dict.fromkeys(self._manifest.features, 0)
        self.labels = self._manifest.labels
        self.dense = [f"column {name}" for name in self._manifest.dense]

    def batches(self, rows: Any) -> Iterator[tuple[Batch, bool]]:
        """Returns batches of any size, in the order of the rows, and whether they have
        labels. At the end it warns of columns most of whose values are unknown.

        Args:
          rows: the path of a CSV or Parquet file, or of a folder of them; or a mapping
            of columns, an Arrow table or a data frame.

        Raises:
          DataError: if a column is missing or a value breaks a rule.
        """
        unknown = _UnknownValues(self._manifest)
        for file in self._files(rows):
            first = 0  # row of the file's next batch
            for chunk in file.chunks():
                batch, has_label = self._batch(file, chunk)
                unknown.add(batch)

                def locate(row: int, path: Path = file.path, at: int = first) -> str:
                    return f"{path}, row {at + row}"

                first += len(batch)
                yield dataclasses.replace(batch, locate=locate), has_label
        unknown.warn()

    def kept(self, rows: Path, names: Sequence[str]) -> pa.Table:
        """Returns columns of the files that ``batches`` reads, as they are there.

        Raises:
          DataError: if there is no such column.
        """
        return own_files.as_they_are(Path(rows), self._columns, names)

    def _files(self, rows: Any) -> Sequence[RawFile]:
        columns = self._columns
        optional = {*columns.targets, *filter(None, [columns.weight])}
        if isinstance(rows, str | Path):
            files = own_files.OwnFiles.of_rows(Path(rows), columns, columns.inputs)
            used = [*columns.inputs, *sorted(optional & {*files.names})]
            own_files.check_there(used, files.names, str(files.paths[0]))
            return files.readers(used)
        table = _table(rows)
        used = [*columns.inputs, *sorted(optional & {*table.column_names})]
        own_files.check_there(used, table.column_names, "rows")
        return [_Rows(table.select(used))]

    def _batch(self, file: RawFile, chunk: Chunk) -> tuple[Batch, bool]:
        manifest, columns = self._manifest, self._columns
        labels = own_files.label_columns(columns, required=False)
        read = [column for column in labels if column.name in file.columns]
        read += own_files.input_columns(columns, manifest.text_features)
        query = own_files.samples_query(columns, read)
        samples, bad = typed_samples(self._database, file, chunk, read, query, 1)
        if bad:
            raise DataError(bad[0])
        samples = samples.drop_columns([ROW])
        for name, feature in manifest.features.items():
            column = samples[name]
            if name not in manifest.numbers and feature.hotness > 1:
                lengths = _lengths(column)
                self.cut[name] += int(np.maximum(lengths - feature.hotness, 0).sum())
        label = samples[LABEL] if LABEL in samples.column_names else None
        has_label = label is not None and not _has_nulls(label)
        if label is not None and not has_label:
            samples = samples.drop_columns([LABEL])
        return self._encoder(samples), has_label


@dataclasses.dataclass(frozen=True)
class _Rows(Columns):
    """Rows in memory, read like a file."""

    table: pa.Table
    path: Path = Path("rows")
    unit: str = "row"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    def chunks(self) -> Iterator[Chunk]:
        yield Chunk(by_position(self.table, self.path), 0, 0)


def _lengths(column: pa.ChunkedArray) -> np.ndarray:
    """Returns the number of values of each bag."""
    values = column.combine_chunks()
    if pa.types.is_list(values.type):
        return values.value_lengths().fill_null(0).to_numpy()
    return values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)


def _has_nulls(labels: pa.ChunkedArray) -> bool:
    values = labels.combine_chunks()
    if pa.types.is_fixed_size_list(values.type):
        values = values.flatten()
    return values.null_count > 0


class _UnknownValues:
    """Counts the values that training did not have, or too rarely for a row."""

    def __init__(self, manifest: Manifest):
        self._features = {
            name: feature.table
            for name, feature in manifest.features.items()
            if name not in manifest.numbers
            if feature.table not in manifest.hashed_tables
            if feature.table not in manifest.numbered_tables
        }
        self._values = dict.fromkeys(self._features, 0)
        self._unknown = dict.fromkeys(self._features, 0)

    def add(self, batch: Batch) -> None:
        for name in self._features:
            ids = np.asarray(batch.ids[name])
            self._values[name] += int((ids >= RARE_ID).sum())
            self._unknown[name] += int((ids == RARE_ID).sum())

    def warn(self) -> None:
        for name, values in self._values.items():
            unknown = self._unknown[name]
            if values >= FEWEST_WARNED and unknown > values / 2:
                warnings.warn(
                    f"column {name}: training did not know {unknown:,} of {values:,} "
                    "values, which share one row of the table; look whether the column "
                    "is written as in training",
                    stacklevel=4,
                )


def _table(rows: Any) -> pa.Table:
    """Makes a table of a mapping, an Arrow table or a data frame.

    Raises:
      DataError: if it is none, or a column's values cannot be in one column.
    """
    try:
        if isinstance(rows, Mapping):
            rows = {name: _column(name, values) for name, values in rows.items()}
        return pa.table(rows)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"rows: are no table ({error})") from None


def _column(name: str, values: Any) -> Any:
    """Makes an array of a sequence; Arrow takes ids of 2^63 and more if it is told."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    for kind in (None, pa.uint64()):
        try:
            return pa.array(values, kind)
        except OverflowError:
            continue
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"rows: column {name}: {error}") from None
    raise DataError(
        f"rows: column {name}: has integers of more than 64 bits, or negative ones "
        "beside some of 2^63 and more; give them as text"
    )
