"""Reads raw files into tables of typed values, and tells what is wrong with lines."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from embark_jax._base.errors import DataError
from embark_jax.plans.options import OnBadLine
from embark_jax.prepare import sql
from embark_jax.prepare.raw_files import (
    NO_COLUMN,
    RawFile,
    TextFile,
    plain,
    shown,
)
from embark_jax.prepare.values import Column, Typed, by_rule_of, list_of

SHOWN = 5
"""How many bad lines are told in words."""
GOOD = "is good"
"""A column of a table that is being read: whether the row is good."""
_BY_RULE = '"values by the rule"'
_REJECTS = ", store_rejects = true, rejects_limit = 0"
_FORGET = "DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans"


class Rows(NamedTuple):
    """What was read of a file.

    Attributes:
      good: number of rows of the table.
      bad: number of lines or rows that were left out.
      told: some of these, in words.
      merged: of each column with texts that became others, how many they are, and one
        of them.
    """

    good: int
    bad: int
    told: list[str]
    merged: dict[str, tuple[int, str]]


def read(
    database: sql.Database,
    table: str,
    file: RawFile,
    columns: Sequence[Column],
    on_bad_line: OnBadLine = "error",
) -> Rows:
    """Makes a table of a file's good rows, in their order, with each column under its
    alias or its name.

    Args:
      database: has the functions of ``values``.
      table: name of the table.
      file: the file.
      columns: the columns that are read.
      on_bad_line: "error" stops at a bad line, "skip" leaves bad lines out.

    Raises:
      DataError: if the file cannot be read, a column is of a type that it may not have,
        or a line is bad and is not skipped: the first one is told.
    """
    into, skips = sql.name(table), on_bad_line == "skip"
    options = _REJECTS if skips and file.unit == "line" else ""
    with contextlib.ExitStack() as open_files:
        try:
            if isinstance(file, TextFile):
                file.check_header()
            path = open_files.enter_context(plain(file, database.spill))
        except OSError as error:
            raise DataError(f"{file.path}: {error.strerror or error}") from None
        given = Selected.of(columns, file, types_of(database, file, columns))
        good = given.good
        if not skips:
            good = f"CASE WHEN {good} THEN true ELSE error('bad row') END"
        texts = [f"{text} AS {_raw_name(name)}" for name, text in given.texts.items()]
        try:
            # Tables made by CREATE TABLE AS are in the order of the file.
            database.run(
                f"CREATE OR REPLACE TABLE {into} AS SELECT {given.kept} FROM (SELECT "
                f"{', '.join([given.values, *texts])}, {good} AS {sql.name(GOOD)} FROM "
                f"{given.source(file.source(path, options))})"
            )
        except sql.Error as error:
            told = bad_rows(database, file, path, given, 1)
            raise DataError(told[0] if told else f"{file.path}: {error}") from None
        bad = sum(each.lines for each in _rejected(database)) if options else 0
        ((rows, good_rows),) = database.rows(
            f"SELECT count(*), count(*) FILTER ({sql.name(GOOD)}) FROM {into}"
        )
        bad += rows - good_rows
        told = bad_rows(database, file, path, given, SHOWN) if bad else []
    if rows > good_rows:
        kept = f"SELECT * FROM {into} WHERE {sql.name(GOOD)}"
        database.run(f"CREATE OR REPLACE TABLE {into} AS {kept}")
    database.run(f"ALTER TABLE {into} DROP {sql.name(GOOD)}")
    merged = dict[str, tuple[int, str]]()
    for name in given.texts:
        if (found := _merged(database, into, name))[0]:
            merged[name] = found
        database.run(f"ALTER TABLE {into} DROP {_raw_name(name)}")
    return Rows(good_rows, bad, told, merged)


def _raw_name(name: str) -> str:
    """Returns the column of the texts of a column that became other ones."""
    return sql.name(f"text of {name}")


def _merged(database: sql.Database, table: str, name: str) -> tuple[int, str]:
    """Returns how many texts of a column became a value that others are, too, or
    missing, and one of these."""
    value, raw = sql.name(name), _raw_name(name)
    ((count, example),) = database.rows(
        f"WITH changed AS (SELECT DISTINCT {raw} AS raw, {value} AS value FROM {table} "
        f"WHERE {raw} IS NOT NULL), kept AS (SELECT DISTINCT {value} AS value FROM "
        f"{table} WHERE {raw} IS NULL AND {value} IN (SELECT value FROM changed)) "
        "SELECT count(*), min(raw) FROM changed WHERE value IS NULL OR value IN "
        "(SELECT value FROM kept) OR value IN (SELECT value FROM changed GROUP BY "
        "value HAVING count(*) > 1)"
    )
    return count, example


def types_of(
    database: sql.Database, file: RawFile, columns: Sequence[Column]
) -> dict[str, str]:
    """Returns the type of each column of a file, in DuckDB's words.

    Raises:
      DataError: if the file cannot be read.
    """
    if isinstance(file, TextFile):
        return {c.name: _type_in(file, c, "VARCHAR") for c in columns}
    try:
        types = database.types(f"FROM {file.source(file.path)}")
    except sql.Error as error:
        raise DataError(f"{file.path}: {error}") from None
    return {
        c.name: _type_in(file, c, types.get(file.column(c.name), "VARCHAR"))
        for c in columns
    }


def _type_in(file: RawFile, column: Column, type_: str) -> str:
    """Returns the type of a column, of which a file that lacks it says nothing."""
    return '"NULL"' if file.column(column.name) == NO_COLUMN else type_


class Selected(NamedTuple):
    """How values are made of a file's columns.

    Attributes:
      made: each column, and SQL of its value; then, if there are several lists of
        events, that of their lengths.
      steps: SQL of what values are made of, beside the columns of the file, each of
        those before it.
      values: SQL of all values, under their aliases or names.
      good: SQL of whether a row is good.
      texts: SQL of the text of each column of single texts.
      kept: SQL of what is kept of all these, and GOOD: of texts those that became
        others.
    """

    made: list[tuple[Column, Typed]]
    steps: list[str]
    values: str
    good: str
    texts: dict[str, str]
    kept: str

    @classmethod
    def of(
        cls, columns: Sequence[Column], file: RawFile, types: Mapping[str, str]
    ) -> Selected:
        """Raises ``DataError`` if a column is of a type that it may not have."""
        made = []
        for column in columns:
            try:
                typed = column.typed(file.column(column.name), types[column.name])
            except DataError as error:
                raise DataError(f"{file.path}: column {column.name}: {error}") from None
            made.append((column, typed))
        given = {list_of(c.name): t.given for c, t in made if t.given}
        made, joined = _of_one_length(made)
        by_rule = {c.name: t for c, t in made if t.by_rule}
        single = [name for name, typed in by_rule.items() if typed.text]
        lists = [name for name, typed in by_rule.items() if not typed.text]
        if by_rule:  # all at once: to plan a query takes longer than a row
            texts = f"[{', '.join(by_rule[name].text for name in single)}]::VARCHAR[]"
            made_of = f"[{', '.join([texts, *map(list_of, lists)])}]"
            joined[_BY_RULE] = (
                f"list_transform({made_of}, lambda l: canonical_values(l))"
            )
        named = {by_rule_of(n): f"{_BY_RULE}[1][{i}]" for i, n in enumerate(single, 1)}
        named |= {by_rule_of(n): f"{_BY_RULE}[{i}]" for i, n in enumerate(lists, 2)}
        values = [
            f"{typed.value} AS {sql.name(column.alias or column.name)}"
            for column, typed in made
            if column.kind != "lists"
        ]
        texts = {
            c.name: t.text for c, t in made if t.text and not c.alias and not c.text
        }
        changed = [
            f"CASE WHEN {sql.name(name)} IS DISTINCT FROM {_raw_name(name)} AND "
            f"{_raw_name(name)} <> '' THEN {_raw_name(name)} END AS {_raw_name(name)}"
            for name in texts
        ]
        kept = f"* REPLACE ({', '.join(changed)})" if changed else "*"
        checks = [f"({t.check})" for _, t in made if t.check != "true"]
        good = f"coalesce({' AND '.join(checks) or 'true'}, false)"
        steps = [
            ", ".join(f"{made_of} AS {name}" for name, made_of in step.items())
            for step in (given, joined, named)
            if step
        ]
        return cls(made, steps, ", ".join(values), good, texts, kept)

    def source(self, source: str) -> str:
        """Returns SQL of a file's rows, with what values are made of."""
        for step in self.steps:
            source = f"(SELECT *, {step} FROM {source})"
        return source


def _of_one_length(
    made: list[tuple[Column, Typed]],
) -> tuple[list[tuple[Column, Typed]], dict[str, str]]:
    """Adds the checks that lists beside each other have one length, and returns what
    names the length of the longest. An empty text beside lists of one value is one
    missing value, but no weight."""
    groups: dict[str, list[tuple[Column, Typed]]] = {}
    lengths: dict[str, str] = {}
    for column, typed in made:
        if column.beside and typed.given:
            groups.setdefault(column.beside, []).append((column, typed))
    for beside, lists in groups.items():
        if len(lists) < 2:
            continue
        longest = sql.name(f"longest of {beside}")
        length = {column.name: f"len({list_of(column.name)})" for column, _ in lists}
        lengths[longest] = f"greatest({', '.join(length.values())})"
        changed, checks = {}, []
        for column, typed in lists:
            check = f"{length[column.name]} = {longest}"
            if column.kind == "category":
                one_missing = f"{length[column.name]} = 0 AND {longest} = 1"
                value = f"CASE WHEN {one_missing} THEN [NULL] ELSE {typed.value} END"
                changed[column.name] = dataclasses.replace(typed, value=value)
                check += f" OR {one_missing}"
            checks.append(f"({check})")
        told = ", ', ', ".join(
            f"{length}, {sql.text(f' of {name}')}" for name, length in length.items()
        )
        rule = "must be as many, with empty ones for missing values"
        if all(column.kind == "category" for column, _ in lists):
            rule += "; if a column does not belong to the others: "
            rule += "features.NAME.independent=true"
        made = [(column, changed.get(column.name, typed)) for column, typed in made]
        every = Typed(f"concat({told})", " AND ".join(checks), rule)
        made.append((Column(f"lists of {beside}", "lists"), every))
    return made, lengths


class _Rejected(NamedTuple):
    """A line that DuckDB's reader refused, and how many lines it took for one."""

    line: int
    columns: int
    kind: str
    text: str
    lines: int


def _rejected(database: sql.Database) -> list[_Rejected]:
    """Returns the refused lines of the last query; one has several rows."""
    found = database.rows(
        "SELECT line, max(column_idx), min(error_type::VARCHAR), any_value(csv_line) "
        "FROM reject_errors GROUP BY line ORDER BY line"
    )
    database.run(_FORGET)
    texts = [
        (line, n, kind, (text or "").strip("\r\n")) for line, n, kind, text in found
    ]
    return [_Rejected(*each, 1 + each[-1].count("\n")) for each in texts]


def bad_rows(
    database: sql.Database, file: RawFile, path: Path, given: Selected, most: int
) -> list[str]:
    """Returns what is wrong with the first bad lines or rows."""
    made, good = given.made, given.good
    which = " ".join(
        f"WHEN NOT coalesce({typed.check}, false) THEN {place}"
        for place, (_, typed) in enumerate(made)
    )
    values = " ".join(
        f"WHEN {place} THEN "
        + (t.value if c.kind == "lists" else f"({file.column(c.name)})::VARCHAR")
        for place, (c, t) in enumerate(made)
    )
    source = given.source(file.source(path))
    if isinstance(file, TextFile):
        # A row begins on the line after those of the rows before it.
        text = f"concat_ws(' ', {', '.join(f'c{i}' for i in range(len(file.names)))})"
        text = rf"regexp_replace({text}, '(\r?\n)+', chr(10), 'g')"
        breaks = f"strlen({text}) - strlen(replace({text}, chr(10), ''))"
        source = (
            f"(SELECT *, {1 + file.header} + coalesce(sum(1 + {breaks}) OVER (ROWS "
            "BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT AS number FROM "
            f"{given.source(file.source(path, _REJECTS))})"
        )
    database.run(_FORGET)
    try:
        with database.one_thread():
            found = database.rows(
                f"SELECT number, place, CASE place {values} END FROM (SELECT *, "
                f"CASE {which} END AS place FROM {source} WHERE NOT {good} OR "
                f"number < 0) ORDER BY number LIMIT {most}"  # reads the whole file
            )
    except sql.Error as error:
        return _unreadable(file, path, error)
    told = {}
    if isinstance(file, TextFile):
        rejected = _rejected(database)
        told = {each.line: _words(each, file) for each in rejected}
        left_out = [(each.line, each.lines) for each in rejected] + _empty_lines(path)
        for line, lines in sorted(left_out):
            found = [(n + lines * (n >= line), *rest) for n, *rest in found]
    for row, place, value in found:
        column, typed = made[place]
        what = f"column {column.name}: "
        if column.kind == "lists":
            what = f"{column.name} have {value} values, {typed.rule}"
        elif value is None or not value.strip():
            what += "is empty, must have a value"
        else:
            what += f"value is {shown(value.encode())}, {typed.rule}"
        told[row] = what
    return [f"{file.path}, {file.unit} {n}: {told[n]}" for n in sorted(told)[:most]]


def _empty_lines(path: Path) -> list[tuple[int, int]]:
    """Returns the number of each line without anything, which is no row, and 1."""
    with path.open("rb") as file:
        return [(n, 1) for n, line in enumerate(file, 1) if not line.strip(b"\r\n")]


def _words(rejected: _Rejected, file: TextFile) -> str:
    """Returns what is wrong with a line that was refused."""
    line = shown(rejected.text.encode())
    if rejected.kind == "INVALID ENCODING":
        return f"is no UTF-8 text: {line}"
    if rejected.kind == "UNQUOTED VALUE" or "\n" in rejected.text:
        return f"a quote is not closed, or text follows one: {line}"
    if rejected.kind == "LINE SIZE OVER MAXIMUM":
        return "is too long, must be text with a sample on each line"
    return f"has {rejected.columns} columns, must have {len(file.columns)}: {line}"


def _unreadable(file: RawFile, path: Path, error: Exception) -> list[str]:
    """Returns why a file cannot be read: its lines end in several ways, perhaps."""
    if isinstance(file, TextFile):
        with path.open("rb") as lines:
            ends_in_cr = None
            for number, line in enumerate(lines, 1):
                text = line.rstrip(b"\n")
                ends_in_cr = text.endswith(b"\r") if ends_in_cr is None else ends_in_cr
                if b"\r" in text[: len(text) - ends_in_cr] or (
                    text.endswith(b"\r") != ends_in_cr and text
                ):
                    return [
                        f"{file.path}, line {number}: a carriage return is inside this "
                        "line, or it ends in another way than those before: write all "
                        "lines alike"
                    ]
    return [f"{file.path}: {str(error).splitlines()[0]}"]
