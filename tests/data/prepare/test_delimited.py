"""Lines of text: good ones become columns, bad ones are named; never anything else."""

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embark_jax.data import DataError
from embark_jax.data import manifest as manifests
from embark_jax.data.prepare import own_files
from embark_jax.data.prepare.chunks import TextChunk
from embark_jax.data.prepare.columns import Columns
from embark_jax.data.prepare.delimited import Column, Layout, parse
from tests.data.prepare.raw_files import prepared
from tests.runs import done, embark

LAYOUT = Layout(
    (
        Column("label", "integer", required=True, bounds=(0, 1)),
        Column("count", "integer"),
        Column("category", "hex"),
        Column("name"),
    )
)
GOOD = b"1\t-7\tdeadbeef\tG\xc3\xb6del\n"


def chunk_of(text: bytes) -> TextChunk:
    return TextChunk(Path("some.txt"), text, first_line=11)


def reference(line: bytes) -> tuple | None:
    """What a line says by the rules; None if it breaks one. One value at a time."""
    values = line.rstrip(b"\r\n").split(b"\t")
    if len(values) != 4:
        return None
    try:
        label, count, category, name = values
        if label not in (b"0", b"1"):
            return None
        if count and not re.fullmatch(rb"-?[0-9]{1,18}", count):
            return None
        if category and not re.fullmatch(rb"[0-9a-fA-F]{8}", category):
            return None
        return (
            int(label),
            int(count) if count else None,
            int(category, 16) if category else None,
            name.decode() or None,
        )
    except UnicodeDecodeError:
        return None


good_lines = st.builds(
    lambda label, count, category, name: (
        b"\t".join([b"%d" % label, count, category, name.encode()]) + b"\n"
    ),
    st.integers(0, 1),
    st.integers(-(10**9), 10**9).map(b"%d".__mod__) | st.just(b""),
    st.integers(0, 2**32 - 1).map(lambda n: b"%08x" % n) | st.just(b""),
    st.text(st.characters(exclude_characters="\t\r\n\0", codec="utf-8"), max_size=5),
)


@st.composite
def damaged_lines(draw) -> bytes:
    """A good line with some bytes replaced, removed or put in; still one line."""
    line = bytearray(draw(good_lines)[:-1])
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(line)))
        damage = draw(st.sampled_from([b"", b"\t", b"x", b"\xff", b"9", b"\t\t", b"+"]))
        line[place : place + draw(st.integers(0, 2))] = damage
    return bytes(line) + b"\n"


@given(st.lists(good_lines | damaged_lines(), max_size=30), st.integers(0, 3))
def test_good_lines_are_read_and_bad_ones_named(lines, cut):
    text = b"".join(lines)
    text = text[: len(text) - cut]
    lines = re.findall(rb"[^\n]*\n|[^\n]+$", text)
    expected = [reference(line) for line in lines]
    parsed = parse(chunk_of(text), LAYOUT, "skip")
    found = [tuple(row.values()) for row in parsed.table.to_pylist()]
    assert found == [row for row in expected if row is not None]
    bad = [line for line, row in enumerate(expected, 11) if row is None]
    assert list(parsed.bad) == bad
    if bad:
        with pytest.raises(DataError, match=rf"some\.txt, line {bad[0]}: "):
            parse(chunk_of(text), LAYOUT)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1\t7\tdeadbeef\n", "Expected 4 columns, got 3: 1\t7\tdeadbeef"),
        (b"1\t7\tdeadbeef\ta\tb\n", "Expected 4 columns, got 5"),
        (b"\n", "column label: is empty"),
        (b"\t7\tdeadbeef\ta\n", "column label: is empty"),
        (b"2\t7\tdeadbeef\ta\n", "column label: value is 2, must be from 0 to 1"),
        (
            b"1\t7.5\tdeadbeef\ta\n",
            "column count: CSV conversion error to int64: invalid value '7.5'",
        ),
        (
            b"1\t7\tdeadbee\ta\n",
            "category: value is 'deadbee', must be 8 hexadecimal digits",
        ),
        (b"1\t7\tdeadbeeg\ta\n", "category: value is 'deadbeeg', must be 8 hexa"),
        (b"1\t7\t+1234567\ta\n", "category: value is '+1234567', must be 8 hexa"),
        (
            b"1\t7\tdeadbeef\t\xff\n",
            "column name: CSV conversion error to string: invalid UTF8",
        ),
    ],
)
def test_the_reason_is_told(line, reason):
    lines = [GOOD] * 6 + [line, GOOD]
    parsed = parse(chunk_of(b"".join(lines)), LAYOUT, "skip")
    ((number, problem),) = parsed.bad.items()
    assert number == 17
    assert reason in problem
    assert len(parsed.table) == len(lines) - 1


def test_numbers_are_finite():
    layout = Layout((Column("a", "number", required=True), Column("b", "number")))
    text = b"1\t2.5\n2\tnan\ninf\t\n-3e2\t\n"
    parsed = parse(chunk_of(text), layout, "skip")
    assert parsed.table.to_pydict() == {"a": [1, -300], "b": [2.5, None]}
    assert list(parsed.bad) == [12, 13]


def test_values_in_quotes(tmp_path):
    rows = [["1", 'a "b", c'], ["0", "é"]]
    path = tmp_path / "quoted.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    columns = (Column("label", "integer", required=True), Column("name"))
    layout = Layout(columns, ",", quotes=True)
    table = parse(chunk_of(path.read_bytes()), layout).table
    assert table["name"].to_pylist() == ['a "b", c', "é"]


def quoted_reference(line: bytes) -> list[str] | None:
    """The values of a line with quotes, one character at a time; None if a quote stays
    open or a carriage return is elsewhere than at its end."""
    text, values, quoted = line.decode().removesuffix("\n"), [""], False
    characters = iter(enumerate(text))
    start = 0
    for place, each in characters:
        if quoted:
            if each != '"':
                values[-1] += each
            elif text[place + 1 : place + 2] == '"':
                values[-1] += '"'
                next(characters)
            else:
                quoted = False
        elif each == '"' and place == start:
            quoted = True
        elif each == ",":
            values.append("")
            start = place + 1
        elif each == "\r":
            if place < len(text) - 1:
                return None
        else:
            values[-1] += each
    return None if quoted else values


@given(st.lists(st.text('",a\r', max_size=7).map(str.encode), max_size=12))
def test_a_value_ends_on_its_line(lines):
    """A quote that is left open takes no other line with it, wherever text is cut."""
    lines = [line + b"\n" for line in lines]
    layout = Layout(
        (Column("a", required=True), Column("b")), ",", quotes=True, missing=("",)
    )
    expected = [quoted_reference(line) for line in lines]
    good = [row for row in expected if row and len(row) == 2 and row[0]]
    parsed = parse(chunk_of(b"".join(lines)), layout, "skip")
    found = [tuple(row.values()) for row in parsed.table.to_pylist()]
    assert found == [(a, b or None) for a, b in good]
    assert len(found) + len(parsed.bad) == len(lines)


def test_an_open_quote_is_told(tmp_path):
    path = tmp_path / "a.csv"
    names = [f'"shop {i}"' for i in range(302)]
    names[100], names[201] = '"shop 100', '"shop 201'
    rows = [f"{i % 2},{name}\n" for i, name in enumerate(names)]
    path.write_text("".join(["label,name\n", *rows]))
    command = ("data", "prepare", "csv", "--raw", path, "--out", tmp_path / "out")
    refused = embark(*command)
    assert refused.code == 1
    assert "a.csv, line 102: a quote is not closed on this line, '0,\"shop" in (
        refused.err
    )
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
