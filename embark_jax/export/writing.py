"""Writes an export of a run: arrays, a description, and two ways to score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from embark_jax._base.bucket_copy import local_copy, written
from embark_jax._base.storage import file_system_or_bucket
from embark_jax.config import code_of, trusted
from embark_jax.data import TableValues
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.prepare.raw_rows import FOLDER as ENCODING
from embark_jax.data.prepare.raw_rows import copy_encoding, read_encoding, write_added
from embark_jax.export.arrays import save_arrays
from embark_jax.export.chain import Chain, is_chain
from embark_jax.export.delta import changed_rows, check, earlier, since_last
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.description import (
    DENSE,
    FILE_NAME,
    JAX,
    Description,
    ExportedFeature,
    ExportedTable,
    ExportError,
    table_file,
)
from embark_jax.export.jax_layers import serialized
from embark_jax.export.onnx_graph import require_jax2onnx, write_graphs
from embark_jax.export.run_scorer import dense_params, initial_rows, lookup_table
from embark_jax.plans.options import RowFormat
from embark_jax.plans.tables import TableSpec
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
    append: bool = False,
) -> Path:
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
      append: whether ``out`` is a chain of exports, which gets one more: a whole one if
        it has none, or else what has changed since the last of them.

    Returns:
      The folder that was written.

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
    chain = None
    if append:
        if since is not None:
            raise ExportError("--append: is since the last export, leave out --since")
        if is_chain(local_copy(out, new=True)):
            chain = Chain.read(out)
        out = file_system_or_bucket(out) / f"{len(chain.links) if chain else 0:06d}"
    if step is None:
        step = best_step(workdir)
    saved = SavedModel(run.checkpoints, step)
    then = None
    if chain is not None:
        then = since_last(chain)
    elif since is not None:
        then = earlier(since, run.checkpoints)
    if onnx and then is None:
        require_jax2onnx()
    with code_of(workdir), written(out, last=FILE_NAME) as folder:
        if then is not None:
            check(saved, then)
        model = DenseModel(
            config.model, saved.tables, saved.features, saved.dense_features
        )
        params = dense_params(saved, model)
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        save_arrays(folder / DENSE, params)
        if then is None:
            if onnx:
                write_graphs(folder, model, params)
            (folder / JAX).write_bytes(serialized(model))
            copy_encoding(workdir, folder)
        elif chain is not None:
            add_encoding(workdir, folder, chain)
        for table in progress(saved.tables):
            rows = (
                changed_rows(saved, then, table) if then else lookup_table(saved, table)
            )
            save_arrays(folder / table_file(table.name), rows.arrays(row_format))
        Description(
            name=config.name,
            step=saved.step,
            since=then.step if then else None,
            parent=then.parent if then else None,
            model=config.model.model_dump(mode="json"),
            dense_features=saved.dense_features,
            row_format=row_format,
            features={f.name: ExportedFeature(**f.reading) for f in saved.features},
            tables={
                table.name: ExportedTable(
                    rows=None if table.is_dynamic else table.rows,
                    dim=table.dim,
                    initial=initial_rows(saved, table),
                )
                for table in saved.tables
            },
            files=tuple(
                HashedFile.of(folder, path.relative_to(folder).as_posix())
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            ),
        ).save(folder)
    return Path(out)


def add_encoding(workdir: Path, out: Path, chain: Chain) -> None:
    """Writes what a run's encoding adds to that of the exports before, if it does.

    Raises:
      ExportError: if values have other rows than there.
    """
    folder = workdir / ENCODING
    before = chain.encoding()
    if before is None or not folder.is_dir():
        return
    now = TableValues(folder, read_encoding(folder))
    if (table := before.changed_table(now)) is not None:
        raise ExportError(
            f"table {table!r}: values have other rows than in {chain.folder}; prepare "
            "data with --extend, or begin another chain"
        )
    # Not the vocabularies alone: raw rows are read by the newest transforms.
    if before.manifest.encoding_rules() != now.manifest.encoding_rules():
        write_added(before, now, out / ENCODING)
