"""Makes samples of the raw files of a recipe: tables, in the order of the files, and a
view of each that has its samples' split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL, SPLITS
from embark_jax.prepare import sql
from embark_jax.prepare.raw_files import RawFile
from embark_jax.prepare.reading import SHOWN, Rows, read, types_of
from embark_jax.prepare.recipe import (
    ALONE,
    GIVEN_TIME,
    IN_FILE,
    IS_EVENT,
    IS_SAMPLE,
    ROW,
    SPLIT,
    TIME,
    TRAIN,
    USER,
    WEIGHT,
    WINDOW,
    Recipe,
    Work,
    event_column,
    weights_column,
)
from embark_jax.prepare.splits import HELD_OUT, Split, split_of
from embark_jax.prepare.values import Column


@dataclasses.dataclass(frozen=True)
class Samples:
    """The samples of a data set, which are ``samples`` in the database.

    Attributes:
      rows: number of samples of each file; those of the file ``i`` are ``samples i``.
      raw_rows: number of lines or rows of the files.
      told: some of the bad ones among these, which are left out, in words.
      types: the types of the columns of samples, in DuckDB's words.
      merged: of each column with texts that became others, how many, and one of them.
      times: the first and the last time of each split, if samples have such, in words.
    """

    rows: Sequence[int]
    raw_rows: int
    told: Sequence[str]
    types: Mapping[str, str]
    merged: Mapping[str, tuple[int, str]]
    times: Mapping[str, tuple[str, str]]

    @property
    def skipped(self) -> int:
        """Number of bad lines or rows, which are left out."""
        return self.raw_rows - sum(self.rows)


def make_samples(work: Work) -> Samples:
    """Makes the samples of a data set.

    Raises:
      DataError: if a raw file cannot be read, or a line is bad and is not skipped, or
        there are no samples, or none in the order of time.
    """
    database, recipe, options = work.database, work.recipe, work.options
    merged = dict[str, tuple[int, str]]()
    for name, (file, of_side) in recipe.sides.items():
        merged |= _read_side(database, name, file, of_side, recipe).merged
    sizes = [file.path.stat().st_size for file in recipe.raw]
    columns, found = _alike(database, recipe), list[Rows]()
    for number, file in enumerate(recipe.raw):
        found.append(
            read(database, f"file {number}", file, columns, options.on_bad_line)
        )
        work.progress("read", sum(sizes[: number + 1]), sum(sizes))
    rows = [each.good for each in found]
    if not sum(rows):
        raise DataError(f"{recipe.raw[0].path}: has no samples")
    files = [sql.name(f"file {number}") for number in range(len(rows))]
    for file in files if recipe.query is not None else ():
        database.run(
            f"CREATE OR REPLACE TABLE {file} AS WITH raw AS (SELECT *, rowid AS place "
            f"FROM {file}) SELECT * EXCLUDE (place) FROM ({recipe.query}) "
            "ORDER BY place"
        )
    select, seconds = dict(recipe.select), 1
    has_times = any(column.alias == GIVEN_TIME for column in columns)
    if has_times:
        named = recipe.columns and recipe.columns.time
        where = f"{recipe.raw[0].path}: column {named}"
        select[TIME], seconds = time_of_samples(database, files, where)
    elif options.window is not None and TIME not in select:
        raise DataError(
            "window cuts the data by their column of times, must come with one: "
            "time=NAME"
        )
    names = [*recipe.all_numbers, *(feature.name for feature in recipe.categories)]
    read_names = {*select, *(column.alias for column in columns)}
    names += [LABEL, *({WEIGHT, TIME, USER, IS_SAMPLE, IS_EVENT} & read_names)]
    names += [weights_column(f.name) for f in recipe.categories if f.weighted]
    if recipe.history is not None:
        names += [n for n in map(event_column, recipe.history.columns) if n in select]
    select = {name: select.get(name, sql.name(name)) for name in names}
    by = Split.parsed(options.split or "random")
    split = split_of(by, database, recipe, files, select.get(TIME), seconds)
    split = split.format(total=sum(rows), last_file=sum(rows[:-1]))
    select[WINDOW] = "NULL::BIGINT"
    if options.window is not None:
        select[WINDOW] = _window(sql.name(TIME), options.window, seconds)
    views = []
    for number, file in enumerate(files):
        select[SPLIT] = f"({split})::UTINYINT"
        if recipe.file_splits is not None and options.split == "time":
            select[SPLIT] = f"{recipe.file_splits[number]}::UTINYINT"
        made = ", ".join(f"{each} AS {sql.name(name)}" for name, each in select.items())
        view, first = sql.name(f"samples {number}"), sum(rows[:number])
        # A hash or a join is computed once, not for each column.
        is_table = by.by in ("random", "user", "leave-one-out")
        joined = ""
        if by.by == "leave-one-out":
            held_out = sql.name(HELD_OUT)
            joined = f"LEFT JOIN {held_out} ON {held_out}.{sql.name(ROW)} = "
            joined += f"{file}.rowid + {first} ORDER BY {file}.rowid"
        database.run(
            f"CREATE {'TABLE' if is_table else 'VIEW'} {view} AS SELECT "
            f"{file}.rowid AS {sql.name(IN_FILE)}, {file}.rowid + {first} AS "
            f"{sql.name(ROW)}, {made} FROM {file} {joined}"
        )
        if is_table:
            database.run(f"DROP TABLE {file}")
        views.append(view)
    whole = " UNION ALL BY NAME ".join(f"FROM {view}" for view in views)
    database.run(f"CREATE VIEW samples AS {whole}")
    _set_events_apart(database, recipe)
    told = [line for each in found for line in each.told][:SHOWN]
    raw_rows = sum(each.good + each.bad for each in found)
    times = _times_of_splits(database, seconds) if has_times else {}
    for name, (count, example) in (each for of in found for each in of.merged.items()):
        merged[name] = merged.get(name, (0, example))[0] + count, example
    types = database.types("FROM samples")
    return Samples(rows, raw_rows, told, types, merged, times)


def _set_events_apart(database: sql.Database, recipe: Recipe) -> None:
    """Makes ALONE, which is empty if every line is a sample."""
    history, row, user, time = recipe.history, *map(sql.name, (ROW, USER, TIME))
    is_sample = sql.name(IS_SAMPLE) if IS_SAMPLE in recipe.select else "true"
    if history is None or ((history.least, history.every, is_sample) == (0, 1, "true")):
        database.run(f"CREATE TABLE {sql.name(ALONE)} (row BIGINT)")
        return
    database.run(
        f"CREATE TABLE {sql.name(ALONE)} AS SELECT row FROM (SELECT {row} AS row, "
        f"{SPLIT} = {TRAIN} AS trains, {is_sample} AS is_sample, if({user} IS NULL, 0, "
        f"row_number() OVER (PARTITION BY {user} ORDER BY {time}, {row}) - 1) AS "
        f"before, row_number() "
        f"OVER (PARTITION BY {user}, {SPLIT} ORDER BY {time} DESC, {row} DESC) - 1 AS "
        f"after FROM samples) WHERE NOT is_sample OR before < {history.least} OR "
        f"trains AND after % {history.every} > 0"
    )


def _alike(database: sql.Database, recipe: Recipe) -> list[Column]:
    """Returns how columns are read: the values of each table are all text, or all whole
    numbers; a column of a file without any value is of any kind."""
    tables = {feature.name: feature.table for feature in recipe.categories}
    own = [column for column in recipe.raw_columns if column.kind == "category"]
    kinds: dict[str, tuple[bool, str]] = {}
    lists = set()
    for file in recipe.raw if own else ():
        types = types_of(database, file, own)
        for name, type_ in types.items():
            single = type_.partition("[")[0]
            lists |= {name} if single != type_ else set()
            table, where = tables.get(name, name), f"column {name!r} of {file.path}"
            if single == '"NULL"':
                continue
            is_text = single.startswith("ENUM") or single in _TEXTS
            known, there = kinds.setdefault(table, (is_text, where))
            if known != is_text and recipe.columns is not None:
                words = {True: "text", False: "whole numbers"}
                raise DataError(
                    f"{where} has {words[is_text]}, {there} has {words[known]}, and "
                    f"both read table {table!r}: must be of one kind; write both "
                    "alike, or give them tables of their own"
                )
    alike = []
    for column in recipe.raw_columns:
        if column.kind == "category" and (column.is_text is None or column.text):
            is_text, _ = kinds.get(tables.get(column.name, column.name), (True, ""))
            column = dataclasses.replace(
                column,
                is_text=column.text or is_text,
                in_lists=column.name in lists,
            )
        alike.append(column)
    return alike


_TEXTS = {"VARCHAR", "BOOLEAN", "UBIGINT"}


def _read_side(
    database: sql.Database,
    name: str,
    file: RawFile,
    columns: Sequence[Column],
    recipe: Recipe,
) -> Rows:
    """Makes a table of a file that samples are joined with."""
    rows = read(database, name, file, columns)
    if not rows.good:
        raise DataError(f"{file.path}: is empty")
    key = columns[0].alias or columns[0].name
    twice = database.rows(
        f"SELECT {sql.name(key)}, count(*) FROM {sql.name(name)} GROUP BY 1 "
        "HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
    )
    for value, count in twice if recipe.unique_sides else ():
        raise DataError(f"{file.path}: {columns[0].name} {value!r} has {count} lines")
    return rows


def time_of_samples(
    database: sql.Database, files: Sequence[str], where: str
) -> tuple[str, int]:
    """Returns SQL of the time of a sample, a number, and how many units are a second,
    or 1 if the times are numbers. Dates with a time zone are instants of UTC.

    Raises:
      DataError: if times are of kinds that have no order, with ``where`` they are.
    """
    time = sql.name(GIVEN_TIME)
    whole = " UNION ALL ".join(f"SELECT {time} AS time FROM {file}" for file in files)
    largest = dict(
        database.rows(
            f"SELECT time.kind::VARCHAR, max(abs(time.at::HUGEINT)) FROM ({whole}) "
            "GROUP BY 1 ORDER BY 1"
        )
    )
    kinds = {*largest}
    if kinds == {"whole"}:
        return f"{time}.at", 1
    if kinds <= {"whole", "number"} and largest.get("whole", 0) <= 2**53:
        return f"coalesce({time}.number, {time}.at)", 1
    if kinds in ({"date"}, {"instant"}, {"nanoseconds"}):
        return f"{time}.at", 10**9 if kinds == {"nanoseconds"} else 10**6
    words = {
        "whole": "whole numbers",
        "number": "fractions",
        "date": "dates",
        "instant": "dates with a time zone",
        "nanoseconds": "dates in nanoseconds",
    }
    raise DataError(
        f"{where}: has {' and '.join(words[kind] for kind in largest)}; must be all "
        "whole numbers, numbers up to 2^53, dates such as 2024-05-31 12:30:00, or all "
        "with a time zone"
    )


def _times_of_splits(
    database: sql.Database, seconds: int
) -> dict[str, tuple[str, str]]:
    """Returns the first and the last time of each split."""
    time = sql.name(TIME)
    if seconds > 1:  # dates
        time = f"make_timestamp({time} // {seconds // 10**6})"
    found = database.rows(
        f"SELECT {SPLIT}, min({time})::VARCHAR, max({time})::VARCHAR FROM samples "
        "GROUP BY 1 ORDER BY 1"
    )
    return {SPLITS[split]: (first, last) for split, first, last in found}


def _window(time: str, length: int, seconds: int) -> str:
    """Returns SQL of the begin of a time's window: floats have no part in it, as of
    whole numbers above 2^53 they lose digits."""
    units = length * seconds
    number = f"(({time} - {time} % {units}) // {units})::BIGINT"
    return f"(({number} - ({time} % {units} < 0)::BIGINT) * {length})"
