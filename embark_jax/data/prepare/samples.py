"""Makes samples of the raw files of a recipe: tables, in the order of the files, and a
view of each that has its samples' split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.raw_files import TextFile
from embark_jax.data.prepare.reading import SHOWN, Rows, read, types_of
from embark_jax.data.prepare.recipe import (
    GIVEN_TIME,
    IN_FILE,
    RANDOM_SPLIT,
    ROW,
    SPLIT,
    TIME,
    TRAIN,
    WEIGHT,
    WINDOW,
    Recipe,
    Work,
    cut,
)
from embark_jax.data.prepare.values import Column


@dataclasses.dataclass(frozen=True)
class Samples:
    """The samples of a data set, which are ``samples`` in the database.

    Attributes:
      rows: number of samples of each file; those of the file ``i`` are ``samples i``.
      raw_rows: number of lines or rows of the files.
      told: some of the bad ones among these, which are left out, in words.
      types: the types of the columns of samples, in DuckDB's words.
    """

    rows: Sequence[int]
    raw_rows: int
    told: Sequence[str]
    types: Mapping[str, str]

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
    for name, (file, of_side) in recipe.sides.items():
        _read_side(database, name, file, of_side)
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
    if recipe.query is not None:
        database.run(
            f"CREATE OR REPLACE TABLE {files[0]} AS WITH raw AS (SELECT *, rowid AS "
            f"place FROM {files[0]}) SELECT * EXCLUDE (place) FROM ({recipe.query}) "
            "ORDER BY place"
        )
    select, seconds = dict(recipe.select), 1
    has_times = recipe.columns is not None and recipe.columns.time is not None
    if has_times:
        select[TIME], seconds = _times(database, recipe, files)
    elif options.window is not None:
        raise DataError(
            "--window cuts the data by their column of times, must come with one: "
            "time=NAME"
        )
    names = [*recipe.all_numbers, *(feature.name for feature in recipe.categories)]
    names += [LABEL, *({WEIGHT, TIME} & {*select, *(c.alias for c in columns)})]
    select = {name: select.get(name, sql.name(name)) for name in names}
    split = {"random": RANDOM_SPLIT, "none": str(TRAIN), "time": recipe.time_split}
    split = split[options.split]
    if has_times and options.split == "time":
        split = _split_by_time(database, files, select[TIME])
    if split is None:
        raise DataError("these data are not in the order of time; take --split random")
    split = split.format(total=sum(rows), last_file=sum(rows[:-1]))
    select[WINDOW] = "NULL::BIGINT"
    if options.window is not None:
        units = options.window * seconds
        begin = f"floor({sql.name(TIME)} / {units})::BIGINT * {options.window}"
        select[WINDOW] = f"({begin})"
    views = []
    for number, file in enumerate(files):
        select[SPLIT] = f"({split})::UTINYINT"
        if recipe.file_splits is not None and options.split == "time":
            select[SPLIT] = f"{recipe.file_splits[number]}::UTINYINT"
        made = ", ".join(f"{each} AS {sql.name(name)}" for name, each in select.items())
        view, first = sql.name(f"samples {number}"), sum(rows[:number])
        # The hash of a random split is computed once, not for each column.
        is_random = options.split == "random"
        database.run(
            f"CREATE {'TABLE' if is_random else 'VIEW'} {view} AS SELECT rowid AS "
            f"{sql.name(IN_FILE)}, rowid + {first} AS {sql.name(ROW)}, {made} "
            f"FROM {file}"
        )
        if is_random:
            database.run(f"DROP TABLE {file}")
        views.append(view)
    whole = " UNION ALL BY NAME ".join(f"FROM {view}" for view in views)
    database.run(f"CREATE VIEW samples AS {whole}")
    told = [line for each in found for line in each.told][:SHOWN]
    raw_rows = sum(each.good + each.bad for each in found)
    return Samples(rows, raw_rows, told, database.types("FROM samples"))


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
        if column.kind == "category" and column.is_text is None:
            is_text, _ = kinds.get(tables.get(column.name, column.name), (True, ""))
            column = dataclasses.replace(
                column, is_text=is_text, in_lists=column.name in lists
            )
        alike.append(column)
    return alike


_TEXTS = {"VARCHAR", "BOOLEAN", "UBIGINT"}


def _read_side(
    database: sql.Database, name: str, file: TextFile, columns: Sequence[Column]
) -> None:
    """Makes a table of a file that samples are joined with."""
    if not read(database, name, file, columns).good:
        raise DataError(f"{file.path}: is empty")
    key = columns[0].name
    twice = database.rows(
        f"SELECT {sql.name(key)}, count(*) FROM {sql.name(name)} GROUP BY 1 "
        "HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
    )
    for value, count in twice:
        raise DataError(f"{file.path}: {key} {value!r} has {count} lines")


def _times(
    database: sql.Database, recipe: Recipe, files: Sequence[str]
) -> tuple[str, int]:
    """Returns SQL of the time of a sample, a number, and how many units are a second,
    or 1 if the times are numbers. Dates with a time zone are instants of UTC."""
    time = sql.name(GIVEN_TIME)
    types = {database.types(f"FROM {file}")[GIVEN_TIME]: None for file in files}
    kinds = {"number" if type_ in ("BIGINT", "DOUBLE") else type_ for type_ in types}
    dates = {type_ for type_ in kinds if type_.startswith("TIMESTAMP")}
    zones = {"ZONE" in type_ for type_ in dates}
    named = recipe.columns.time if recipe.columns else None
    where = f"{recipe.raw[0].path}: column {named}"
    if kinds == {"number"}:
        return time, 1
    if dates == kinds and len(zones) == 1:
        # Nanoseconds lose no digit.
        if dates == {"TIMESTAMP_NS"}:
            return f"epoch_ns({time})", 10**9
        return f"epoch_us({time})", 10**6
    if kinds != {"VARCHAR"}:
        raise DataError(f"{where}: has several types ({', '.join(types)}), must be one")
    whole = " UNION ALL ".join(f"SELECT {time} FROM {file}" for file in files)
    has_zone = f"regexp_matches({time}, ':.*(Z|[+-][0-9]{{2}}:?([0-9]{{2}})?)$')"
    kind_of = (
        f"CASE WHEN TRY_CAST({time} AS BIGINT) IS NOT NULL AND "
        f"regexp_full_match({time}, '-?[0-9]+') THEN 'whole' "
        f"WHEN isfinite(TRY_CAST({time} AS DOUBLE)) AND NOT contains({time}, '_') "
        "AND TRY_CAST({time} AS TIMESTAMP) IS NULL THEN 'number' "
        f"WHEN TRY_CAST({time} AS TIMESTAMPTZ) IS NULL THEN 'none' "
        f"WHEN {has_zone} THEN 'instant' ELSE 'date' END"
    ).replace("{time}", time)
    found = dict(
        database.rows(f"SELECT {kind_of}, min({time}) FROM ({whole}) GROUP BY 1")
    )
    if found.keys() == {"whole"}:
        return f"{time}::BIGINT", 1
    if found.keys() <= {"whole", "number"}:
        return f"{time}::DOUBLE", 1
    if found.keys() == {"date"}:
        return f"epoch_us({time}::TIMESTAMP)", 10**6
    if found.keys() == {"instant"}:
        return f"epoch_us({time}::TIMESTAMPTZ)", 10**6
    example = found.get("none", next(iter(found.values())))
    raise DataError(
        f"{where}: values such as {example!r} are not times, must be numbers, whole "
        "ones from -2^63 to 2^63 - 1, or dates such as 2024-05-31 12:30:00, all with a "
        "time zone or none"
    )


def _split_by_time(database: sql.Database, files: Sequence[str], time: str) -> str:
    """Returns a split that holds out the latest tenth: its first half is the validation
    set, the second the test set. Samples of one time are in one split: where few times
    make them the same, the last time is the test set, the one before it the validation
    set."""
    whole = " UNION ALL ".join(f"SELECT {time} AS t FROM {file}" for file in files)
    ((validation, test, first, before),) = database.rows(
        "WITH times AS (SELECT t, sum(count(*)) OVER (ORDER BY t) AS upto, "
        f"sum(count(*)) OVER () - 1 AS last FROM ({whole}) GROUP BY t), cuts AS ("
        "SELECT min(t) FILTER (upto > ceil(last * 18 / 20)) AS a, "
        "min(t) FILTER (upto > ceil(last * 19 / 20)) AS b FROM times) "
        "SELECT a, b, min(t), max(t) FILTER (t < b) FROM times, cuts GROUP BY ALL"
    )
    if validation == test and before is not None and first < before:
        validation = before
    return cut(TIME, repr(validation), repr(test))
