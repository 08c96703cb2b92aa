"""Strange lines: each becomes what is said here, or is named, with its column."""

import gzip

import pytest

from embark_jax.data import DataError
from embark_jax.plans.options import OnBadLine
from embark_jax.prepare import sql
from embark_jax.prepare.raw_files import TextFile
from embark_jax.prepare.reading import read
from embark_jax.prepare.values import Column, define
from tests.prepare.raw_files import prepared, write_table

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
    (b"0\t\t\t\t\n", (0, None, None, None, None)),
    (b"1\t007\t00000000\t1e3\t007\n", (1, 7, 0, 1000.0, "7")),
    (b"1\t-0\t00000000\t.5\t-0\n", (1, 0, 0, 0.5, "0")),
    (b'1\t1\t00000000\t1\t"a\n', (1, 1, 0, 1.0, '"a')),
    (b"1\t1\t00000000\t1\ta\0b\n", (1, 1, 0, 1.0, "a\0b")),
    (
        b"1\t9223372036854775807\t\t\t18446744073709551616\n",
        (1, 2**63 - 1, None, None, "18446744073709551616"),
    ),
    (b"1\t7\tdeadbeef\t1\n", "has 4 columns, must have 5: '1\\t7\\tdeadbeef\\t1'"),
    (b"1\t7\tdeadbeef\t1\ta\tb\tc\n", "has 7 columns, must have 5"),
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
    (b"1\t7\t\t1e39\ta\n", "column price: value is '1e39', must be a number, fin"),
    (b"1\t7\tdeadbeef\t1\t\xff\n", "is no UTF-8 text"),
]


def rows_of(database, file: TextFile, columns, on_bad_line: OnBadLine = "error"):
    """What was read, and the values in the order of the file."""
    define(database)
    found = read(database, "rows", file, columns, on_bad_line)
    names = ", ".join(sql.name(column.name) for column in columns)
    return found, database.rows(f"SELECT {names} FROM rows ORDER BY rowid")


@pytest.fixture
def database(tmp_path):
    with sql.Database(tmp_path / "spill", threads=2) as database:
        yield database


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_strange_lines_between_good_ones(database, tmp_path, monkeypatch, ends):
    monkeypatch.setattr("embark_jax.prepare.reading.SHOWN", 99)
    path = tmp_path / "some.txt"
    empty = b"\n"  # does not count
    text = b"".join(GOOD_LINE + empty + line for line, _ in STRANGE)
    path.write_bytes((text + GOOD_LINE.removesuffix(b"\n")).replace(b"\n", ends))
    cases = [each for _, each in STRANGE]
    found, rows = rows_of(database, TextFile(path, NAMES), COLUMNS, "skip")
    kept = [row for row in rows if row != GOOD]
    assert kept == [each for each in cases if isinstance(each, tuple)]
    bad = {
        f"{path}, line {3 * place + 3}": each
        for place, each in enumerate(cases)
        if isinstance(each, str)
    }
    assert (found.good, found.bad) == (len(rows), len(bad))
    told = dict(line.split(": ", 1) for line in found.told)
    assert told.keys() == bad.keys()
    for where, each in bad.items():
        assert told[where].startswith(each)
    with pytest.raises(DataError, match=r"some\.txt, line 24: has 4 columns, must"):
        rows_of(database, TextFile(path, NAMES), COLUMNS)


QUOTED = [
    # Text, the line where a quote is wrong, and how many lines are refused for it.
    ('"a"b,c\n1,2\n', 1, 1),
    (',""a""\n1,2\n', 1, 1),
    ('1,2\nx,"a\n', 2, 1),
    ('1,2\n"a\nb,c\nd"\n1,2\n', 2, 3),
]


@pytest.mark.parametrize(("text", "line", "refused"), QUOTED)
def test_a_quote_that_is_not_closed_is_refused(database, tmp_path, text, line, refused):
    """What is refused counts all of its lines."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    file = TextFile(path, ("a", "b"), ",", quotes=True)
    columns = (Column("a", "category"), Column("b", "category"))
    found, rows = rows_of(database, file, columns, "skip")
    assert rows == [("1", "2")] * text.count("1,2")
    assert found.bad == refused
    assert found.told[0].startswith(f"{path}, line {line}: a quote is not closed")


def test_rows_are_in_the_order_of_the_file(tmp_path):
    """Also those of many buffers that several threads read, and their numbers."""
    path, bad = tmp_path / "a.csv", {77_777, 200_000, 390_001}
    with path.open("w") as file:
        for i in range(400_000):
            file.write(f"{i}\n" if i in bad else f"{i},{'x' * (i * 7919 % 60)}\n")
    file = TextFile(path, ("a", "b"), ",", quotes=True)
    columns = (Column("a", "integer"), Column("b", "category"))
    with sql.Database(threads=4) as database:
        found, rows = rows_of(database, file, columns, "skip")
    assert [a for a, _ in rows] == [i for i in range(400_000) if i not in bad]
    lines = [int(line.split("line ")[1].split(":")[0]) for line in found.told]
    assert lines == [i + 1 for i in sorted(bad)]


def test_a_damaged_compressed_file_is_refused(database, tmp_path):
    """DuckDB itself compares no checksum."""
    text = b"".join(b"%d,%d\n" % (i % 2, i) for i in range(50_000))
    path, columns = tmp_path / "a", (Column("a", "integer"), Column("b", "integer"))
    data = gzip.compress(text)
    damaged, of_other_text = bytearray(data), bytearray(data)
    damaged[len(data) // 2] ^= 4
    of_other_text[-8] ^= 1  # the checksum
    path.write_bytes(data)
    file = TextFile(path, ("a", "b"), ",")
    assert rows_of(database, file, columns)[0].good == 50_000
    for wrong in (data[: len(data) // 3], data[:-4], damaged, of_other_text):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="compressed data are cut or damaged"):
            rows_of(database, file, columns, "skip")
    assert not list((tmp_path / "spill").glob("lines*"))


def test_names_and_paths_of_any_characters(tmp_path):
    path = tmp_path / "a[1]*?'.csv"
    rows = [
        {"label": i % 2, "size, in cm": f"{i},{i}", "A": "x", 'a"': i, "price/kg": i}
        for i in range(20)
    ]
    write_table(path, rows)
    columns = {"ignore": ['a"'], "features": {"price/kg": {"table": "price"}}}
    data = prepared(path, tmp_path / "out", columns, split="none")
    assert data.table_rows == {"price": 22, "size, in cm": 22, "A": 3}
    path.write_text('label,"size\n1,7\n')
    with pytest.raises(DataError, match=r"line 1: is 'label,\"size' \(unexpected end"):
        prepared(path, tmp_path / "bad")
