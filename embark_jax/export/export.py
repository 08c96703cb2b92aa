"""Writes an export of a run: arrays, a description, and two ways to score."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from embark_jax._base.errors import UserError
from embark_jax._base.files import write_json
from embark_jax._base.storage import local
from embark_jax.config import code_of, copy_path, trusted
from embark_jax.data.prepare.raw_rows import copy_encoding
from embark_jax.export import lookup, reading, score
from embark_jax.export.delta import changed_rows, check, earlier
from embark_jax.export.errors import ExportError as ExportError
from embark_jax.export.reading import (
    DESCRIPTION,
    KEYS,
    VERSION,
    checksum,
    sha256_of,
)
from embark_jax.export.scoring import initial, random_key, serialized_scoring
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run.saved import SavedModel, best_step, read_config


def export_run(
    workdir: Path,
    out: Path,
    step: int | None = None,
    progress: Callable[[Sequence[TableSpec]], Iterable[TableSpec]] = iter,
    since: str | None = None,
    trust_code: bool = False,
) -> bool:
    """Writes the trained model of a run as files that do not need this package.

    ``tables/NAME.safetensors`` holds the rows of one table, ``[rows, dim]`` float32 in
    the order of ids; of a dynamic table, in the order of ``keys``, ``[rows]`` int64 in
    ascending order. ``dense.safetensors`` holds the other parameters by dotted path.
    ``model.json`` describes them, with the SHA-256 of every file, and is written last,
    so that an export that has it is complete. ``score.py`` scores models of this
    package with NumPy alone; ``scoring.jax`` holds ``score(params, tables, dense, ids,
    weights)``, serialized by ``jax.export``, of any model. ``code/`` holds the module
    of a model of the user's own.

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
      trust_code: whether a model of the user's own may run, from the run's ``code/``.

    Returns:
      Whether ``score.py`` knows the model.

    Raises:
      ExportError: if ``out`` holds something, or ``since`` is not of this run.
      ConfigError, CheckpointError: if ``workdir`` holds no usable config or checkpoint,
        or names code that is not trusted.
    """
    workdir, out = local(workdir), local(out)
    if out.exists() and any(out.iterdir()):
        raise ExportError(f"{out}: is not empty, must be a new folder")
    config = read_config(workdir)
    own = ":" in config.model.kind
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
            trusted(workdir, config.model.kind, trust_code)
            with code_of(workdir):
                model = config.model, saved.tables, saved.features, saved.dense_features
                scoring = serialized_scoring(*model, key)
            out.mkdir(parents=True, exist_ok=True)
            (out / "scoring.jax").write_bytes(scoring)
            (out / "score.py").write_text(scoring_script(), "utf-8")
            copy_encoding(workdir, out)
            copy = copy_path(config.model.kind) if own else ""
            if own and (workdir / copy).is_file():
                (out / copy).parent.mkdir(parents=True)
                shutil.copyfile(workdir / copy, out / copy)
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
    description["files"] = {
        path.relative_to(out).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    description["sha256"] = checksum(description)
    write_json(out / DESCRIPTION, description)
    return not own


def scoring_script() -> str:
    """Returns ``score.py`` and what it imports of this package in one file."""
    modules = reading, lookup, score
    imports = {line for module in modules for line in _imports(module)}
    future = "from __future__ import annotations"
    return "\n\n".join(
        [
            f'"""{score.__doc__}"""',
            future,
            "\n".join(sorted(imports - {future})),
            *(inspect.getsource(error) for error in (UserError, ExportError)),
            *map(_body, modules),
        ]
    )


def _imports(module: ModuleType) -> list[str]:
    """Returns a module's imports from other packages."""
    return [
        ast.unparse(node)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        if not getattr(node, "module", "").startswith("embark_jax")
    ]


def _body(module: ModuleType) -> str:
    """Returns a module's text below its imports."""
    source = inspect.getsource(module)
    imports = (ast.Import, ast.ImportFrom)
    nodes = [n for n in ast.parse(source).body if isinstance(n, imports)]
    return "\n".join(source.splitlines()[nodes[-1].end_lineno :]) + "\n"


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
