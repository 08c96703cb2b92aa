"""Turns raw files into prepared data, out of core and in stages: parse, group if
samples have a history, count, encode.

The folder appears when all is done. Memory grows with a chunk of a file and the
vocabularies, not with the data.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embark_jax._base.config import nearest
from embark_jax._base.files import new_folder
from embark_jax.data.batch import DataError
from embark_jax.data.manifest import SPLITS, Manifest, PreparedFeature
from embark_jax.data.pipeline import Workers
from embark_jax.data.prepare.column_report import Report
from embark_jax.data.prepare.counting import (
    Counted,
    SplitChunk,
    count,
    numbered_tables,
)
from embark_jax.data.prepare.encoding import encode
from embark_jax.data.prepare.engine_files import Vocabularies
from embark_jax.data.prepare.extension import EXTENDS, Earlier
from embark_jax.data.prepare.numbers import in_sample
from embark_jax.data.prepare.parsing import (
    ParsedChunk,
    SampleChunk,
    check_kinds,
    parse,
)
from embark_jax.data.prepare.recipe import (
    TIME,
    TRAIN,
    Extent,
    Recipe,
    Split,
    after_times,
    all_train,
    random_split,
    time_windows,
    times_of,
)
from embark_jax.data.prepare.user_groups import with_histories
from embark_jax.data.prepare.values import ValueRule
from embark_jax.data.prepare.vocabulary import is_text
from embark_jax.plans.options import OnBadLine, SplitBy
from embark_jax.plans.tables import HASHED_KEYS

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
      report: what the data hold.
      skipped: some of the bad lines that are left out, in words.
      warnings: what is probably a mistake, and what to do about it.
    """

    manifest: Manifest
    report: Report
    skipped: Sequence[str] = ()
    warnings: Sequence[str] = ()


def prepare(
    recipe: Recipe,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    workers: Workers | None = None,
    extend: Path | None = None,
    vocabulary: Path | None = None,
) -> Prepared:
    """Prepares a data set in the folder ``out``.

    Args:
      recipe: the recipe of the data set.
      out: a new or empty folder.
      options: the user's options.
      made_from: what else determines the samples; it is kept in the manifest.
      workers: threads, which tell how far the work is; None takes one per core.
      extend: folder of earlier data, whose rows and transforms are kept.
      vocabulary: folder of values that were counted elsewhere, as ``Vocabularies``
        describes it.

    Raises:
      DataError: if a raw file is bad, ``out`` holds something, or the earlier data were
        prepared otherwise.
    """
    workers = workers or Workers()
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
    vocabularies = None
    if vocabulary is not None:
        tables = {f.table for f in recipe.features if f.name not in recipe.numbers}
        vocabularies = Vocabularies(vocabulary, sorted(tables - hashed.keys()))
        made_from["vocabularies"] = str(vocabulary)
    with new_folder(out) as folder:
        return _prepare(
            recipe, folder, options, made_from, workers, hashed, earlier, vocabularies
        )


def _prepare(
    recipe: Recipe,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    workers: Workers,
    hashed: Mapping[str, int],
    earlier: Earlier | None,
    vocabularies: Vocabularies | None,
) -> Prepared:
    """Fills a new folder."""
    by_frequency = _tables_by_frequency(recipe, options, hashed)
    work = out / ".work"
    parsed = list(parse(recipe, work / "parsed", options.on_bad_line, workers))
    if recipe.columns is not None:
        check_kinds(recipe, parsed)
    samples: Sequence[SampleChunk] = parsed
    if recipe.history:
        folder = work / "grouped"
        samples = list(with_histories(recipe.history, parsed, folder, workers))
    chunks = _split(recipe, options, samples)
    counted = count(
        recipe,
        chunks,
        out,
        min_count=options.min_count,
        max_rows=options.max_rows,
        hashed=hashed,
        by_frequency=by_frequency,
        earlier=earlier,
        vocabularies=(
            vocabularies.read(ValueRule(), options.max_rows) if vocabularies else {}
        ),
        workers=workers,
    )
    manifest = _manifest(recipe, counted, made_from, by_frequency, parsed)
    # Of time windows each is evaluated before it is trained on.
    in_windows = options.window is not None or options.split == "none"
    held_out = SPLITS if in_windows else SPLITS[1:]
    encoded = list(encode(chunks, out, manifest, held_out, workers))
    files = {
        split: tuple(
            sorted(
                (file for files in encoded for file in files.get(split, ())),
                key=lambda file: file.window or 0,
            )
        )
        for split in SPLITS
    }
    if not files[SPLITS[TRAIN]]:
        raise DataError(
            f"{recipe.raw[0].path}: no sample is in the training split; take another "
            "--split"
        )
    manifest = manifest.model_copy(update={"files": files})
    manifest.save(out)
    shutil.rmtree(work)
    examples = [line for chunk in parsed for line in chunk.examples]
    warnings = [*counted.report.warnings(), *_of_split(options, recipe, manifest)]
    return Prepared(manifest, counted.report, examples, warnings)


def _split(
    recipe: Recipe, options: Options, samples: Sequence[SampleChunk]
) -> list[SplitChunk]:
    """Returns the chunks with the function that splits their samples.

    Raises:
      DataError: if there are no samples, or they are not in the order of time.
    """
    total = sum(chunk.rows for chunk in samples)
    if not total:
        raise DataError(f"{recipe.raw[0].path}: has no samples")
    last_file = sum(c.rows for c in samples if c.file == len(recipe.raw) - 1)
    extent = Extent(total, total - last_file)
    splits_by = {"random": random_split, "none": all_train, "time": recipe.time_split}
    split = splits_by[options.split]
    if options.split == "time" and recipe.columns and recipe.columns.time:
        split = _by_time(samples, total)
    if split is None:
        raise DataError("these data are not in the order of time; take --split random")
    windows = None
    if options.window is not None:
        if not (recipe.columns and recipe.columns.time):
            raise DataError(
                "--window cuts the data by their column of times, must come with one: "
                "time=NAME"
            )
        windows = functools.partial(time_windows, length=options.window)
    chunks, start = [], 0
    for chunk in samples:
        splits = functools.partial(split, start=start, extent=extent)
        chunks.append(SplitChunk(chunk, start, splits, windows))
        start += chunk.rows
    return chunks


def _by_time(chunks: Sequence[SampleChunk], total: int) -> Split:
    """Holds out the latest tenth: its first half is the validation set, the second the
    test set. Samples of one time are in one split: where few times make them the same,
    the last time is the test set, and the one before it the validation set."""
    times, kinds = [], set()
    start = 0
    for chunk in chunks:
        sampled, samples = in_sample(start, chunk.rows, total), chunk.read()
        times.append(times_of(samples)[sampled])
        kinds.add(samples.schema.field(TIME).type)
        start += chunk.rows
    if len(kinds) > 1 and not kinds <= {pa.int64(), pa.float64()}:
        names = ", ".join(sorted(map(str, kinds)))
        raise DataError(f"the column of times has several types ({names}), must be one")
    ordered = np.sort(np.concatenate(times))  # NumPy's quantiles are floats
    last = len(ordered) - 1
    validation, test = (ordered[-(-last * share // 20)] for share in (18, 19))
    before = ordered[ordered < test]
    if validation == test and len(before) and before[0] < before[-1]:
        validation = before[-1]
    return after_times(validation, test)


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
    tables = {f.name: f.table for f in recipe.features if f.name not in recipe.numbers}
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
    recipe: Recipe, options: Options, hashed: Mapping[str, int]
) -> tuple[str, ...]:
    """Returns the tables whose hashes or row numbers get rows by frequency.

    Raises:
      DataError: if a column has a vocabulary, or keys of a dynamic table.
    """
    numbered = numbered_tables(recipe)
    fixed = {table for table, rows in hashed.items() if rows != HASHED_KEYS}
    tables = {f.name: f.table for f in recipe.features if f.name not in recipe.numbers}
    for name in options.by_frequency:
        if tables.get(name) not in fixed | numbered.keys():
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
    by_frequency: tuple[str, ...],
    parsed: Sequence[ParsedChunk],
) -> Manifest:
    """Returns the manifest, complete but for the files."""
    bags = recipe.bags_of_one_id
    with_zeros = [n for n, c in recipe.all_numbers.items() if c.missing == "zero"]
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
        by_frequency=by_frequency,
        vocabularies=counted.vocabularies,
        numbers={n: counted.numbers[n] for n in recipe.numbers},
        columns=recipe.columns,
        text_features=tuple(
            field.name
            for field in (parsed[0].read().schema if recipe.columns else ())
            if is_text(field.type)
        ),
        raw_rows=sum(chunk.raw_rows for chunk in parsed),
        skipped_lines=sum(chunk.skipped for chunk in parsed),
        missing_dense={
            name: count
            for name in recipe.dense
            if name in with_zeros
            if (count := sum(chunk.missing.get(name, 0) for chunk in parsed))
        },
    )
