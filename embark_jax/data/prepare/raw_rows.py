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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.files import confined
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.manifest import LABEL, SPLITS, VOCABULARY, Manifest
from embark_jax.data.prepare import own_files, raw_files, reading, sql
from embark_jax.data.prepare.columns import check_there
from embark_jax.data.prepare.encode import (
    CHUNK_ROWS,
    SampleEncoder,
    add_vocabularies,
    has_nulls,
)
from embark_jax.data.prepare.recipe import IN_FILE, WEIGHT
from embark_jax.data.prepare.row_queries import RowQueries
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
    for table in manifest.tables_with_values:
        if manifests.vocabulary_file(table) not in listed:
            raise DataError(
                f"{folder / manifests.FILE_NAME}: lists no vocabulary of table "
                f"{table!r}, which is not hashed"
            )
    return manifest


def copy_encoding(run: Path, out: Path) -> None:
    """Copies a run's encoding, if it has one."""
    if (run / FOLDER / manifests.FILE_NAME).exists():
        save_encoding(run / FOLDER, read_encoding(run / FOLDER), out / FOLDER)


def _check_kinds(manifest: Manifest, folder: Path) -> None:
    """Raises ``DataError`` unless the values of each vocabulary are texts, or whole
    numbers, as those of a feature that reads it."""
    texts = {manifest.features[name].table for name in manifest.text_features}
    for table in manifest.tables_with_values:
        keys = read_keys(folder, table)
        if len(keys) and is_text(keys.type) != (table in texts):
            path = folder / manifests.vocabulary_file(table)
            wanted = "text" if table in texts else "integers"
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
        add_vocabularies(self._database, self._manifest, encoding)
        _check_kinds(self._manifest, encoding)
        self._encoder = SampleEncoder(self._database, self._manifest, encoding)
        self._rows = RowQueries(self._database, self._manifest, self._columns)
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
        made = self._of_files if isinstance(rows, str | Path) else self._of_table
        for where, first, batch, has_label in made(rows):
            unknown.add(batch)

            def locate(row: int, where: Any = where, first: int = first) -> str:
                return f"{where}, row {first + row}"

            yield dataclasses.replace(batch, locate=locate), has_label
        unknown.warn()

    def kept(self, rows: Path, names: Sequence[str]) -> pa.Table:
        """Returns columns of the files that ``batches`` reads, of text files as their
        texts.

        Raises:
          DataError: if there is no such column.
        """
        files = own_files.files_of_rows(Path(rows), self._columns, names)
        tables = []
        for file in files:
            columns = ", ".join(
                f"{file.column(each)} AS {sql.name(each)}" for each in names
            )
            with raw_files.plain(file, self._database.spill) as path:
                query = f"SELECT {columns} FROM {file.source(path)}"
                tables.append(self._database.table(query))
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(f"{rows}: columns differ between files: {error}") from None

    def _of_files(self, rows: str | Path) -> Iterator[_Made]:
        database, columns = self._database, self._columns
        texts = self._manifest.text_features
        wanted = own_files.input_columns(columns, texts)
        for file in own_files.files_of_rows(Path(rows), columns, columns.inputs):
            optional = own_files.label_columns(columns, required=False)
            there = [column for column in optional if column.name in file.columns]
            read = reading.read(database, "given", file, [*there, *wanted])
            names = [*columns.inputs, *({WEIGHT} & {c.alias for c in there})]
            made = [sql.name(name) for name in names]
            targets = [c for c in there if c.alias != WEIGHT]
            if len(targets) == len(columns.targets):
                made.append(f"{own_files.label_of(columns)} AS {LABEL}")
            query = f"SELECT rowid AS {sql.name(IN_FILE)}, {', '.join(made)} FROM given"
            types = database.types(query)
            self._count_cut(query, types)
            for first in range(0, read.good, CHUNK_ROWS):
                chunk = (
                    f"{query} WHERE rowid BETWEEN {first} AND {first + CHUNK_ROWS - 1}"
                )
                batch, facts = self._encoder.of_samples(chunk, types)
                yield _Made(file.path, first, batch, _has_labels(facts))

    def _count_cut(self, query: str, types: Mapping[str, str]) -> None:
        for name, feature in self._manifest.features.items():
            if types[name].endswith("]"):
                length = f"len({sql.name(name)}) - {feature.hotness}"
                ((cut,),) = self._database.rows(
                    f"SELECT coalesce(sum(greatest({length}, 0)), 0) FROM ({query})"
                )
                self.cut[name] += int(cut)

    def _of_table(self, rows: Any) -> Iterator[_Made]:
        columns, table = self._columns, _table(rows)
        optional = {*columns.targets, columns.weight} & {*table.column_names}
        used = [*columns.inputs, *sorted(optional)]
        check_there(used, table.column_names, "rows")
        facts, found, cut = self._rows(table.select(used))
        for name, values in cut.items():
            self.cut[name] += values
        batch = self._encoder.batch(facts, found.__getitem__, len(table))
        yield _Made("rows", 0, batch, _has_labels(facts))


class _Made(NamedTuple):
    """Some rows, where they come from, the first one's number, and whether
    they have labels."""

    where: Any
    first: int
    batch: Batch
    has_label: bool


def _has_labels(facts: pa.Table) -> bool:
    return LABEL in facts.column_names and not has_nulls(facts[LABEL])


class _UnknownValues:
    """Counts the values that training did not have, or too rarely for a row."""

    def __init__(self, manifest: Manifest):
        self._features = [
            name
            for name, feature in manifest.features.items()
            if name not in manifest.numbers
            if feature.table in manifest.tables_with_values
        ]
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
