"""Turns raw files into prepared data by queries, in stages: samples, count, encode.

The folder appears when all is done. What exceeds the memory of queries goes to disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embark_jax._base.agreement import EXTENSION, differences, parts
from embark_jax._base.files import new_folder
from embark_jax._base.object_store import local
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.columns import Preparation
from embark_jax.data.manifest import SPLITS, Manifest
from embark_jax.data.pipeline import Progress, silent
from embark_jax.data.table_values import EXTENDS, TableValues
from embark_jax.prepare import sql
from embark_jax.prepare.count import describe, known_tables
from embark_jax.prepare.encode import encode
from embark_jax.prepare.histories import write_events
from embark_jax.prepare.recipe import Recipe, Work
from embark_jax.prepare.samples import Samples, make_samples
from embark_jax.prepare.values import define


def prepare(
    recipe: Recipe,
    out: Path,
    options: Preparation,
    made_from: Mapping[str, Any],
    progress: Progress = silent,
    extend: Path | None = None,
) -> tuple[Manifest, Samples]:
    """Prepares a data set in the folder ``out``.

    Args:
      recipe: the recipe of the data set.
      out: a new or empty folder.
      options: how samples are split and get rows.
      made_from: what else determines the samples; it is kept in the manifest.
      progress: is told how far the work is.
      extend: folder of earlier data, whose rows and transforms are kept.

    Returns:
      The folder's manifest, and what is known of its samples.

    Raises:
      DataError: if a raw file is bad, ``out`` holds something, or the earlier data were
        prepared otherwise.
    """
    raw = {str(path): path.stat().st_size for path in recipe.paths}
    made_from = {**made_from, **options_of(options), "raw": raw}
    earlier = None
    if extend is not None:
        earlier = _earlier(extend, recipe, made_from)
        made_from[EXTENDS] = earlier.manifest.digest()
    known = known_tables(recipe, options, earlier)
    with new_folder(out) as folder, sql.Database(folder / ".work") as database:
        define(database)
        work = Work(database, recipe, options, folder, made_from, progress, earlier)
        samples = make_samples(work)
        manifest = describe(work, samples, known)
        ranges = None
        if recipe.history is not None:
            total = sum(samples.rows)
            events, ranges = write_events(work, recipe.history, manifest, total)
            manifest = manifest.model_copy(update={"events": events})
        manifest = encode(work, samples, manifest, ranges)
        if not manifest.files[SPLITS[0]]:
            raise DataError(
                f"{recipe.raw[0].path}: no sample is in the training split; take "
                "another split"
            )
        manifest.save(folder)
    return manifest, samples


def options_of(options: Preparation) -> dict[str, Any]:
    """Returns what is said of samples, splits and rows, but not of columns."""
    return options.model_dump(mode="json", include={*Preparation.model_fields})


def _earlier(folder: Path, recipe: Recipe, made_from: Mapping[str, Any]) -> TableValues:
    """Opens prepared data that new ones extend: a value that has a row there keeps it.

    Raises:
      DataError: if they are not wholly prepared, or otherwise than the new ones.
    """
    manifest = manifests.load(local(folder))
    features = [feature.name for feature in recipe.features]
    features += recipe.history.features if recipe.history else ()
    names = {"dense": recipe.dense, "features": features, "labels": recipe.labels}
    now = json.loads(json.dumps({**made_from, **names}))
    before = {**manifest.made_from, **manifest.column_names}
    theirs, ours = parts(before, EXTENSION), parts(now, EXTENSION)
    if changed := differences(theirs, ours, "there"):
        raise DataError(
            f"--extend {folder}: was prepared otherwise ({'; '.join(changed)}), must "
            f"agree in {', '.join(EXTENSION)}, so that its rows keep their meaning; "
            "prepare with its options, or anew without --extend"
        )
    return TableValues(local(folder), manifest)
