"""Parses delimited text into typed columns, and names lines that break a rule."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from embark_jax.data.batch import DataError
from embark_jax.data.prepare.chunks import TextChunk
from embark_jax.plans.options import OnBadLine

MOST_SHOWN = 80
"""Most characters of a line that a message quotes."""

_TYPES = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "hex": pa.binary(),
    "text": pa.string(),
}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a text file.

    Attributes:
      name: name of the column.
      kind: kind of its values; "hex" values become uint32.
      required: whether every line needs a value.
      bounds: smallest and largest number allowed.
    """

    name: str
    kind: Literal["integer", "number", "hex", "text"] = "text"
    required: bool = False
    bounds: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """The form of the lines of a text file.

    Attributes:
      columns: the columns in order; at least one is required, so that no empty line
        passes.
      separator: separator of the columns: one byte, such as a tab.
      header: names that the first line must hold; () means that there is no header.
      quotes: whether a value may be in double quotes.
      missing: texts that stand for a missing value.
    """

    columns: tuple[Column, ...]
    separator: str = "\t"
    header: tuple[str, ...] = ()
    quotes: bool = False
    missing: tuple[str, ...] = ("",)


def with_header(columns: Sequence[Column], separator: str, **options) -> Layout:
    """Returns a layout whose header has the names of its columns."""
    names = tuple(column.name for column in columns)
    return Layout(tuple(columns), separator, names, **options)


class Parsed(NamedTuple):
    """The good lines of a chunk as typed columns, and why others are bad, by number of
    the line."""

    table: pa.Table
    bad: dict[int, str]


def parse(chunk: TextChunk, layout: Layout, on_bad_line: OnBadLine = "error") -> Parsed:
    """Parses a chunk; the first one of a file has its header.

    Raises:
      DataError: naming the first bad line, unless ``on_bad_line`` is "skip"; or if the
        header is another.
    """
    text, line = chunk.text, chunk.first_line
    if line == 1 and layout.header:
        header, _, text = text.partition(b"\n")
        line = 2
        if problem := _header_problem(header, layout):
            raise DataError(f"{chunk.path}, line 1: {problem}")
    tables, bad = [_parse(b"", layout)], {}
    for number, outcome in _search(text, lambda lines: _parse(lines, layout), line):
        if isinstance(outcome, pa.Table):
            tables.append(outcome)
        elif on_bad_line == "error":
            raise DataError(f"{chunk.path}, line {number}: {outcome}")
        else:
            bad[number] = outcome
    return Parsed(pa.concat_tables(tables), bad)


def header_names(line: bytes, separator: str) -> list[str]:
    """Returns the names of columns in the first line of a file, which may be in quotes.

    Raises:
      DataError: if the line is no UTF-8 text, or a quote is not closed.
    """
    try:
        text = line.decode().rstrip("\r\n")
        (names,) = csv.reader([text], delimiter=separator, strict=True)
    except UnicodeDecodeError:
        raise DataError(
            f"is {shown(line)}, not UTF-8 text; must name the columns"
        ) from None
    except (csv.Error, ValueError) as error:
        raise DataError(
            f"is {shown(line)} ({error}); must name the columns, between "
            f"{separator!r}, on this line"
        ) from None
    return [name.strip() for name in names]


def _header_problem(line: bytes, layout: Layout) -> str | None:
    """Returns what is wrong with the first line of a file that has a header."""
    expected = list(layout.header)
    try:
        names = header_names(line, layout.separator)
    except DataError as error:
        return str(error)
    if names == expected:
        return None
    return f"header is {names!s:.{MOST_SHOWN}}, must be {expected}"


def _search(
    text: bytes, parse: Callable[[bytes], pa.Table], line: int
) -> Iterator[tuple[int, pa.Table | str]]:
    """Yields tables of good lines, and what is wrong with bad ones, in order, each with
    the number of its first line.

    Text that does not parse is halved until the bad lines stand alone. So good text is
    read at full speed, and one set of rules says what is good.
    """
    try:
        yield line, parse(text)
        return
    except (pa.ArrowInvalid, ValueError) as error:
        reason = str(error)
    middle = text.find(b"\n", len(text) // 2) + 1
    if middle in (0, len(text)):  # no line ends in the second half, but in the first?
        middle = text.rfind(b"\n", 0, len(text) // 2) + 1
    if middle == 0:
        yield line, reason
        return
    yield from _search(text[:middle], parse, line)
    yield from _search(text[middle:], parse, line + text.count(b"\n", 0, middle))


def _parse(text: bytes, layout: Layout) -> pa.Table:
    """Parses lines into typed columns.

    Raises:
      ValueError, pa.ArrowInvalid: if a line is bad; for a single line, with the full
        reason.
    """
    columns = layout.columns
    if not text:
        types = [pa.uint32() if c.kind == "hex" else _TYPES[c.kind] for c in columns]
        fields = zip([c.name for c in columns], types, strict=True)
        return pa.schema(list(fields)).empty_table()
    try:
        table = _read(text, layout)
    except pa.ArrowInvalid as error:

        def named(match: re.Match) -> str:
            return f"column {columns[int(match[1])].name}: "

        reason = re.sub(r"Row #\d+: ", "", str(error))  # of the lines that were tried
        raise ValueError(re.sub(r"In CSV column #(\d+): ", named, reason)) from None
    _check_lines(table, text)
    for index, column in enumerate(columns):
        values = table.column(index)
        if column.kind == "hex":
            try:
                values = _from_hex(values.combine_chunks())
            except ValueError as error:
                raise ValueError(f"column {column.name}: {error}") from None
            table = table.set_column(index, column.name, values)
        elif column.kind != "text":
            _check_numbers(values, column)
        if column.required and values.null_count:
            raise ValueError(f"column {column.name}: is empty")
    return table


def _read(text: bytes, layout: Layout) -> pa.Table:
    columns = layout.columns
    return pyarrow.csv.read_csv(
        pa.BufferReader(text),
        pyarrow.csv.ReadOptions(
            column_names=[column.name for column in columns],
            use_threads=False,
            block_size=len(text) + 1,  # as one block
        ),
        pyarrow.csv.ParseOptions(
            delimiter=layout.separator,
            quote_char='"' if layout.quotes else False,
            ignore_empty_lines=False,
        ),
        pyarrow.csv.ConvertOptions(
            column_types={column.name: _TYPES[column.kind] for column in columns},
            null_values=list(layout.missing),
            strings_can_be_null=True,
        ),
    )


def _check_lines(table: pa.Table, text: bytes) -> None:
    """Checks that each line became one row: a quote that is not closed makes the reader
    take the lines up to the next quote for one value, and a carriage return for the end
    of a line."""
    for column in table.columns:
        for values in column.chunks:
            if _is_bytes(values.type) and re.search(b"\n", values.buffers()[2] or b""):
                raise ValueError(
                    f"a quote is not closed on this line, {shown(text)}; files with "
                    "line breaks in values can be read as Parquet"
                )
    if len(table) != text.count(b"\n") + (not text.endswith(b"\n")):
        raise ValueError(f"a carriage return is inside this line, {shown(text)}")


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


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


def _check_numbers(values: pa.ChunkedArray, column: Column) -> None:
    numbers = values.drop_null().to_numpy()
    bad = ~np.isfinite(numbers)
    rule = "a finite number"
    if column.bounds is not None:
        low, high = column.bounds
        bad |= (numbers < low) | (numbers > high)
        rule = f"from {low:g} to {high:g}"
    if bad.any():
        raise ValueError(
            f"column {column.name}: value is {numbers[bad][0]}, must be {rule}"
        )


def _from_hex(values: pa.BinaryArray) -> pa.Array:
    """Returns values of 8 hexadecimal digits as uint32; missing ones stay missing."""
    present = values.drop_null()
    lengths = pc.call_function("binary_length", [present]).to_numpy()
    digits = bytes(present.buffers()[2] or b"")[: int(lengths.sum())]
    octets = b""
    with contextlib.suppress(ValueError):
        octets = bytes.fromhex(digits.decode("latin-1"))
    if (lengths != 8).any() or 2 * len(octets) != len(digits):  # blanks are left out
        value = shown(present[0].as_py())
        raise ValueError(f"value is {value}, must be 8 hexadecimal digits")
    missing = values.is_null().to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(values), np.uint32)
    numbers[~missing] = np.frombuffer(octets, ">u4")
    return pa.array(numbers, mask=missing)
