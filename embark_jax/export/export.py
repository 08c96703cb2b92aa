"""Writes an export of a run: arrays, a description, and two ways to score."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from embark_jax.config import CODE, code_of
from embark_jax.data.prepare.raw_rows import copy_encoding
from embark_jax.export import score
from embark_jax.export.scoring import serialized_scoring
from embark_jax.tables import FeatureSpec, TableSpec
from embark_jax.train.saved import SavedModel, best_step, read_config

VERSION = 1


class ExportError(ValueError):
    """A run that cannot be exported, or a folder that cannot take it."""


def export_run(
    workdir: Path,
    out: Path,
    step: int | None = None,
    progress: Callable[[Sequence[TableSpec]], Iterable[TableSpec]] = iter,
) -> bool:
    """Writes the trained model of a run as files that do not need this package.

    ``tables/NAME.safetensors`` holds the rows of one table, ``[rows, dim]`` float32 in
    the order of ids; ``dense.safetensors`` holds the other parameters by dotted path.
    ``model.json`` describes them and is written last, so that an export that has it is
    complete. ``score.py`` scores models of this package with NumPy alone;
    ``scoring.jax`` holds ``score(params, tables, dense, ids, weights)``, serialized by
    ``jax.export``, of any model. ``code/`` holds the modules that the config names.

    One table at a time is in host memory. Neither mesh, plan nor data are needed.

    Args:
      workdir: folder of the run.
      out: folder to write; it must be empty or not exist.
      step: step of the checkpoint; None takes the newest, or the best of a run that
        stopped early.
      progress: iterates over the tables, and may show how far it is.

    Returns:
      Whether ``score.py`` knows the model.

    Raises:
      ExportError: if ``out`` holds something.
      ConfigError, CheckpointError: if ``workdir`` holds no usable config or checkpoint.
    """
    workdir, out = Path(workdir), Path(out)
    if out.exists() and any(out.iterdir()):
        raise ExportError(f"{out}: is not empty, must be a new folder")
    config = read_config(workdir)
    if step is None:
        step = best_step(workdir)
    with SavedModel(workdir / "checkpoints", step) as saved, code_of(workdir):
        model = (config.model, saved.tables, saved.features, saved.dense_features)
        scoring = serialized_scoring(*model)
        (out / "tables").mkdir(parents=True, exist_ok=True)
        (out / "scoring.jax").write_bytes(scoring)
        _save(saved.dense(), out / "dense.safetensors")
        for table in progress(saved.tables):
            _save({table.name: saved.table(table)}, out / _file(table))
        shutil.copyfile(score.__file__, out / "score.py")
        copy_encoding(workdir, out)
        if (workdir / CODE).is_dir():
            shutil.copytree(workdir / CODE, out / CODE)
        description = {
            "version": VERSION,
            "name": config.name,
            "step": saved.step,
            "model": config.model.model_dump(mode="json"),
            "dense_features": saved.dense_features,
            "features": {
                feature.name: _without_name(feature) for feature in saved.features
            },
            "tables": {
                table.name: {"rows": table.rows, "dim": table.dim, "file": _file(table)}
                for table in saved.tables
            },
            "dense": "dense.safetensors",
        }
    (out / "model.json").write_text(json.dumps(description, indent=1) + "\n", "utf-8")
    return ":" not in config.model.kind


def _save(arrays: dict[str, np.ndarray], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    save_file(arrays, path)
    path.chmod(mode)  # the library makes the file readable to its owner only


def _file(table: TableSpec) -> str:
    return f"tables/{table.name}.safetensors"


def _without_name(feature: FeatureSpec) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(feature).items() if k != "name"}
