"""Raw files as users have them, in chunks of Arrow: lines of text, or columns."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from embark_jax.data.batch import DataError
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.columns import check_there

CHUNK_BYTES = 64 * 2**20
"""Bytes of text in a chunk."""
_BATCH_ROWS = 20_480
"""Rows that a thread works on at once."""
MOST_SHOWN = 80
"""Most characters of a line that a message quotes."""


class Chunk(NamedTuple):
    """Some rows of a file.

    Attributes:
      rows: the rows; of text, one column of lines.
      first: number of the first line in the file, from 1, or of the row, from 0.
      progress: bytes of the file on disk up to the end of the chunk.
    """

    rows: pa.Table
    first: int
    progress: int


class RawFile(Protocol):
    """A file as users download it."""

    @property
    def path(self) -> Path: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        ...

    @property
    def unit(self) -> str:
        """What is numbered in messages: "line" or "row"."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """Yields the chunks in order."""
        ...

    def source(self) -> str:
        """Returns SQL that reads ``chunk``, a chunk with ``number``, the number of each
        row in the file, and adds ``problem``, what is wrong with a line, if anything
        is."""
        ...

    def column(self, name: str) -> str:
        """Returns SQL of a column of that source."""
        ...


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of lines with values between separators, plain or gzip, UTF-8.

    Attributes:
      path: its path.
      columns: names of the columns.
      separator: separator of the columns: one byte, such as a tab.
      header: whether the first line has the names of the columns.
      quotes: whether a value may be in double quotes.
    """

    path: Path
    columns: tuple[str, ...]
    separator: str = "\t"
    header: bool = False
    quotes: bool = False
    unit: str = "line"

    def chunks(self) -> Iterator[Chunk]:
        number = 1
        for lines, progress in _texts(self.path, CHUNK_BYTES):
            if number == 1 and self.header:
                header, _, lines = lines.partition(b"\n")
                number = 2
                names = header_names(self.path, header, self.separator)
                if names != list(self.columns):
                    raise DataError(
                        f"{self.path}, line 1: header is {names!s:.{MOST_SHOWN}}, must "
                        f"be {list(self.columns)}"
                    )
            table = pa.table({"line": _lines(lines)})
            yield Chunk(table, number, progress)
            number += len(table)

    def source(self) -> str:
        separator, expected = sql.text(self.separator), len(self.columns)
        line, fields = "line", f"string_split(line, {separator})"
        if self.quotes:
            line = "rtrim(line, chr(13) || chr(10))"
            pattern = sql.text(re.escape(self.separator) + self._field())
            parts = f"regexp_extract_all({separator} || {line}, {pattern}, 1)"
            whole = f"strlen(array_to_string({parts}, {separator})) = strlen({line})"
            plain = "replace(x[2:-2], '\"\"', '\"')"
            plain = f"CASE WHEN starts_with(x, '\"') THEN {plain} ELSE x END"
            parts = f"list_transform({parts}, lambda x: {plain})"
            fields = (
                f"CASE WHEN NOT contains(line, '\"') THEN {fields} "
                f"WHEN {whole} THEN {parts} END"
            )
        problem = (
            "CASE WHEN line IS NULL THEN 'is no UTF-8 text' "
            "WHEN fields IS NULL THEN 'a quote is not closed on this line, or text "
            "follows one; files with line breaks in values can be read as Parquet' "
            f"WHEN len(fields) <> {expected} THEN 'has ' || len(fields) || ' columns, "
            f"must have {expected}' "
            f"WHEN strpos(line, chr(13)) NOT IN (0, strlen(line) - 1, strlen(line)) "
            "THEN 'a carriage return is inside this line' END"
        )
        return (
            f"(SELECT *, {problem} AS problem FROM (SELECT number, line, {fields} AS "
            "fields FROM chunk))"
        )

    def _field(self) -> str:
        """Returns the pattern of a value: in quotes, which are doubled inside, or
        without."""
        other = f"[^{re.escape(self.separator)}]"
        first = f'[^"{re.escape(self.separator)}]'
        return f'("(?:[^"]|"")*"|{first}{other}*|)'

    def column(self, name: str) -> str:
        place = self.columns.index(name) + 1
        field = f"fields[{place}]"
        is_last = place == len(self.columns)
        return f"rtrim({field}, chr(13) || chr(10))" if is_last else field


class Columns:
    """A source whose rows have columns, under the names that ``by_position`` gives."""

    columns: tuple[str, ...]

    def source(self) -> str:
        return "(SELECT *, NULL::VARCHAR AS problem FROM chunk)"

    def column(self, name: str) -> str:
        return f"c{self.columns.index(name)}"


@dataclasses.dataclass(frozen=True)
class ParquetFile(Columns):
    """A Parquet file; each row group is a chunk. ``partition`` has the values of
    columns that the names of its folders give."""

    path: Path
    columns: tuple[str, ...]
    partition: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unit: str = "row"

    def chunks(self) -> Iterator[Chunk]:
        first, size = 0, self.path.stat().st_size
        try:
            file = pq.ParquetFile(self.path)
            there = file.schema_arrow.names  # some engines write what folders say, too
            folders = [name for name in self.partition if name not in there]
            check_there(self.columns, [*there, *folders], str(self.path))
            wanted = [n for n in self.columns if n in there]
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, wanted)
                for name in set(folders) & set(self.columns):
                    value = pa.scalar(self.partition[name], pa.string())
                    table = table.append_column(name, pa.repeat(value, len(table)))
                table = by_position(table.select(list(self.columns)), self.path)
                yield Chunk(table, first, size * (group + 1) // file.num_row_groups)
                first += len(table)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{self.path}: {error}") from None


def by_position(table: pa.Table, path: Path) -> pa.Table:
    """Returns the columns of a file under the names c0, c1 and so on: those of DuckDB
    differ in more than capital letters.

    Raises:
      DataError: if texts are no UTF-8, which DuckDB takes for granted.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:  # such as half of a surrogate pair
            raise DataError(
                f"{path}: column {name}: is no UTF-8 text ({error})"
            ) from None
    return table.rename_columns([f"c{i}" for i in range(table.num_columns)])


def numbered(chunk: Chunk) -> pa.Table:
    """Returns the rows of a chunk with their numbers, for queries."""
    numbers = pa.array(np.arange(chunk.first, chunk.first + len(chunk.rows)))
    table = chunk.rows.append_column("number", numbers).combine_chunks()
    return pa.Table.from_batches(
        table.to_batches(max_chunksize=_BATCH_ROWS), table.schema
    )


def header_names(path: Path, line: bytes, separator: str) -> list[str]:
    """Returns the names of columns in the first line of a file, which may be in quotes.

    Raises:
      DataError: if the line is empty or no UTF-8 text, or a quote is not closed.
    """
    try:
        text = line.decode().rstrip("\r\n")
        (names,) = csv.reader([text], delimiter=separator, strict=True)
    except (csv.Error, ValueError) as error:
        raise DataError(
            f"{path}, line 1: is {shown(line)} ({error}); must name the columns, in "
            f"UTF-8, between {separator!r}"
        ) from None
    return [name.strip() for name in names]


def first_line(path: Path) -> bytes:
    """Returns the first line of a text file."""
    return next((text for text, _ in _texts(path, 1)), b"")


def shown(text: bytes) -> str:
    """Returns text of a file for a message: escaped, and cut to MOST_SHOWN
    characters."""
    whole = text.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    cut = whole if len(whole) <= MOST_SHOWN else f"{whole[: MOST_SHOWN - 3]}..."
    escaped = (
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in cut
    )
    return f"'{''.join(escaped)}'"


def _texts(path: Path, size: int) -> Iterator[tuple[bytes, int]]:
    """Yields whole lines of a file, about ``size`` bytes, and the bytes on disk up to
    there.

    Raises:
      DataError: if the file cannot be read or is UTF-16 text, or its compressed data
        are cut or damaged.
    """
    lines = 0
    try:
        with path.open("rb") as disk:
            compressed = disk.read(2) == b"\x1f\x8b"  # the name does not always tell
            disk.seek(0)
            file = cast(BinaryIO, gzip.GzipFile(fileobj=disk)) if compressed else disk
            start = file.read(3)
            if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise DataError(
                    f"{path}, line 1: is UTF-16 text, must be UTF-8: convert it"
                )
            file.seek(3 if start == codecs.BOM_UTF8 else 0)
            while text := file.read(size):
                if not text.endswith(b"\n"):
                    text += (rest := file.readline(CHUNK_BYTES))
                    if len(rest) == CHUNK_BYTES and not rest.endswith(b"\n"):
                        raise DataError(
                            f"{path}: has a line of more than {CHUNK_BYTES:,} bytes "
                            f"behind line {lines}; must be text with a sample on each"
                        )
                yield text, disk.tell()
                lines += text.count(b"\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}, after line {lines}: the compressed data are cut or damaged "
            f"({error}); get a new copy of the file"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _lines(text: bytes) -> pa.Array:
    """Returns the lines, each with its newline; null for one that is no UTF-8."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    if text and not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    offsets = pa.py_buffer(np.append(0, ends).astype(np.int32))
    buffers = [None, offsets, pa.py_buffer(text)]
    lines = pa.Array.from_buffers(pa.string(), len(ends), buffers)
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array(
            [_decoded(line) for line in lines.cast(pa.binary()).to_pylist()]
        )
    return lines


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


class PartitionedFiles(NamedTuple):
    """The Parquet files of a folder that an engine such as Spark wrote, in the order of
    their paths: in folders that give columns, such as ``day=2024-05-01``.

    Attributes:
      paths: the files.
      partitions: for each the values, as texts, that the names of its folders give to
        columns.
      names: names of the columns of the first file, and of those.
    """

    paths: list[Path]
    partitions: list[dict[str, Any]]
    names: list[str]

    @classmethod
    def find(cls, folder: Path) -> PartitionedFiles:
        """Finds the Parquet files in a folder and in those below it, but for what is
        hidden, or begins with _, as engines name their notes.

        Raises:
          DataError: if the first file cannot be read.
        """
        paths, partitions = [], []
        names: list[str] = []
        for path in sorted(folder.rglob("*.parquet")):
            folders = path.relative_to(folder).parts[:-1]
            if not any(name.startswith((".", "_")) for name in (*folders, path.name)):
                paths.append(path)
                partitions.append(_partition_of(folders))
        if paths:
            names = parquet_names(paths[0])
            names += [name for name in partitions[0] if name not in names]
        return cls(paths, partitions, names)


def _partition_of(folders: Sequence[str]) -> dict[str, Any]:
    """Returns the values that folders such as ``day=2024-05-01`` give to columns."""
    columns = [
        name for name, equals, _ in (f.partition("=") for f in folders) if equals
    ]
    schema = pa.schema([(name, pa.string()) for name in columns])
    expression = ds.HivePartitioning(schema).parse("/".join([*folders, ""]))
    return dict(ds.get_partition_keys(expression))


def parquet_names(path: Path) -> list[str]:
    """Returns the names of a file's columns.

    Raises:
      DataError: if it cannot be read.
    """
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: {error}") from None
