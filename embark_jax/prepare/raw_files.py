"""Raw files as users have them, as sources of queries: text, and Parquet."""

from __future__ import annotations

import abc
import codecs
import contextlib
import csv
import dataclasses
import functools
import gzip
import re
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax._base.errors import DataError
from embark_jax.data.columns import check_there
from embark_jax.data.vocabulary import is_text
from embark_jax.prepare import sql

ATOMIC_FILES = (".inter", ".user", ".item")
"""Files of RecBole's form: names such as ``age:float``, between tabs
(https://recbole.io/docs/user_guide/data/atomic_files.html)."""
NO_COLUMN = "NULL::VARCHAR"
"""SQL of the values of a column that a file lacks."""
MOST_SHOWN = 80
"""Most characters of a line that a message quotes."""
_LONGEST_LINE = 2_000_000
"""Bytes of the longest line of text."""


@dataclasses.dataclass(frozen=True)
class RawFile(abc.ABC):
    """A file as users download it.

    Attributes:
      path: its path.
      columns: the names of its columns; of Parquet those that are used.
      partition: values of columns that the names of its folders give.
      optional: columns that it may lack: their values are missing then.
      unit: what is numbered in messages: "line" or "row".
    """

    path: Path
    columns: tuple[str, ...]
    partition: Mapping[str, str | None] = dataclasses.field(
        default_factory=dict, kw_only=True
    )
    optional: Collection[str] = dataclasses.field(default=(), kw_only=True)
    unit: ClassVar[str] = "row"

    @abc.abstractmethod
    def source(self, path: Path, options: str = "") -> str:
        """Returns SQL that reads the file, or its plain copy in ``path``; ``options``
        are further ones of DuckDB's reader of text."""

    def column(self, name: str) -> str:
        """Returns SQL of a column of that source."""
        if name in self.names:
            return f"c{self.names.index(name)}"
        if name not in self.partition and name not in self.optional:
            raise KeyError(name)
        value = self.partition.get(name)
        return NO_COLUMN if value is None else f"{sql.text(value)}::VARCHAR"

    @property
    def names(self) -> Sequence[str]:
        """Returns the names of all of its columns, in their order."""
        return self.columns


@dataclasses.dataclass(frozen=True)
class TextFile(RawFile):
    """A file of lines with values between separators, plain or gzip, UTF-8.

    Its lines must have all columns, and line ends of one kind. Empty lines do not
    count.

    Attributes:
      separator: separator of the columns: one byte, such as a tab.
      header: whether the first line has the names of the columns.
      quotes: whether a value may be in double quotes, also over several lines.
    """

    separator: str = "\t"
    header: bool = False
    quotes: bool = False
    unit = "line"

    def source(self, path: Path, options: str = "") -> str:
        # Those of DuckDB differ in more than capital letters.
        types = ", ".join(f"c{i}: 'VARCHAR'" for i in range(len(self.columns)))
        quote = sql.text('"' if self.quotes else "")
        return (
            f"read_csv({_path(path)}, columns = {{{types}}}, auto_detect = false, "
            f"delim = {sql.text(self.separator)}, quote = {quote}, escape = {quote}, "
            f"header = {self.header}, strict_mode = true, null_padding = false, "
            f"max_line_size = {_LONGEST_LINE}, hive_partitioning = false, "
            f"compression = 'none'{options})"
        )

    def check_header(self) -> None:
        """Raises ``DataError`` unless the first line names the columns."""
        names = header_names(self.path, self.separator) if self.header else None
        if names not in (None, list(self.columns)):
            raise DataError(
                f"{self.path}, line 1: header is {names!s:.{MOST_SHOWN}}, must be "
                f"{list(self.columns)}"
            )


@dataclasses.dataclass(frozen=True)
class ParquetFile(RawFile):
    """A Parquet file.

    Raises:
      DataError: if it lacks a column, or has it twice.
    """

    def __post_init__(self):
        check_columns(self, self.columns)

    @functools.cached_property
    def names(self) -> Sequence[str]:
        return parquet_names(self.path)

    def source(self, path: Path, options: str = "") -> str:
        columns = ", ".join(f"c{i}" for i in range(len(self.names)))
        return (  # without can_have_nan, isnan is false wherever a file says a maximum
            f"read_parquet({_path(path)}, hive_partitioning = false, can_have_nan = "
            f"true, file_row_number = true) AS file({columns}, number)"
        )


class RowsInMemory(RawFile):
    """Rows that queries see as ``rows``, whose columns are c0, c1, and so on, and
    number."""

    def __init__(self, columns: Sequence[str], optional: Collection[str]):
        super().__init__(Path("rows"), tuple(columns), optional=optional)

    def source(self, path: Path, options: str = "") -> str:
        return "rows"


def check_columns(file: RawFile, wanted: Sequence[str]) -> None:
    """Raises ``DataError`` if a file lacks a wanted column that it needs, or has it
    twice. Some engines write into files what the names of folders say, too."""
    there = {*file.names, *file.partition}
    folders = [name for name in file.partition if name not in file.names]
    needed = [name for name in wanted if name in there or name not in file.optional]
    check_there(needed, [*file.names, *folders], str(file.path))


@contextlib.contextmanager
def plain(file: RawFile, folder: Path) -> Iterator[Path]:
    """Gives the path of the file, or of its text if it is compressed: a copy in a
    folder, whose checksum was compared, which DuckDB does not.

    Raises:
      DataError: if its compressed data are cut or damaged.
    """
    with file.path.open("rb") as disk:
        is_compressed = file.unit == "line" and disk.read(2) == b"\x1f\x8b"
    if not is_compressed:  # the name does not always tell
        yield file.path
        return
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "lines.txt"
    try:
        try:
            with gzip.open(file.path) as text, copy.open("wb") as target:
                shutil.copyfileobj(text, target, 2**20)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{file.path}: the compressed data are cut or damaged ({error}); get a "
                "new copy of the file"
            ) from None
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def header_names(path: Path, separator: str) -> list[str]:
    """Returns the names of columns in the first line of a text file, which may be in
    quotes.

    Raises:
      DataError: if the line is empty or no UTF-8 text, or a quote is not closed.
    """
    line = _first_line(path)
    if not line.strip():
        raise DataError(f"{path}, line 1: is empty, must name the columns")
    try:
        text = line.decode().rstrip("\r\n")
        (names,) = csv.reader([text], delimiter=separator, strict=True)
    except (csv.Error, ValueError) as error:
        raise DataError(
            f"{path}, line 1: is {shown(line)} ({error}); must name the columns, in "
            f"UTF-8, between {separator!r}"
        ) from None
    if path.suffix in ATOMIC_FILES:
        names = [name.rpartition(":")[0] or name for name in names]
    return [name.strip() for name in names]


def separator_of(path: Path, separator: str | None = None) -> str:
    """Returns the separator between the columns of a file; None takes the usual one."""
    is_tab = ".tsv" in path.name or path.suffix in ATOMIC_FILES
    return separator or ("\t" if is_tab else ",")


def _first_line(path: Path) -> bytes:
    """Returns the first line of a text file, plain or gzip."""
    try:
        with path.open("rb") as disk:
            is_compressed = disk.read(2) == b"\x1f\x8b"
            disk.seek(0)
            file = (
                cast(BinaryIO, gzip.GzipFile(fileobj=disk)) if is_compressed else disk
            )
            line = file.readline(_LONGEST_LINE)
    except (OSError, EOFError, zlib.error) as error:
        problem = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: {problem}") from None
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}, line 1: is UTF-16 text, must be UTF-8: convert it")
    return line.removeprefix(codecs.BOM_UTF8)


def parquet_names(path: Path) -> list[str]:
    """Returns the names of a file's columns.

    Raises:
      DataError: if it cannot be read.
    """
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: {error}") from None


def texts_of(path: Path) -> list[str]:
    """Returns the names of a file's columns of text, single or in lists."""
    return [field.name for field in pq.read_schema(path) if is_text(field.type)]


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


def _path(path: Path) -> str:
    """Returns a path in SQL, where some characters would stand for several files, and
    ~ at the beginning for the user's folder."""
    return sql.text(re.sub(r"[*?\[]", r"[\g<0>]", str(path.absolute())))
