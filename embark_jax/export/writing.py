"""Writes an export of a run: arrays, a description, and two ways to score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from embark_jax._base.bucket_copy import written
from embark_jax._base.object_store import file_system_or_bucket
from embark_jax.data.encoding import copy_encoding
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import Feature
from embark_jax.export.exported import (
    DENSE,
    FILE_NAME,
    ExportedModel,
    ExportedTable,
    jax_file,
    table_file,
)
from embark_jax.export.jax_layers import serialized
from embark_jax.export.lookup import write_arrays
from embark_jax.export.onnx_graph import require_jax2onnx, write_graphs
from embark_jax.export.trained import TrainedModel
from embark_jax.plans.tables import TableSpec


def export_run(
    workdir: str | Path,
    out: str | Path,
    step: int | None = None,
    progress: Callable[[Sequence[TableSpec]], Iterable[TableSpec]] = iter,
    trust_code: bool = False,
    onnx: bool = True,
) -> int:
    """Writes the trained model of a run as files that do not need this package.

    ``tables/NAME.safetensors`` holds the ``rows`` of one table, ``[rows, dim]`` float32
    in the order of ids; of a dynamic table, in the order of ``keys``, ``[rows]`` int64
    in ascending order. ``dense.safetensors`` holds the other parameters by dotted path.
    ``model.onnx`` is the graph of the dense layers with these parameters, from
    embeddings to logits; ``dense.jax`` is the same, as ``jax.export`` serializes it,
    with the parameters as arguments. Towers have files of their names. ``model.json``
    describes all, with the checksum of every file, and is written last, so that an
    export that has it is complete. Nothing of an export is code of the user's own.

    One table at a time is in host memory; a dynamic one, twice. Neither mesh nor data
    are needed.

    Args:
      workdir: folder of the run, which may be in a bucket.
      out: folder to write, which may be in a bucket; it must be empty or not exist.
      step: step of the checkpoint; None takes the best of a run that stopped early, or
        the newest.
      progress: iterates over the tables, and may show how far it is.
      trust_code: whether a model of the user's own may run.
      onnx: whether to write ``model.onnx``.

    Returns:
      The step that was exported.

    Raises:
      StorageError: if ``out`` is neither on a file system nor in a bucket.
      FileExistsError: if ``out`` holds something.
      ExportError: if jax2onnx is not installed, or has no form of an operation of the
        model.
      ConfigError, CheckpointError: if ``workdir`` holds no usable config or checkpoint,
        or names code that is not trusted.
    """
    out = file_system_or_bucket(out)
    model = TrainedModel(workdir, step, trust_code)
    if onnx:
        require_jax2onnx()
    with written(out, last=FILE_NAME) as folder:
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        write_arrays(folder / DENSE, model.params)
        if onnx:
            write_graphs(folder, model.dense, model.params)
        for method in model.dense.methods:
            (folder / jax_file(method)).write_bytes(serialized(model.dense, method))
        copy_encoding(model.run.folder, folder)
        for table in progress(model.tables):
            model.table(table).write(folder / table_file(table.name))
        ExportedModel(
            name=model.run.config.name,
            step=model.step,
            model=model.run.config.model.model_dump(mode="json"),
            item=model.dense.item,
            ranks_items=model.dense.ranks_items,
            dense_features=model.dense_features,
            features={f.name: Feature(**f.reading) for f in model.features},
            tables={
                table.name: ExportedTable(
                    rows=None if table.is_dynamic else table.rows, dim=table.dim
                )
                for table in model.tables
            },
            files=tuple(
                HashedFile.of(folder, path.relative_to(folder).as_posix())
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            ),
        ).write(folder / FILE_NAME)
    return model.step
