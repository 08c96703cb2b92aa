"""Turns raw files into prepared data, out of core and in stages: parse, group if
samples have a history, count, encode.

Finished work is on disk, whole or not at all, and is not repeated: a command that was
stopped resumes. Memory grows with a piece of a file and the vocabularies, not with the
data.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pydantic

from embark_jax._base.config import nearest
from embark_jax._base.files import write_json
from embark_jax._base.storage import local
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.manifest import SPLITS, Manifest, PreparedFeature
from embark_jax.data.prepare import report as reports
from embark_jax.data.prepare.claim import RAW, begun, check_same, claim
from embark_jax.data.prepare.counting import Counted, PlacedPart, count
from embark_jax.data.prepare.delimited import OnBadLine
from embark_jax.data.prepare.encoding import encode
from embark_jax.data.prepare.grouping import with_histories
from embark_jax.data.prepare.numbers import in_sample
from embark_jax.data.prepare.parsing import (
    ParsedPart,
    SamplePart,
    check_kinds,
    parse,
)
from embark_jax.data.prepare.raw_contents import (
    check_unchanged,
    contents,
    stamps,
)
from embark_jax.data.prepare.recipe import (
    TIME,
    TRAIN,
    Extent,
    Recipe,
    Split,
    after_times,
    random_split,
    times_of,
)
from embark_jax.data.prepare.report import Report

Progress = Callable[[str, int, int], None]
"""Called with the stage, how far it is, and where it ends."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that a user may choose.

    Attributes:
      split: "time" holds out the latest samples, "random" a fifth of all.
      min_count: number of training samples that a value needs for a row of its own.
      max_rows: most rows of a table; a table with more values is hashed to them.
      hashed: whether every table is hashed.
      hash_columns: columns whose tables are hashed, with the number of rows; None is
        ``max_rows``.
      on_bad_line: "error" stops at the first bad line, "skip" leaves bad lines out and
        counts them.
    """

    split: Literal["time", "random"] = "random"
    min_count: int = 1
    max_rows: int = 40_000_000
    hashed: bool = False
    hash_columns: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    on_bad_line: OnBadLine = "error"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The result of preparing.

    Attributes:
      manifest: the folder's manifest.
      report: what the data hold.
      skipped: some of the bad lines that are left out, in words.
      already: whether an earlier command had prepared them, so that nothing was read.
    """

    manifest: Manifest
    report: Report | None
    skipped: Sequence[str] = ()
    already: bool = False


def prepare(
    recipe: Recipe,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    *,
    workers: int | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Prepared:
    """Prepares a data set in the folder ``out``, or resumes there.

    Args:
      recipe: the recipe of the data set.
      out: a new folder, or one from an earlier command with the same data set and
        options.
      options: the user's options.
      made_from: what else determines the samples; it is kept in the manifest.
      workers: number of pieces processed at once; None takes one per core.
      progress: called with how far the work is.

    Raises:
      DataError: if a raw file is bad, or ``out`` holds something else.
    """
    out = local(out)
    work, before = out / ".work", stamps(recipe.paths)
    recorded = begun(out, work)
    hashed = _hashed_tables(recipe, options)
    made_from = {**made_from, **dataclasses.asdict(options)}
    if not options.hash_columns:  # as in data that earlier versions prepared
        del made_from["hash_columns"]
    check_same(out, recorded, made_from)
    made_from[RAW] = contents(
        recipe.paths,
        None if recorded is None else recorded.get(RAW, {}),
        out,
        functools.partial(progress, "hash"),
    )
    if finished := claim(out, work, made_from):
        return Prepared(finished, _read_report(out), already=True)
    workers = workers or os.cpu_count() or 1
    total = sum(raw.path.stat().st_size for raw in recipe.raw)
    parsed = list(
        parse(
            recipe,
            work / "parsed",
            options.on_bad_line,
            workers,
            lambda done: progress("parse", done, total),
        )
    )
    check_unchanged(recipe.paths, before, out)
    if recipe.columns is not None:
        check_kinds(recipe, parsed)
    samples: Sequence[SamplePart] = parsed
    if recipe.history:
        folder = work / "grouped"
        grouping = functools.partial(progress, "group")
        samples = list(
            with_histories(recipe.history, parsed, folder, workers, grouping)
        )
    parts = _placed(recipe, options, samples)
    counted = _count_once(recipe, parts, out, work, options, hashed, workers, progress)
    manifest = _manifest(recipe, counted, made_from, parsed)
    encoded = encode(
        parts,
        out,
        work / "encoded",
        manifest,
        workers,
        lambda done: progress("encode", done, len(parts)),
    )
    found = list(encoded)
    files = {split: tuple(p[split] for p in found if split in p) for split in SPLITS}
    if not files[SPLITS[TRAIN]]:
        raise DataError(
            f"{recipe.raw[0].path}: no sample is in the training split; take another "
            "--split, or delete " + str(out)
        )
    manifest = manifest.model_copy(update={"parts": files})
    write_json(out / reports.FILE_NAME, counted.report.model_dump(mode="json"))
    manifest.save(out)
    shutil.rmtree(work)
    examples = [line for part in parsed for line in part.examples]
    return Prepared(manifest, counted.report, examples)


def _read_report(out: Path) -> Report | None:
    """The report of prepared data; None for data of versions without reports."""
    path = out / reports.FILE_NAME
    if not path.exists():
        return None
    try:
        return Report.model_validate_json(path.read_bytes())
    except pydantic.ValidationError as error:
        raise DataError(
            f"{path}: is damaged ({error.errors()[0]['msg']}); {manifests.MEND}"
        ) from None


def _placed(
    recipe: Recipe, options: Options, parts: Sequence[SamplePart]
) -> list[PlacedPart]:
    """Parts with the function that splits their samples.

    Raises:
      DataError: if there are no samples, or they are not in the order of time.
    """
    total = sum(part.rows for part in parts)
    if not total:
        raise DataError(f"{recipe.raw[0].path}: has no samples")
    last_file = sum(part.rows for part in parts if part.file == len(recipe.raw) - 1)
    extent = Extent(total, total - last_file)
    split = random_split if options.split == "random" else recipe.time_split
    if options.split == "time" and recipe.columns and recipe.columns.time:
        split = _by_time(parts, total)
    if split is None:
        raise DataError("these data are not in the order of time; take --split random")

    def splits(samples: pa.Table, start: int):
        return split(samples, start, extent)

    placed, start = [], 0
    for part in parts:
        placed.append(PlacedPart(part, start, functools.partial(splits, start=start)))
        start += part.rows
    return placed


def _by_time(parts: Sequence[SamplePart], total: int) -> Split:
    """Holds out the latest tenth: its first half is the validation set, the second the
    test set. Samples of one time are in one split."""
    times, kinds, start = [], set(), 0
    for part in parts:
        sampled, samples = in_sample(start, part.rows, total), part.read()
        times.append(times_of(samples)[sampled])
        kinds.add(samples.schema.field(TIME).type)
        start += part.rows
    if len(kinds) > 1 and not kinds <= {pa.int64(), pa.float64()}:
        names = ", ".join(sorted(map(str, kinds)))
        raise DataError(f"the column of times has several types ({names}), must be one")
    ordered = np.sort(np.concatenate(times))  # NumPy's quantiles are floats
    last = len(ordered) - 1
    return after_times(*(ordered[-(-last * share // 20)] for share in (18, 19)))


def _count_once(
    recipe: Recipe,
    parts: Sequence[PlacedPart],
    out: Path,
    work: Path,
    options: Options,
    hashed: Mapping[str, int],
    workers: int,
    progress: Progress,
) -> Counted:
    """What ``count`` found, now or in an earlier command."""
    done = work / "counted.json"
    if not done.exists():
        counted = count(
            recipe,
            parts,
            out,
            min_count=options.min_count,
            max_rows=options.max_rows,
            hashed=hashed,
            workers=workers,
            progress=lambda number: progress("count", number, len(parts)),
        )
        write_json(done, counted.model_dump(mode="json"))
    return Counted.model_validate_json(done.read_bytes())


def _hashed_tables(recipe: Recipe, options: Options) -> dict[str, int]:
    """Returns the rows of the tables that are hashed whatever their values.

    Raises:
      DataError: if a column cannot be hashed.
    """
    tables = {f.name: f.table for f in recipe.features if f.name not in recipe.numbers}
    hashed = dict.fromkeys(tables.values(), options.max_rows) if options.hashed else {}
    asked: dict[str, int] = {}
    for name, rows in options.hash_columns.items():
        if name not in tables:
            raise DataError(
                f"--hash-column {name}: no such column of categories; "
                f"{nearest(name, tables)}"
            )
        rows = options.max_rows if rows is None else rows
        if asked.setdefault(tables[name], rows) != rows:
            raise DataError(
                f"--hash-column {name}: {rows:,} rows, but another column of table "
                f"{tables[name]!r} has {asked[tables[name]]:,}; give one of them"
            )
    return hashed | asked


def _manifest(
    recipe: Recipe,
    counted: Counted,
    made_from: Mapping[str, Any],
    parsed: Sequence[ParsedPart],
) -> Manifest:
    """The manifest, complete but for the files."""
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
        vocabularies=counted.vocabularies,
        numbers={n: counted.numbers[n] for n in recipe.numbers},
        columns=recipe.columns,
        text_features=_text_features(parsed[0]) if recipe.columns else (),
        raw_rows=sum(part.raw_rows for part in parsed),
        skipped_lines=sum(part.skipped for part in parsed),
        missing_dense={
            name: count
            for name in recipe.dense
            if name in with_zeros
            if (count := sum(part.missing.get(name, 0) for part in parsed))
        },
    )


def _text_features(part: SamplePart) -> tuple[str, ...]:
    def is_text(kind: pa.DataType) -> bool:
        return pa.types.is_string(kind.value_type if pa.types.is_list(kind) else kind)

    return tuple(field.name for field in part.read().schema if is_text(field.type))
