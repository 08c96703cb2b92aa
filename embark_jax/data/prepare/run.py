"""Raw files to prepared data, out of core and in stages: parse, group if samples have a
history, count, encode.

What is finished is on disk, whole or not at all, and is not done again: a run that was
stopped goes on. Memory follows a piece of a file and the vocabularies, not the data.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.files import write_json
from embark_jax.data.manifest import SPLITS, Manifest, PreparedFeature
from embark_jax.data.prepare.delimited import OnBadLine
from embark_jax.data.prepare.encoding import Counted, PlacedPart, count, encode
from embark_jax.data.prepare.grouping import with_histories
from embark_jax.data.prepare.parsing import ParsedPart, SamplePart, parse
from embark_jax.data.prepare.recipe import Extent, Recipe, random_split

Progress = Callable[[str, int, int], None]
"""Is told the stage, how far it is, and where it ends."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user may choose.

    Attributes:
      split: "time" holds out the latest samples, "random" a fifth of all.
      min_count: training samples that a value must have for a row of its own.
      max_rows: a table with more values is hashed to so many rows.
      hashed: whether every table is.
      on_bad_line: "error" stops at the first, "skip" leaves bad lines out and counts
        them.
    """

    split: Literal["time", "random"] = "random"
    min_count: int = 1
    max_rows: int = 40_000_000
    hashed: bool = False
    on_bad_line: OnBadLine = "error"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What a run made.

    Attributes:
      manifest: of the folder.
      skipped: some of the bad lines that are left out, in words.
    """

    manifest: Manifest
    skipped: Sequence[str] = ()


def prepare(
    recipe: Recipe,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    *,
    workers: int | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Prepared:
    """Prepares a data set in the folder ``out``, or goes on with it.

    Args:
      recipe: of the data set.
      out: new, or left by a run with the same data set and options.
      options: of the user.
      made_from: what else makes the samples what they are; kept in the manifest.
      workers: pieces of files at once; None is one a core.
      progress: is told how far it is.

    Raises:
      DataError: if a raw file is bad, or ``out`` holds something else.
    """
    sizes = {raw.path.name: raw.path.stat().st_size for raw in recipe.raw}
    made_from = {**made_from, **dataclasses.asdict(options), "raw": sizes}
    work = out / ".work"
    if finished := claim(out, work, made_from):
        return Prepared(finished)
    workers = workers or os.cpu_count() or 1
    total = sum(sizes.values())
    parsed = list(
        parse(
            recipe,
            work / "parsed",
            options.on_bad_line,
            workers,
            lambda done: progress("parse", done, total),
        )
    )
    samples: Sequence[SamplePart] = parsed
    if recipe.history:
        folder = work / "grouped"
        grouping = functools.partial(progress, "group")
        samples = list(
            with_histories(recipe.history, parsed, folder, workers, grouping)
        )
    parts = _placed(recipe, options, samples)
    counted = _count_once(recipe, parts, out, work, options, workers, progress)
    manifest = _manifest(recipe, counted, made_from, parsed)
    encoded = encode(
        parts,
        out,
        work / "encoded",
        out / manifests.VOCABULARY,
        manifest,
        workers,
        lambda done: progress("encode", done, len(parts)),
    )
    found = list(encoded)
    files = {split: tuple(p[split] for p in found if split in p) for split in SPLITS}
    known = {"parts": files, "vocabularies": manifests.vocabularies(out)}
    manifest = manifest.model_copy(update=known)
    manifest.save(out)
    shutil.rmtree(work)
    examples = [line for part in parsed for line in part.examples]
    return Prepared(manifest, examples)


def claim(out: Path, work: Path, made_from: Mapping[str, Any]) -> Manifest | None:
    """Takes the folder for this data set; gives its manifest if it is finished."""
    made_from, started = json.loads(json.dumps(made_from)), work / "made_from.json"
    finished = None
    if (out / manifests.FILE_NAME).exists():
        finished = manifests.load(out)
        earlier = finished.made_from
    elif started.exists():
        earlier = json.loads(started.read_text())
    elif out.exists() and any(out.iterdir()):
        raise DataError(f"{out}: holds other files; take another --out")
    else:
        write_json(started, earlier := made_from)
    if earlier != made_from:
        keys = sorted(earlier.keys() | made_from.keys())
        changed = [key for key in keys if earlier.get(key) != made_from.get(key)]
        raise DataError(
            f"{out}: was made with another {', '.join(changed)}; take another --out, "
            "or delete it"
        )
    return finished


def _placed(
    recipe: Recipe, options: Options, parts: Sequence[SamplePart]
) -> list[PlacedPart]:
    """Parts with what says in which split each of their samples is.

    Raises:
      DataError: if there are no samples, or their order says nothing of time.
    """
    total = sum(part.rows for part in parts)
    if not total:
        raise DataError(f"{recipe.raw[0].path}: has no samples")
    last_file = sum(part.rows for part in parts if part.file == len(recipe.raw) - 1)
    extent = Extent(total, total - last_file)
    split = random_split if options.split == "random" else recipe.time_split
    if split is None:
        raise DataError("these data are in no order of time; take --split random")

    def splits(samples: pa.Table, start: int):
        return split(samples, start, extent)

    placed, start = [], 0
    for part in parts:
        placed.append(PlacedPart(part, functools.partial(splits, start=start)))
        start += part.rows
    return placed


def _count_once(
    recipe: Recipe,
    parts: Sequence[PlacedPart],
    out: Path,
    work: Path,
    options: Options,
    workers: int,
    progress: Progress,
) -> Counted:
    """What ``count`` finds, now or in an earlier run."""
    done = work / "counted.json"
    if not done.exists():
        counted = count(
            recipe.features,
            parts,
            out / manifests.VOCABULARY,
            min_count=options.min_count,
            max_rows=options.max_rows,
            hashed=options.hashed,
            workers=workers,
            progress=lambda number: progress("count", number, len(parts)),
        )
        write_json(done, counted._asdict())
    return Counted(**json.loads(done.read_text()))


def _manifest(
    recipe: Recipe,
    counted: Counted,
    made_from: Mapping[str, Any],
    parsed: Sequence[ParsedPart],
) -> Manifest:
    """All but the files."""
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
        features=features,
        table_rows=counted.table_rows,
        skipped_lines=sum(part.skipped for part in parsed),
        missing_dense={
            name: count
            for name in recipe.dense
            if (count := sum(part.missing.get(name, 0) for part in parsed))
        },
    )
