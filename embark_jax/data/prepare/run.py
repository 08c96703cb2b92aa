"""Turns raw files into prepared data by queries, in stages: samples, count, encode.

The folder appears when all is done. What exceeds the memory of queries goes to disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from embark_jax._base.config import nearest
from embark_jax._base.files import new_folder
from embark_jax.data.batch import DataError
from embark_jax.data.manifest import SPLITS, Manifest, PreparedFeature
from embark_jax.data.pipeline import Progress, silent
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.count import Counted, Tables, count, numbered_tables
from embark_jax.data.prepare.encode import encode
from embark_jax.data.prepare.extension import EXTENDS, Earlier
from embark_jax.data.prepare.recipe import IN_FILE, ROW, TRAIN, Recipe
from embark_jax.data.prepare.samples import make_samples
from embark_jax.data.prepare.values import define
from embark_jax.plans.options import OnBadLine, SplitBy
from embark_jax.plans.tables import HASHED_KEYS

SUMMARIZED = 10_000
"""How many samples are summarized."""
MOST_HELD_OUT = 0.2
"""A split by time that holds out more is told."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that a user may choose.

    Attributes:
      split: "time" holds out the latest samples, "random" a fifth of all, "none" none.
      min_count: number of training samples that a value needs for a row of its own.
      max_rows: most rows of a table; a table with more values is hashed to them.
      hashed: whether every table is hashed.
      hash_columns: columns whose tables are hashed, with the number of rows; None is
        ``max_rows``.
      by_frequency: columns that are hashed, or have row numbers, whose tables' rows are
        numbered by frequency.
      window: length of the time windows that samples are cut into, in the units of the
        column of times, or in seconds if these are dates; None makes no windows.
      on_bad_line: "error" stops at the first bad line, "skip" leaves bad lines out and
        counts them.
    """

    split: SplitBy = "random"
    min_count: int = 1
    max_rows: int = 40_000_000
    hashed: bool = False
    hash_columns: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    by_frequency: Sequence[str] = ()
    window: int | None = None
    on_bad_line: OnBadLine = "error"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The result of preparing.

    Attributes:
      manifest: the folder's manifest.
      summary: what columns of samples hold: DuckDB's SUMMARIZE of SUMMARIZED of them.
      skipped: some of the bad lines that are left out, in words.
      warnings: what is probably a mistake, and what to do about it.
    """

    manifest: Manifest
    summary: pa.Table
    skipped: Sequence[str] = ()
    warnings: Sequence[str] = ()


def prepare(
    recipe: Recipe,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    progress: Progress = silent,
    extend: Path | None = None,
    vocabulary: Path | None = None,
) -> Prepared:
    """Prepares a data set in the folder ``out``.

    Args:
      recipe: the recipe of the data set.
      out: a new or empty folder.
      options: the user's options.
      made_from: what else determines the samples; it is kept in the manifest.
      progress: is told how far the work is.
      extend: folder of earlier data, whose rows and transforms are kept.
      vocabulary: folder of values that were counted elsewhere; see ``Tables``.

    Raises:
      DataError: if a raw file is bad, ``out`` holds something, or the earlier data were
        prepared otherwise.
    """
    hashed = _hashed_tables(recipe, options)
    raw = {str(path): path.stat().st_size for path in recipe.paths}
    made_from = {**made_from, **dataclasses.asdict(options), "raw": raw}
    if not options.by_frequency:  # an option that data of earlier versions do not have
        del made_from["by_frequency"]
    earlier = None
    if extend is not None:
        earlier = Earlier.open(extend, recipe, made_from)
        made_from[EXTENDS] = earlier.manifest.digest()
        hashed |= earlier.hashed
    numbered = numbered_tables(recipe)
    if vocabulary is not None:
        made_from["vocabularies"] = str(vocabulary)
    tables = Tables(
        options.min_count,
        options.max_rows,
        hashed,
        numbered,
        _tables_by_frequency(recipe, options, {*numbered, *hashed}, hashed),
        vocabulary,
        earlier,
    )
    with new_folder(out) as folder:
        work = folder / ".work"
        database = sql.Database(work)
        with contextlib.closing(database):
            define(database)
            prepared = _prepare(
                database, recipe, folder, options, made_from, progress, tables
            )
        shutil.rmtree(work, ignore_errors=True)
        return prepared


def _prepare(
    database: sql.Database,
    recipe: Recipe,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    progress: Progress,
    tables: Tables,
) -> Prepared:
    """Fills a new folder."""
    samples = make_samples(
        database, recipe, options.split, options.window, options.on_bad_line, progress
    )
    types, total = samples.types, sum(samples.rows)
    counted = count(database, recipe, types, total, out, tables, progress)
    manifest = _manifest(recipe, counted, made_from, tables, types)
    manifest = manifest.model_copy(
        update={
            "raw_rows": samples.raw_rows,
            "skipped_lines": samples.skipped,
            "missing_dense": _missing(database, recipe),
        }
    )
    # Of time windows each is evaluated before it is trained on.
    in_windows = options.window is not None or options.split == "none"
    held_out = SPLITS if in_windows else SPLITS[1:]
    files = {split: [] for split in SPLITS}
    for split, file in encode(
        database, samples.rows, types, out, manifest, held_out, progress
    ):
        files[split].append(file)
    if not files[SPLITS[TRAIN]]:
        raise DataError(
            f"{recipe.raw[0].path}: no sample is in the training split; take another "
            "--split"
        )
    for of_split in files.values():
        of_split.sort(key=lambda file: file.window or 0)
    manifest = manifest.model_copy(
        update={"files": {split: tuple(each) for split, each in files.items()}}
    )
    manifest.save(out)
    own = ", ".join(map(sql.name, (IN_FILE, ROW)))
    summary = database.table(
        f"SUMMARIZE (SELECT * EXCLUDE ({own}) FROM samples LIMIT {SUMMARIZED})"
    )
    warnings = _of_split(options, recipe, manifest)
    return Prepared(manifest, summary, samples.told, warnings)


def _missing(database: sql.Database, recipe: Recipe) -> dict[str, int]:
    """Returns how many values of each dense column are missing, and become 0."""
    with_zeros = [n for n in recipe.dense if recipe.all_numbers[n].missing == "zero"]
    if not with_zeros:
        return {}
    counts = ", ".join(f"count(*) - count({sql.name(name)})" for name in with_zeros)
    (found,) = database.rows(f"SELECT {counts} FROM samples")
    return {n: count for n, count in zip(with_zeros, found, strict=True) if count}


def _of_split(options: Options, recipe: Recipe, manifest: Manifest) -> list[str]:
    """Warns of a split by times that few times make uneven."""
    if options.split != "time" or recipe.columns is None or not recipe.columns.time:
        return []
    held_out = sum(map(manifest.rows, SPLITS[1:]))
    share = held_out / sum(map(manifest.rows, SPLITS))
    warnings = []
    if share > MOST_HELD_OUT:
        warnings.append(
            f"{share:.1%} of the samples are held out, not a tenth: those of one time "
            "are in one split, and many have the last times"
        )
    if not manifest.rows("validation"):
        warnings.append(
            "no sample is in the validation set: there are too few times for three "
            "splits"
        )
    return warnings


def _hashed_tables(recipe: Recipe, options: Options) -> dict[str, int]:
    """Returns the rows of the tables that are hashed whatever their values.

    Raises:
      DataError: if a column cannot be hashed.
    """
    tables = {feature.name: feature.table for feature in recipe.categories}
    hashed = dict.fromkeys(tables.values(), options.max_rows) if options.hashed else {}
    rows_of: dict[str, int] = {}
    for name, rows in options.hash_columns.items():
        if name not in tables:
            raise DataError(
                f"--hash-column {name}: no such column of categories; "
                f"{nearest(name, tables)}"
            )
        rows = options.max_rows if rows is None else rows
        if rows_of.setdefault(tables[name], rows) != rows:
            raise DataError(
                f"--hash-column {name}: {rows:,} rows, but another column of table "
                f"{tables[name]!r} has {rows_of[tables[name]]:,}; give one of them"
            )
    return hashed | rows_of


def _tables_by_frequency(
    recipe: Recipe,
    options: Options,
    with_rows: set[str],
    hashed: Mapping[str, int],
) -> tuple[str, ...]:
    """Returns the tables whose hashes or row numbers get rows by frequency.

    Raises:
      DataError: if a column has a vocabulary, or keys of a dynamic table.
    """
    tables = {feature.name: feature.table for feature in recipe.categories}
    for name in options.by_frequency:
        table = tables.get(name)
        if table not in with_rows or hashed.get(table) == HASHED_KEYS:
            raise DataError(
                f"--by-frequency {name}: must be a column that is hashed to a number "
                "of rows, or has row numbers (features.NAME.rows); vocabularies have "
                "the most frequent values first as it is"
            )
    return tuple(dict.fromkeys(tables[name] for name in options.by_frequency))


def _manifest(
    recipe: Recipe,
    counted: Counted,
    made_from: Mapping[str, Any],
    tables: Tables,
    types: Mapping[str, str],
) -> Manifest:
    """Returns the manifest, complete but for the files."""
    bags = recipe.bags_of_one_id
    features = {
        feature.name: PreparedFeature(
            table=feature.table,
            hotness=bags.get(feature.name, counted.hotness[feature.name]),
            pooling=feature.pooling,
            bags_of_one_id=feature.name in bags,
        )
        for feature in recipe.features
    }
    return Manifest.of(
        made_from=made_from,
        dense=recipe.dense,
        labels=recipe.labels,
        sample_weights=recipe.columns is not None and recipe.columns.weight is not None,
        features=features,
        table_rows=counted.table_rows,
        hashed_tables=counted.hashed_tables,
        by_frequency=tuple(tables.by_frequency),
        vocabularies=counted.vocabularies,
        numbers={n: counted.numbers[n] for n in recipe.numbers},
        columns=recipe.columns,
        text_features=tuple(
            feature.name
            for feature in (recipe.categories if recipe.columns else ())
            if types[feature.name].startswith("VARCHAR")
        ),
    )
