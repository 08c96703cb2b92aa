"""Strange lines: each becomes what is said here, or is named, with its column."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embark_jax.data import DataError
from embark_jax.data import manifest as manifests
from embark_jax.data.prepare import own_files, sql
from embark_jax.data.prepare.columns import Columns
from embark_jax.data.prepare.raw_files import Chunk, TextFile, _lines
from embark_jax.data.prepare.samples import typed_samples
from embark_jax.data.prepare.values import Column, define
from tests.data.prepare.raw_files import prepared
from tests.runs import done, embark

COLUMNS = (
    Column("label", "integer", required=True, bounds=(0, 1)),
    Column("count", "integer"),
    Column("key", "hex"),
    Column("price", "number"),
    Column("name", "category"),
)
NAMES = tuple(column.name for column in COLUMNS)
GOOD = (1, -7, 0xDEADBEEF, 2.5, "Gödel")
GOOD_LINE = "1\t-7\tdeadbeef\t2.5\tGödel\n".encode()
BAD_HEX = "column key: value is '{}', must be 8 hexadecimal digits"

STRANGE = [
    # A line, and what it becomes: the values, or what is wrong with it.
    (b"1\t7\tDEADBEEF\t1\tx\n", (1, 7, 0xDEADBEEF, 1.0, "x")),
    (b"1\t7\tdeadbeef\t1\tx\r\n", (1, 7, 0xDEADBEEF, 1.0, "x")),
    (b"1\t7\tdeadbeef\t1\tx", (1, 7, 0xDEADBEEF, 1.0, "x")),
    (b"0\t\t\t\t\n", (0, None, None, None, None)),
    (b"1\t007\t00000000\t1e3\t007\n", (1, 7, 0, 1000.0, "7")),
    (b"1\t-0\t00000000\t.5\t-0\n", (1, 0, 0, 0.5, "0")),
    (b"1\t1\t00000000\tNaN\tNaN\n", (1, 1, 0, None, None)),
    (b"1\t1\t00000000\tNULL\t N/A \n", (1, 1, 0, None, None)),
    (b"1\t1\t00000000\t 2.5 \t+7.00\n", (1, 1, 0, 2.5, "7")),
    (b"1\t1\t00000000\t-3\tTRUE\n", (1, 1, 0, -3.0, "true")),
    (b'1\t1\t00000000\t1\t"a\n', (1, 1, 0, 1.0, '"a')),
    (b"1\t1\t00000000\t1\ta\0b\n", (1, 1, 0, 1.0, "a\0b")),
    (
        b"1\t9223372036854775807\t\t\t18446744073709551616\n",
        (1, 2**63 - 1, None, None, "18446744073709551616"),
    ),
    (b"\n", "has 1 columns, must have 5"),
    (b"\r\n", "has 1 columns, must have 5"),
    (b"1\t7\tdeadbeef\t1\n", "has 4 columns, must have 5: '1\\t7\\tdeadbeef\\t1'"),
    (b"1\t7\tdeadbeef\t1\ta\tb\n", "has 6 columns, must have 5"),
    (b"\t7\tdeadbeef\t1\ta\n", "column label: is empty, must have a value"),
    (b"2\t7\tdeadbeef\t1\ta\n", "column label: value is '2', must be from 0 to 1"),
    (b"1\t5.7\tdeadbeef\t1\ta\n", "column count: value is '5.7', must be an integer"),
    (b"1\t1e3\tdeadbeef\t1\ta\n", "column count: value is '1e3', must be an integer"),
    (b"1\t1_000\t\t1\ta\n", "column count: value is '1_000', must be an integer"),
    (b"1\t 7\tdeadbeef\t1\ta\n", "column count: value is ' 7', must be an integer"),
    (b"1\t+7\tdeadbeef\t1\ta\n", "column count: value is '+7', must be an integer"),
    (b"1\t0x1f\tdeadbeef\t1\ta\n", "column count: value is '0x1f', must be an int"),
    (b"1\t9223372036854775808\t\t1\ta\n", "column count: value is '9223372036854775"),
    (b"1\t7\tdeadbee\t1\ta\n", BAD_HEX.format("deadbee")),
    (b"1\t7\tdeadbeeg\t1\ta\n", BAD_HEX.format("deadbeeg")),
    (b"1\t7\t+1234567\t1\ta\n", BAD_HEX.format("+1234567")),
    (b"1\t7\t0000_00f\t1\ta\n", BAD_HEX.format("0000_00f")),
    (b"1\t7\t\t1_0\ta\n", "column price: value is '1_0', must be a number, fin"),
    (b"1\t7\t\tinf\ta\n", "column price: value is 'inf', must be a number, fin"),
    (b"1\t7\t\t1e39\ta\n", "column price: value is '1e39', must be a number, fin"),
    (b"1\t7\t\tcheap\ta\n", "column price: value is 'cheap', must be a number, fin"),
    (b"1\t7\tdeadbeef\t1\t\xff\n", "is no UTF-8 text"),
    (b"1\t7\tdeadbeef\t1\ta\rb\n", "a carriage return is inside this line"),
]


def read(text: bytes, file: TextFile, columns=COLUMNS) -> tuple[list[tuple], list[str]]:
    """Values of the good lines, and what is wrong with the bad ones."""
    names = ", ".join(sql.name(column.name) for column in columns)
    query = f'SELECT {names}, "number of the row" FROM raw'
    with contextlib.closing(sql.Database(threads=2)) as database:
        define(database)
        chunk = Chunk(sql.pa.table({"line": _lines(text)}), 11, 0)
        table, bad = typed_samples(database, file, chunk, columns, query, 99)
    rows = [tuple(row.values())[: len(columns)] for row in table.to_pylist()]
    return rows, bad


def test_strange_lines_between_good_ones():
    text = b"".join(GOOD_LINE + line.removesuffix(b"\n") + b"\n" for line, _ in STRANGE)
    text += STRANGE[2][0]  # the last line has no newline
    cases = [each for _, each in STRANGE]
    rows, bad = read(text, TextFile(Path("some.txt"), NAMES))
    assert [row for row in rows if row != GOOD] == [
        *(each for each in cases if isinstance(each, tuple)),
        STRANGE[2][1],
    ]
    told = dict(line.split(": ", 1) for line in bad)
    assert told.keys() == {
        f"some.txt, line {11 + 2 * place + 1}"
        for place, each in enumerate(cases)
        if isinstance(each, str)
    }
    for place, each in enumerate(cases):
        if isinstance(each, str):
            assert told[f"some.txt, line {11 + 2 * place + 1}"].startswith(each)


def quoted_reference(line: bytes) -> list[str] | None:
    """The values of a line with quotes, one character at a time; None if a quote stays
    open, if text follows one that closes, or if a carriage return is elsewhere than at
    the end."""
    text, values, quoted = line.decode().removesuffix("\n"), [""], False
    text = text.removesuffix("\r")
    characters = iter(enumerate(text))
    start = 0
    for place, each in characters:
        if quoted:
            if each != '"':
                values[-1] += each
            elif text[place + 1 : place + 2] == '"':
                values[-1] += '"'
                next(characters)
            elif text[place + 1 : place + 2] in ("", ","):
                quoted = False
            else:
                return None
        elif each == '"' and place == start:
            quoted = True
        elif each == ",":
            values.append("")
            start = place + 1
        else:
            values[-1] += each
    return None if quoted or "\r" in text else values


@given(st.lists(st.text('",a\r', max_size=7).map(str.encode), max_size=12))
@settings(max_examples=30)
@example([b'""",', b',""a""'])
def test_a_value_ends_on_its_line(lines):
    """A quote that is left open takes no other line with it."""
    lines = [line + b"\n" for line in lines]
    columns = (Column("a", "as it is", required=True), Column("b", "as it is"))
    expected = [quoted_reference(line) for line in lines]
    file = TextFile(Path("some.txt"), ("a", "b"), ",", quotes=True)
    rows, bad = read(b"".join(lines), file, columns)
    assert rows == [tuple(row) for row in expected if row and len(row) == 2]
    assert len(rows) + len(bad) == len(lines)


def test_an_open_quote_is_told(tmp_path):
    path = tmp_path / "a.csv"
    names = [f'"shop {i}"' for i in range(302)]
    names[100], names[201] = '"shop 100', '"shop 201'
    rows = [f"{i % 2},{name}\n" for i, name in enumerate(names)]
    path.write_text("".join(["label,name\n", *rows]))
    command = ("data", "prepare", "csv", "--raw", path, "--out", tmp_path / "out")
    refused = embark(*command)
    assert refused.code == 1
    assert "a.csv, line 102: a quote is not closed on this line" in refused.err
    skipped = done(*command[:-1], tmp_path / "skipped", "--on-bad-line", "skip")
    assert (
        "of 302 lines or rows of the raw files 300 are samples, 2 are left out"
    ) in skipped.out
    manifest = manifests.load(tmp_path / "skipped")
    assert (manifest.raw_rows, manifest.skipped_lines) == (302, 2)
    assert sum(map(manifest.rows, manifest.files)) == 300


def test_names_in_quotes_may_hold_separators(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('label,"size, in cm"\r\n' + "1,7\r\n0,8\r\n" * 10)
    recipe = own_files.csv(path, Columns())
    assert [feature.name for feature in recipe.features] == ["size, in cm"]
    assert len(prepared(recipe, tmp_path / "out", "random").table_rows) == 1
    path.write_text('label,"size\n1,7\n')
    with pytest.raises(DataError, match=r"line 1: is 'label,\"size' \(unexpected end"):
        own_files.csv(path, Columns())
