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
from embark_jax.data.prepare.encode import CHUNK_ROWS, SampleEncoder, add_vocabularies
from embark_jax.data.prepare.reading import GOOD
from embark_jax.data.prepare.recipe import IN_FILE, WEIGHT
from embark_jax.data.prepare.values import Column, define
from embark_jax.data.prepare.vocabulary import RARE_ID
from embark_jax.data.table_values import TableValues

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


def copy_encoding(run: Path, out: Path) -> None:
    """Copies a run's encoding, if it has one."""
    if (run / FOLDER / manifests.FILE_NAME).exists():
        values = read_encoding(run / FOLDER)
        save_encoding(values.folder, values.manifest, out / FOLDER)


def read_encoding(folder: Path) -> TableValues:
    """Reads the manifest of an encoding.

    Raises:
      DataError: if it is missing or damaged.
    """
    mend = f"copy {folder} anew"
    return TableValues(folder, manifests.read(folder, mend), mend)


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
        values = read_encoding(encoding)
        manifest = self._manifest = values.manifest
        if manifest.columns is None:
            raise DataError(f"{encoding}: does not describe the columns of raw rows")
        self._columns = manifest.columns
        self._known = own_files.label_columns(self._columns, required=False)
        self._known += own_files.input_columns(self._columns, manifest.text_features)
        self._database = sql.Database()
        define(self._database)
        add_vocabularies(self._database, values)
        self._encoder = SampleEncoder(self._database, values)
        self._queries: dict[pa.Schema, _RowQueries] = {}
        self.cut = self._encoder.cut
        self.labels = manifest.labels
        self.dense = [f"column {name}" for name in manifest.dense]

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
        paths = own_files.files_of_rows(Path(rows), self._columns, self._columns.inputs)
        for file in paths:
            columns = self._used(file.columns)
            read = reading.read(self._database, "given", file, columns)
            query = self._samples(
                columns, f"SELECT *, rowid AS {sql.name(IN_FILE)} FROM given"
            )
            types = self._database.types(query)
            for first in range(0, read.good, CHUNK_ROWS):
                last = first + CHUNK_ROWS - 1
                chunk = f"{query} WHERE {sql.name(IN_FILE)} BETWEEN {first} AND {last}"
                facts = self._encoder.facts(chunk, types)
                batch = self._encoder.batch(chunk, types, facts)
                yield _Made.of(file.path, first, batch, facts)

    def _of_table(self, rows: Any) -> Iterator[_Made]:
        """Asks the same of a table of the database, whose queries are planned once for
        columns of these types."""
        table = _table(rows)
        columns = self._used(table.column_names)
        names = [column.name for column in columns]
        check_there(names, table.column_names, "rows")
        table = _plain_texts(table.select(names))
        if table.schema not in self._queries:
            self._queries[table.schema] = self._planned(table, columns)
        queries = self._queries[table.schema]
        for first in range(0, max(1, len(table)), CHUNK_ROWS):
            part = _numbered(table.slice(first, CHUNK_ROWS), first)
            self._database.refill(queries.file.table, part)
            samples = queries.samples, queries.types
            facts = self._encoder.facts(*samples, are_few=True)
            if not facts[GOOD].to_numpy().all():
                file, given = queries.file, queries.given
                told = reading.bad_rows(self._database, file, file.path, given, 1)
                raise DataError(told[0])
            batch = self._encoder.batch(*samples, facts, are_few=True)
            yield _Made.of("rows", first, batch, facts)

    def _planned(self, table: pa.Table, columns: Sequence[Column]) -> _RowQueries:
        """Makes a table of the database for such rows, and the queries of it."""
        name = f"rows_{len(self._queries)}"
        numbered = _numbered(table.slice(0, 0), 0)
        self._database.run(f"CREATE TABLE {name} AS FROM given", given=numbered)
        types = self._database.types("FROM given", given=numbered)
        file = raw_files.RowsInMemory(name, tuple(table.column_names))
        given = reading.Selected.of(
            columns, file, {c: types[file.column(c)] for c in table.column_names}
        )
        own = f"number AS {sql.name(IN_FILE)}, {given.good} AS {sql.name(GOOD)}"
        source = f"SELECT {own}, {given.values} FROM {name}"
        samples = self._samples(columns, source, [GOOD])
        return _RowQueries(file, given, samples, self._database.types(samples))

    def _used(self, names: Sequence[str]) -> list[Column]:
        """Returns how columns of rows are read: labels and weights if they are
        there."""
        inputs = {*self._columns.inputs}
        return [c for c in self._known if c.name in inputs or c.name in names]

    def _samples(
        self, columns: Sequence[Column], source: str, others: Sequence[str] = ()
    ) -> str:
        """Returns a query of samples, from one of their typed values."""
        given = {column.alias or column.name for column in columns}
        names = [IN_FILE, *self._columns.inputs, *({WEIGHT} & given), *others]
        made = [*map(sql.name, names)]
        if {f"{LABEL} of {name}" for name in self._columns.targets} <= given:
            made.append(f"{own_files.label_of(self._columns)} AS {LABEL}")
        return f"SELECT {', '.join(made)} FROM ({source})"


class _RowQueries(NamedTuple):
    """What is asked of rows in memory.

    Attributes:
      file: the table of the database that they are put into.
      given: how values are made of their columns.
      samples: a query of their samples, and of which rows are good.
      types: types of the columns of samples.
    """

    file: raw_files.RowsInMemory
    given: reading.Selected
    samples: str
    types: Mapping[str, str]


class _Made(NamedTuple):
    """Some rows, where they come from, the first one's number, and whether
    they have labels."""

    where: Any
    first: int
    batch: Batch
    has_label: bool

    @classmethod
    def of(cls, where: Any, first: int, batch: Batch, facts: pa.Table) -> _Made:
        """Of several labels each row may lack some, but no label all rows."""
        missing = np.isnan(batch.labels)
        lacks = missing.all(axis=0) if missing.ndim > 1 else missing
        has_label = LABEL in facts.column_names and not lacks.any()
        if not has_label:
            batch.labels[...] = 0
        return cls(where, first, batch, has_label)


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


def _plain_texts(table: pa.Table) -> pa.Table:
    """Returns a table without dictionaries, whose values are not those of the next one,
    and without what its maker says of it.

    Raises:
      DataError: if texts are no UTF-8, such as half of a surrogate pair.
    """
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_dictionary(field.type):
            column = column.cast(field.type.value_type)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataError(f"rows: column {field.name}: {error}") from None
        columns[field.name] = column
    return pa.table(columns)


def _numbered(table: pa.Table, first: int) -> pa.Table:
    """Returns rows with their numbers, whose columns are c0, c1 and so on."""
    names = [f"c{i}" for i in range(table.num_columns)]
    numbers = pa.array(np.arange(first, first + len(table)))
    return table.rename_columns(names).append_column("number", numbers)


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
