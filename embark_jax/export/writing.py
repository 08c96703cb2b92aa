"""Writes an export of a run: arrays, a description, and two ways to score."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from embark_jax._base.bucket_copy import written
from embark_jax.config import code_of, trusted
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.prepare.raw_rows import copy_encoding
from embark_jax.export.arrays import save_arrays
from embark_jax.export.delta import changed_rows, check, earlier
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.description import (
    DENSE,
    FILE_NAME,
    JAX,
    Description,
    ExportedFeature,
    ExportedTable,
    table_file,
)
from embark_jax.export.jax_layers import serialized
from embark_jax.export.onnx_graph import require_jax2onnx, write_graphs
from embark_jax.export.run_scorer import dense_params, initial_rows, lookup_table
from embark_jax.plans.options import RowFormat
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run.folder import RunFolder
from embark_jax.run.saved import SavedModel, best_step, read_config


def export_run(
    workdir: str | Path,
    out: str | Path,
    step: int | None = None,
    progress: Callable[[Sequence[TableSpec]], Iterable[TableSpec]] = iter,
    since: str | None = None,
    trust_code: bool = False,
    row_format: RowFormat = "float32",
    onnx: bool = True,
) -> None:
    """Writes the trained model of a run as files that do not need this package.

    ``tables/NAME.safetensors`` holds the ``rows`` of one table, ``[rows, dim]`` float32
    in the order of ids; of a dynamic table, in the order of ``keys``, ``[rows]`` int64
    in ascending order. ``dense.safetensors`` holds the other parameters by dotted path.
    ``model.onnx`` is the graph of the dense layers with these parameters, from
    embeddings to logits; ``dense.jax`` is the same, as ``jax.export`` serializes it,
    with the parameters as arguments. ``model.json`` describes all, with the SHA-256 of
    every file, and is written last, so that an export that has it is complete. Nothing
    of an export is code of the user's own.

    One table at a time is in host memory; a dynamic one, twice. Neither mesh nor data
    are needed.

    Args:
      workdir: folder of the run, which may be in a bucket.
      out: folder to write, which may be in a bucket; it must be empty or not exist.
      step: step of the checkpoint; None takes the newest, or the best of a run that
        stopped early.
      progress: iterates over the tables, and may show how far it is.
      since: step, or folder of a checkpoint or export: writes only the rows that have
        changed since then, each table's ``keys`` (or row numbers) and rows, and the
        dense parameters; ``model.json`` says ``since``.
      trust_code: whether a model of the user's own may run, from the run's ``code/``.
      row_format: "int8" writes rows as int8, and ``scales`` ``[rows]`` float32: a value
        is an integer times its row's scale.
      onnx: whether to write ``model.onnx``.

    Raises:
      FileExistsError: if ``out`` holds something.
      ExportError: if ``since`` is not of this run, jax2onnx is not installed, or it has
        no form of an operation of the model.
      ConfigError, CheckpointError: if ``workdir`` holds no usable config or checkpoint,
        or names code that is not trusted.
    """
    run = RunFolder(workdir)
    workdir = run.read()
    config = read_config(workdir)
    trusted(workdir, config.model.kind, trust_code)
    if onnx and since is None:
        require_jax2onnx()
    if step is None:
        step = best_step(workdir)
    saved = SavedModel(run.checkpoints, step)
    then = earlier(since, run.checkpoints) if since else None
    with code_of(workdir), written(out, last=FILE_NAME) as out:
        if then is not None:
            check(saved, then)
        model = DenseModel(
            config.model, saved.tables, saved.features, saved.dense_features
        )
        params = dense_params(saved, model)
        (out / "tables").mkdir(parents=True, exist_ok=True)
        save_arrays(out / DENSE, params)
        if then is None:
            if onnx:
                write_graphs(out, model, params)
            (out / JAX).write_bytes(serialized(model))
            copy_encoding(workdir, out)
        for table in progress(saved.tables):
            rows = (
                changed_rows(saved, then, table) if then else lookup_table(saved, table)
            )
            save_arrays(out / table_file(table.name), rows.arrays(row_format))
        Description(
            name=config.name,
            step=saved.step,
            since=then.step if then else None,
            model=config.model.model_dump(mode="json"),
            dense_features=saved.dense_features,
            row_format=row_format,
            features={feature.name: _exported(feature) for feature in saved.features},
            tables={
                table.name: ExportedTable(
                    rows=None if table.is_dynamic else table.rows,
                    dim=table.dim,
                    initial=initial_rows(saved, table),
                )
                for table in saved.tables
            },
            files=tuple(
                HashedFile.of(out, path.relative_to(out).as_posix())
                for path in sorted(out.rglob("*"))
                if path.is_file()
            ),
        ).save(out)


def _exported(feature: FeatureSpec) -> ExportedFeature:
    fields = dataclasses.asdict(feature)
    del fields["name"]
    return ExportedFeature(**fields)
