"""Writes an export of a run: arrays, a description, and two ways to score."""

from __future__ import annotations

import contextlib
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
from embark_jax.export import lookup, score
from embark_jax.export.delta import ExportError as ExportError
from embark_jax.export.delta import changed_rows, check, earlier
from embark_jax.export.lookup import KEYS
from embark_jax.export.scoring import initial, random_key, serialized_scoring
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run.saved import SavedModel, best_step, read_config

VERSION = 1
NUMPY = "import numpy as np\n"
LOOKUP = (
    "from embark_jax.export.lookup import "
    "apply_delta, embed, read_safetensors, read_table\n"
)
"""The line of ``score.py`` that the text of ``lookup`` takes the place of."""


def export_run(
    workdir: Path,
    out: Path,
    step: int | None = None,
    progress: Callable[[Sequence[TableSpec]], Iterable[TableSpec]] = iter,
    since: str | None = None,
) -> bool:
    """Writes the trained model of a run as files that do not need this package.

    ``tables/NAME.safetensors`` holds the rows of one table, ``[rows, dim]`` float32 in
    the order of ids; of a dynamic table, in the order of ``keys``, ``[rows]`` int64 in
    ascending order. ``dense.safetensors`` holds the other parameters by dotted path.
    ``model.json`` describes them and is written last, so that an export that has it is
    complete. ``score.py`` scores models of this package with NumPy alone;
    ``scoring.jax`` holds ``score(params, tables, dense, ids, weights)``, serialized by
    ``jax.export``, of any model. ``code/`` holds the modules that the config names.

    One table at a time is in host memory; a dynamic one, twice. Neither mesh nor data
    are needed.

    Args:
      workdir: folder of the run.
      out: folder to write; it must be empty or not exist.
      step: step of the checkpoint; None takes the newest, or the best of a run that
        stopped early.
      progress: iterates over the tables, and may show how far it is.
      since: step, or folder of a checkpoint or export: writes only the rows that have
        changed since then, each table's ``keys`` (or row numbers) and rows, and the
        dense parameters; ``model.json`` says ``since``.

    Returns:
      Whether ``score.py`` knows the model.

    Raises:
      ExportError: if ``out`` holds something, or ``since`` is not of this run.
      ConfigError, CheckpointError: if ``workdir`` holds no usable config or checkpoint.
    """
    workdir, out = Path(workdir), Path(out)
    if out.exists() and any(out.iterdir()):
        raise ExportError(f"{out}: is not empty, must be a new folder")
    config = read_config(workdir)
    if step is None:
        step = best_step(workdir)
    checkpoints = workdir / "checkpoints"
    with (
        SavedModel(checkpoints, step) as saved,
        earlier(since, checkpoints) if since else contextlib.nullcontext() as then,
    ):
        key = random_key(saved.seed)
        if then is not None:
            check(saved, then)
        else:
            with code_of(workdir):
                model = config.model, saved.tables, saved.features, saved.dense_features
                scoring = serialized_scoring(*model, key)
            out.mkdir(parents=True, exist_ok=True)
            (out / "scoring.jax").write_bytes(scoring)
            (out / "score.py").write_text(scoring_script(), "utf-8")
            copy_encoding(workdir, out)
            if (workdir / CODE).is_dir():
                shutil.copytree(workdir / CODE, out / CODE)
        (out / "tables").mkdir(parents=True, exist_ok=True)
        _save(saved.dense(), out / "dense.safetensors")
        for table in progress(saved.tables):
            arrays = changed_rows(saved, then, table) if then else _rows(saved, table)
            _save(arrays, out / _file(table))
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
                table.name: {
                    "rows": None if table.is_dynamic else table.rows,
                    "dim": table.dim,
                    "file": _file(table),
                }
                | ({"initial": initial(table, key)} if table.is_dynamic else {})
                for table in saved.tables
            },
            "dense": "dense.safetensors",
        } | ({"since": then.step} if then else {})
    (out / "model.json").write_text(json.dumps(description, indent=1) + "\n", "utf-8")
    return ":" not in config.model.kind


def scoring_script() -> str:
    """Returns ``score.py`` in one file."""
    script = Path(score.__file__).read_text("utf-8")
    _, _, its_lookup = Path(lookup.__file__).read_text("utf-8").partition(NUMPY)
    before, _, after = script.partition(LOOKUP)
    return before + its_lookup.lstrip("\n") + after


def _rows(saved: SavedModel, table: TableSpec) -> dict[str, np.ndarray]:
    """Returns the contents of a table's file, with all its rows."""
    rows = saved.table(table)
    if not table.is_dynamic:
        return {table.name: rows}
    keys = saved.keys(table)
    order = np.argsort(keys)
    return {KEYS: keys[order], table.name: rows[order]}


def _save(arrays: dict[str, np.ndarray], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    save_file(arrays, path)
    path.chmod(mode)  # the library makes the file readable to its owner only


def _file(table: TableSpec) -> str:
    return f"tables/{table.name}.safetensors"


def _without_name(feature: FeatureSpec) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(feature).items() if k != "name"}
