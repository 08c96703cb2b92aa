"""Makes batches from raw rows, as training made them from a user's own files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.config import nearest
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.encoding import FOLDER, read_encoding
from embark_jax.data.manifest import LABEL
from embark_jax.data.table_values import TableValues
from embark_jax.data.vocabulary import (
    FIRST_ID,
    MISSING_ID,
    RARE_ID,
    is_text,
    vocabulary_file,
)
from embark_jax.plans.tables import PADDING_ID
from embark_jax.prepare import own_files, raw_files, reading, sql
from embark_jax.prepare.encode import CHUNK_ROWS, SampleEncoder
from embark_jax.prepare.raw_files import RowsInMemory, check_columns
from embark_jax.prepare.reading import GOOD
from embark_jax.prepare.recipe import IN_FILE, USER
from embark_jax.prepare.samples import time_of_samples
from embark_jax.prepare.values import define

JSON_LINES = ".jsonl"
FEWEST_WARNED = 10
"""A warning needs this many values: a few that training did not have are no sign."""


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
        values = self._values = read_encoding(encoding)
        manifest = self._manifest = values.manifest
        if manifest.columns is None:
            raise DataError(f"{encoding}: does not describe the columns of raw rows")
        self._columns = manifest.columns
        self._encoder = SampleEncoder(manifest)
        texts = [n for n, (_, t) in self._encoder.categories.items() if t.is_text]
        self._texts = texts
        self._read = own_files.label_columns(self._columns, required=False)
        self._read += own_files.input_columns(self._columns, texts)
        others = (*self._columns.targets, self._columns.weight, *self._columns.optional)
        self._optional = frozenset(filter(None, others))
        self._database = sql.Database()
        define(self._database)
        self._ids = {
            name: _ids_of_values(values, name)
            for name, table in manifest.tables.items()
            if table.kind == "values"
        }
        self._queries: dict[Any, tuple[reading.Selected, str]] = {}
        # The histories that a log gives, and the features whose values they hold.
        self._past: dict[str, str] = {}
        self.cut = self._encoder.cut
        self.labels = manifest.labels
        self.dense = [f"column {name}" for name in manifest.dense]

    def batches(
        self, rows: Any, optional: Collection[str] = ()
    ) -> Iterator[tuple[Batch, bool]]:
        """Returns batches of any size, in the order of the rows, and whether they have
        labels. At the end it warns of columns most of whose values are unknown.

        Args:
          rows: the path of a CSV or Parquet file, of a folder of them, or of a file
            of JSON lines (.jsonl), which is read into memory; or a mapping of columns,
            a list of rows by column, an Arrow table or a data frame.
          optional: columns that may be missing, as all of their values are then.

        Raises:
          DataError: if a column is missing or a value breaks a rule.
        """
        values, unknown, rows = Counter(), Counter(), _read_json_lines(rows)
        made = self._of_files if isinstance(rows, str | Path) else self._of_table
        for where, first, samples in made(rows, self._optional.union(optional)):
            batch = self._encoder.batch(samples, self._lookup)
            # Of several labels each row may lack some, but no label all rows.
            missing = np.isnan(batch.labels)
            lacks = missing.all(axis=0) if missing.ndim > 1 else missing
            has_label = LABEL in samples.column_names and not lacks.any()
            if not has_label:
                batch.labels[...] = 0
            for name, (_, table) in self._encoder.categories.items():
                if table.kind == "values":
                    ids = np.asarray(batch.ids[name])
                    values[name] += int((ids >= RARE_ID).sum())
                    unknown[name] += int((ids == RARE_ID).sum())

            def locate(row: int, where: Any = where, first: int = first) -> str:
                return f"{where}, row {first + row}"

            yield dataclasses.replace(batch, locate=locate), has_label
        _warn_of_unknown(values, unknown)

    def read_log(self, log: str | Path) -> None:
        """Reads a log, such as the data were prepared of. From now on rows give their
        user, and have the history of an event after all of the log.

        Raises:
          DataError: if the data had no history, or one with pools or ages, or the log
            lacks a column or has a bad line.
        """
        columns, history = self._columns, self._columns.history
        if history is None or history.pools or history.ages:
            raise DataError(
                f"{log}: makes no histories: the data were prepared without such, or "
                "with pools or ages"
            )
        inputs = own_files.input_columns(columns, self._texts)
        time_and_user = own_files.time_and_user(columns)
        read = [*time_and_user, *(c for c in inputs if c.name in history.columns)]
        is_event = "true"
        if history.positive:
            read += own_files.label_columns(columns)
            is_event = f"{own_files.label_of(columns)} = 1"
        names, database = [column.name for column in read], self._database
        files = own_files.files_of_rows(Path(log), columns, names, ())
        for number, file in enumerate(files):
            reading.read(database, "one", file, read)
            made = f"SELECT *, {number} AS file, rowid AS place FROM one"
            into = "INSERT INTO log" if number else "CREATE OR REPLACE TABLE log AS"
            database.run(f"{into} {made}")
        time, _ = time_of_samples(database, ["log"], f"{log}: column {columns.time}")
        user, in_order = sql.name(USER), f"{time}, file, place"
        lists = ", ".join(
            f"list({sql.name(name)} ORDER BY {in_order})[-{history.longest}:] AS "
            f"{sql.name(past)}"
            for past, name in history.features.items()
        )
        database.run(
            f"CREATE OR REPLACE TABLE histories AS SELECT {user}::VARCHAR AS {user}, "
            f"{lists} FROM log WHERE {is_event} AND {user} IS NOT NULL GROUP BY ALL"
        )
        database.run("DROP TABLE log")
        self._past = dict(history.features)
        self._read = [c for c in self._read if c.name not in self._past]
        self._read += [c for c in time_and_user if c.alias == USER]
        self._queries.clear()

    def ids(self, feature: str, values: Sequence[Any]) -> np.ndarray:
        """Returns the ids of a feature's values, int64 ``[values]``: 1 for those that
        training did not know, 0 for a missing one.

        Raises:
          DataError: if there is no such feature of categories, or a value breaks a
            rule.
        """
        if feature not in self._encoder.categories:
            known = nearest(feature, self._encoder.categories)
            raise DataError(f"{feature}: is no feature of categories; {known}")
        feature = self._past.get(feature, feature)
        table = _table({feature: values})
        if self._columns.features[feature].separator:  # each is one value
            single = table[feature].combine_chunks()
            ends = np.arange(len(single) + 1, dtype=np.int32)
            table = pa.table({feature: pa.ListArray.from_arrays(ends, single)})
        if (weights := self._columns.weights.get(feature)) is not None:
            table = table.append_column(weights, pa.array([[1.0]] * len(table)))
        others = self._optional.union(column.name for column in self._read)
        ids = [
            np.asarray(self._encoder.batch(samples, self._lookup).ids[feature])
            for _, _, samples in self._of_table(table, others)
        ]
        found = np.concatenate(ids).max(axis=1)  # the others are padding
        has_row = self._encoder.categories[feature][1].kind != "numbers"
        return np.where((found == PADDING_ID) & has_row, MISSING_ID, found)

    def values(self, feature: str) -> tuple[np.ndarray, list[Any]]:
        """Returns the ids of the rows that stand for a value of a feature, int64, and
        their values.

        Raises:
          DataError: if nothing says which value a row stands for, as it is hashed.
        """
        of_feature, table = self._encoder.categories[feature]
        if table.kind == "hashes":
            raise DataError(
                f"{feature}: is hashed, so that nobody knows which value a row stands "
                "for: prepare the data without hashing it"
            )
        ids = np.arange(table.first, table.rows)
        if table.kind == "numbers":
            return ids, ids.tolist()
        return ids, self._values.keys(of_feature.table).to_pylist()

    def written(self, column: str, values: Any) -> list[str | None]:
        """Returns values of a column as texts, equal ones alike: 007 and 7 are one,
        unless the column has texts as they are."""
        described = self._columns.features.get(column)
        is_text = described.text if described else self._columns.user_text
        made = "v::VARCHAR" if is_text else "canonical(v::VARCHAR)"
        query, given = f"SELECT {made} AS v FROM given", pa.table({"v": values})
        return self._database.table(query, given=given)["v"].to_pylist()

    def first(self, feature: str) -> int:
        """Returns the first id of a feature that stands for a value."""
        return self._encoder.categories[feature][1].first

    def kept(self, rows: Any, names: Sequence[str]) -> pa.Table:
        """Returns columns of the rows that ``batches`` takes, of text files as their
        texts.

        Raises:
          DataError: if there is no such column.
        """
        rows = _read_json_lines(rows)
        if not isinstance(rows, str | Path):
            table = _table(rows)
            check_columns(RowsInMemory(table.column_names, ()), names)
            return table.select(names)
        files = own_files.files_of_rows(Path(rows), self._columns, names, ())
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

    def _of_files(
        self, rows: str | Path, optional: Collection[str]
    ) -> Iterator[tuple[Path, int, pa.Table]]:
        """Yields samples: where they are, the first one's row, and their columns."""
        names, place = [column.name for column in self._read], sql.name(IN_FILE)
        for file in own_files.files_of_rows(Path(rows), self._columns, names, optional):
            read = reading.read(self._database, "given", file, self._read)
            query = self._samples(f"(SELECT rowid AS {place}, * FROM given)")
            for first in range(0, read.good, CHUNK_ROWS):
                chunk = f"{place} BETWEEN {first} AND {first + CHUNK_ROWS - 1}"
                ordered = f"{query} WHERE {chunk} ORDER BY {place}"
                yield file.path, first, self._database.table(ordered)

    def _of_table(
        self, rows: Any, optional: Collection[str]
    ) -> Iterator[tuple[str, int, pa.Table]]:
        """Yields the same of rows in memory, a chunk of them by one query."""
        table, names = _table(rows), [column.name for column in self._read]
        check_columns(RowsInMemory(table.column_names, optional), names)
        table = table.select([n for n in names if n in table.column_names])
        of_texts = [column.name for column in self._read if column.kind == "category"]
        table = _plain(table, of_texts)
        file = RowsInMemory(table.column_names, optional)
        numbered = table.rename_columns([f"c{i}" for i in range(table.num_columns)])
        numbered = numbered.append_column("number", pa.array(np.arange(len(table))))
        for first in range(0, max(1, len(table)), CHUNK_ROWS):
            with self._database.seeing(rows=numbered.slice(first, CHUNK_ROWS)):
                key = table.schema, optional
                if key not in self._queries:
                    types = reading.types_of(self._database, file, self._read)
                    given = reading.Selected.of(self._read, file, types)
                    place = sql.name(IN_FILE)
                    source = (
                        f"(SELECT number AS {place}, {given.values}, {given.good} AS "
                        f"{sql.name(GOOD)} FROM {given.source('rows')})"
                    )
                    in_order = f" ORDER BY {place}" if self._past else ""  # of a join
                    self._queries[key] = given, self._samples(source, GOOD) + in_order
                given, query = self._queries[key]
                samples = self._database.table(query)
                if not samples[GOOD].to_numpy().all():
                    told = reading.bad_rows(self._database, file, file.path, given, 1)
                    raise DataError(told[0])
            yield "rows", first, samples

    def _samples(self, source: str, *others: str) -> str:
        """Returns a query of samples, from their typed values."""
        made = {n: own_files.cross_of(of) for n, of in self._columns.cross.items()}
        if self._columns.targets:
            made[LABEL] = own_files.label_of(self._columns)
        crossed = ", ".join(f"{value} AS {sql.name(n)}" for n, value in made.items())
        source = f"(SELECT *, {crossed} FROM {source})" if made else source
        if self._past:
            user = sql.name(USER)
            lists = ", ".join(
                f"coalesce({n}, []) AS {n}" for n in map(sql.name, self._past)
            )
            source = (
                f"(SELECT given.*, {lists} FROM {source} AS given LEFT JOIN histories "
                f"ON given.{user}::VARCHAR = histories.{user})"
            )
        types = self._database.types(f"FROM {source}")
        columns = [*self._encoder.columns(types), *map(sql.name, others)]
        return f"SELECT {', '.join(columns)} FROM {source}"

    def _lookup(self, name: str, values: pa.Array, *_: np.ndarray) -> np.ndarray:
        """See ``Lookup``: a dictionary finds few values sooner than a query does."""
        ids = self._ids[self._manifest.features[name].table]
        unique = values.dictionary_encode("encode")
        found = [ids.get(value, RARE_ID) for value in unique.dictionary.to_pylist()]
        return np.array(found, np.int64)[unique.indices.to_numpy()]


def _ids_of_values(values: TableValues, table: str) -> dict[Any, int]:
    """Returns the ids of the values of a table, None being a missing one."""
    keys, wants_text = values.keys(table), values.manifest.tables[table].is_text
    if len(keys) and is_text(keys.type) != wants_text:
        raise DataError(
            f"{values.folder / vocabulary_file(table)}: column 'key' has {keys.type}, "
            f"must have {'text' if wants_text else 'integers'}, as the features of "
            f"table {table!r}"
        )
    ids = dict(zip(keys.to_pylist(), itertools.count(FIRST_ID)))
    return {None: MISSING_ID} | ids


def _warn_of_unknown(values: Counter[str], unknown: Counter[str]) -> None:
    """Warns of columns most of whose values training did not have, or too rarely."""
    for name, count in values.items():
        if count >= FEWEST_WARNED and unknown[name] > count / 2:
            warnings.warn(
                f"column {name}: training did not know {unknown[name]:,} of {count:,} "
                "values, which share one row of the table; look whether the column "
                "is written as in training",
                stacklevel=4,
            )


def _read_json_lines(rows: Any) -> Any:
    """Returns the rows of a file of JSON lines, and all else as it is."""
    if not isinstance(rows, str | Path) or Path(rows).suffix != JSON_LINES:
        return rows
    found = []
    with Path(rows).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise DataError(f"{rows}, line {number}: {error}") from None
            if not isinstance(found[-1], dict):
                raise DataError(f"{rows}, line {number}: must be an object of columns")
    return found


def _table(rows: Any) -> pa.Table:
    """Makes a table of columns, of rows by column, or of a data frame."""
    try:
        if isinstance(rows, Sequence):
            names = dict.fromkeys(name for row in rows for name in row)
            rows = {name: [row.get(name) for row in rows] for name in names}
        if isinstance(rows, Mapping):
            rows = {name: _column(name, values) for name, values in rows.items()}
        return pa.table(rows)
    except DataError:  # which is a ValueError, and says more
        raise
    except (
        pa.ArrowException,
        AttributeError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise DataError(f"rows: are no table ({error})") from None


def _plain(table: pa.Table, categories: Collection[str]) -> pa.Table:
    """Returns a table without dictionaries, whose values are not those of the next one,
    without 16-bit floats, which queries lack, and what its maker says of it."""
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_dictionary(field.type):
            kind = field.type.value_type
            if pa.types.is_string_view(kind):  # as polars has them; they have no take
                kind = pa.large_string()
            parts = [x.dictionary.cast(kind).take(x.indices) for x in column.chunks]
            column = pa.chunked_array(parts, kind)
        if pa.types.is_float16(field.type):
            if field.name in categories:
                raise DataError(
                    f"rows: column {field.name}: type is float16, must be integers or "
                    "text"
                )
            column = column.cast(pa.float32())
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataError(f"rows: column {field.name}: {error}") from None
        columns[field.name] = column
    return pa.table(columns)


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
