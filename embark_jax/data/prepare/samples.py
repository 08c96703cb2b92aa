"""Makes samples of the raw files of a recipe: tables, in the order of the files, and a
view of each that has its samples' split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL
from embark_jax.data.pipeline import Progress
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.reading import SHOWN, Rows, read, types_of
from embark_jax.data.prepare.recipe import (
    GIVEN_TIME,
    IN_FILE,
    ROW,
    SPLIT,
    TIME,
    WEIGHT,
    WINDOW,
    Extent,
    History,
    Recipe,
    SideTable,
    Split,
    after_times,
    all_train,
    random_split,
)
from embark_jax.data.prepare.values import Column
from embark_jax.plans.options import OnBadLine, SplitBy


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


def make_samples(
    database: sql.Database,
    recipe: Recipe,
    split: SplitBy,
    window: int | None,
    on_bad_line: OnBadLine,
    progress: Progress,
) -> Samples:
    """Makes the samples of a data set.

    Args:
      database: has the functions of ``values``.
      recipe: the recipe of the data set.
      split: how samples are split.
      window: length of the time windows that samples are cut into, if they are.
      on_bad_line: what to do with a bad line.
      progress: is told how far the work is, in bytes of raw files on disk.

    Raises:
      DataError: if a raw file cannot be read, or a line is bad and is not skipped, or
        there are no samples, or none in the order of time.
    """
    for name, side in recipe.sides.items():
        _read_side(database, name, side)
    sizes = [file.path.stat().st_size for file in recipe.raw]
    columns, found = _alike(database, recipe), list[Rows]()
    for number, file in enumerate(recipe.raw):
        found.append(read(database, f"file {number}", file, columns, on_bad_line))
        progress("read", sum(sizes[: number + 1]), sum(sizes))
    rows = [each.good for each in found]
    if not sum(rows):
        raise DataError(f"{recipe.raw[0].path}: has no samples")
    files = [sql.name(f"file {number}") for number in range(len(rows))]
    if recipe.sides:
        _join_sides(database, recipe, files)
    if recipe.history:
        _add_history(database, recipe.history, files[0])
    select, seconds = dict(recipe.select), 1
    if recipe.columns is not None and recipe.columns.time:
        select[TIME], seconds = _times(database, recipe, files, recipe.columns.time)
    elif window is not None:
        raise DataError(
            "--window cuts the data by their column of times, must come with one: "
            "time=NAME"
        )
    names = [*recipe.all_numbers, *(feature.name for feature in recipe.categories)]
    names += [LABEL, *({WEIGHT, TIME} & {*select, *(c.alias for c in columns)})]
    select = {name: select.get(name, sql.name(name)) for name in names}
    split_of = _split(database, recipe, split, files, select)
    extent = Extent(sum(rows), sum(rows[:-1]))
    if window is not None:
        units = window * seconds
        time = sql.name(TIME)
        select[WINDOW] = f"(floor({time} / {units})::BIGINT * {window})"
    views = []
    for number, file in enumerate(files):
        select[SPLIT] = f"({split_of(extent)})::UTINYINT"
        if recipe.file_splits is not None and split == "time":
            select[SPLIT] = f"{recipe.file_splits[number]}::UTINYINT"
        made = ", ".join(f"{each} AS {sql.name(name)}" for name, each in select.items())
        view, first = sql.name(f"samples {number}"), sum(rows[:number])
        # The hash of a random split is computed once, not for each column.
        kind = "TABLE" if split == "random" else "VIEW"
        database.run(
            f"CREATE {kind} {view} AS SELECT rowid AS {sql.name(IN_FILE)}, rowid + "
            f"{first} AS {sql.name(ROW)}, {made} FROM {file}"
        )
        if split == "random":
            database.run(f"DROP TABLE {file}")
        views.append(view)
    whole = " UNION ALL BY NAME ".join(f"FROM {view}" for view in views)
    database.run(f"CREATE VIEW samples AS {whole}")
    told = [line for each in found for line in each.told][:SHOWN]
    raw_rows = sum(each.good + each.bad for each in found)
    return Samples(rows, raw_rows, told, database.types("FROM samples"))


def _alike(database: sql.Database, recipe: Recipe) -> list[Column]:
    """Returns how columns are read: the values of each table are all text, or all whole
    numbers; a column of a file without any value is of any kind.

    Raises:
      DataError: if columns that share a table, or files, differ in this.
    """
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


def _read_side(database: sql.Database, name: str, side: SideTable) -> None:
    """Makes a table of a file that samples are joined with.

    Raises:
      DataError: if the file cannot be read or a line is bad, or two have one key.
    """
    rows = read(database, name, side.file, side.columns)
    if not rows.good:
        raise DataError(f"{side.file.path}: is empty")
    key = side.columns[0].name
    twice = database.rows(
        f"SELECT {sql.name(key)}, count(*) FROM {sql.name(name)} GROUP BY 1 "
        "HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
    )
    for value, count in twice:
        raise DataError(f"{side.file.path}: {key} {value!r} has {count} lines")


def _join_sides(database: sql.Database, recipe: Recipe, files: Sequence[str]) -> None:
    """Adds the columns of side tables to the samples, in their order."""
    joined = " ".join(
        f"LEFT JOIN {sql.name(name)} ON file.{sql.name(side.found_by)} = "
        f"{sql.name(name)}.{sql.name(side.columns[0].name)}"
        for name, side in recipe.sides.items()
    )
    added = "".join(
        f", {sql.name(name)}.{sql.name(column.name)}"
        for name, side in recipe.sides.items()
        for column in side.columns[1:]
    )
    for file in files:
        database.run(
            f"CREATE OR REPLACE TABLE {file} AS SELECT file.*{added} FROM {file} AS "
            f"file {joined} ORDER BY file.rowid"
        )


def _add_history(database: sql.Database, history: History, file: str) -> None:
    """Adds the sequences of what users met before: lists, the latest event at the end.
    Events of one time are in the order of the samples."""
    user, time = sql.name(history.user), sql.name(history.time)
    gathered, sequences = [], []
    for name, column in history.sequences.items():
        gathered.append(f"list({sql.name(column)} ORDER BY rowid) AS {sql.name(name)}")
        past = f"flatten(list({sql.name(name)}) OVER earlier)[-{history.length}:]"
        sequences.append(f"coalesce({past}, []) AS {sql.name(name)}")
    past = ", ".join(map(sql.name, history.sequences))
    # Each time has an event at least: so many times before have enough of them.
    database.run(
        f"CREATE OR REPLACE TABLE {file} AS WITH times AS (SELECT {user}, {time}, "
        f"{', '.join(gathered)} FROM {file} GROUP BY ALL), past AS (SELECT {user}, "
        f"{time}, {', '.join(sequences)} FROM times WINDOW earlier AS (PARTITION BY "
        f"{user} ORDER BY {time} ROWS BETWEEN {history.length} PRECEDING AND 1 "
        f"PRECEDING)) SELECT file.*, {past} FROM {file} AS file JOIN past USING "
        f"({user}, {time}) ORDER BY file.rowid"
    )


def _times(
    database: sql.Database, recipe: Recipe, files: Sequence[str], name: str
) -> tuple[str, int]:
    """Returns SQL of the time of a sample, a number, and how many units are a second,
    or 1 if the times are numbers. Dates with a time zone are instants of UTC.

    Raises:
      DataError: if a value is no time, or times are of several kinds.
    """
    time = sql.name(GIVEN_TIME)
    types = {database.types(f"FROM {file}")[GIVEN_TIME]: None for file in files}
    kinds = {"number" if type_ in ("BIGINT", "DOUBLE") else type_ for type_ in types}
    dates = {type_ for type_ in kinds if type_.startswith("TIMESTAMP")}
    zones = {"ZONE" in type_ for type_ in dates}
    where = f"{recipe.raw[0].path}: column {name}"
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


def _split(
    database: sql.Database,
    recipe: Recipe,
    split: SplitBy,
    files: Sequence[str],
    select: Mapping[str, str],
) -> Split:
    """Returns how samples are split.

    Raises:
      DataError: if the samples are not in the order of time.
    """
    if split != "time":
        return {"random": random_split, "none": all_train}[split]
    if recipe.columns is None or not recipe.columns.time:
        if recipe.time_split is None:
            raise DataError(
                "these data are not in the order of time; take --split random"
            )
        return recipe.time_split
    # The latest tenth is held out: its first half is the validation set, the second the
    # test set. Samples of one time are in one split: where few times make them the
    # same, the last time is the test set, the one before it the validation set.
    whole = " UNION ALL ".join(f"SELECT {select[TIME]} AS t FROM {f}" for f in files)
    ((validation, test, first, before),) = database.rows(
        "WITH times AS (SELECT t, sum(count(*)) OVER (ORDER BY t) AS upto, "
        f"sum(count(*)) OVER () - 1 AS last FROM ({whole}) GROUP BY t), cuts AS ("
        "SELECT min(t) FILTER (upto > ceil(last * 18 / 20)) AS a, "
        "min(t) FILTER (upto > ceil(last * 19 / 20)) AS b FROM times) "
        "SELECT a, b, min(t), max(t) FILTER (t < b) FROM times, cuts GROUP BY ALL"
    )
    if validation == test and before is not None and first < before:
        validation = before
    return after_times(repr(validation), repr(test))
