"""Scores with a checkpoint of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embark_jax.config import trusted
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.id_scorer import IdScorer
from embark_jax.export.jax_layers import jax_layers
from embark_jax.export.lookup import LookupTable
from embark_jax.plans.tables import TableSpec
from embark_jax.run.folder import RunFolder
from embark_jax.run.saved import SavedModel, best_step, read_config


def load_run_scorer(
    folder: str | Path, step: int | None = None, trust_code: bool = False
) -> IdScorer:
    """Loads the model of a run, to score ids; arguments are those of ``load_scorer``.

    Raises:
      ConfigError, CheckpointError: if the folder holds no usable config or checkpoint,
        or names code that is not trusted.
    """
    run = RunFolder(folder)
    files = run.read()
    config = read_config(files)
    trusted(files, config.model.kind, trust_code)
    if step is None:
        step = best_step(files)
    saved = SavedModel(run.checkpoints, step)
    model = DenseModel(config.model, saved.tables, saved.features, saved.dense_features)
    params = dense_params(saved, model)
    return IdScorer(
        saved.features,
        saved.dense_features,
        {table.name: lookup_table(saved, table) for table in saved.tables},
        jax_layers(model, params),
        saved.step,
    )


def dense_params(saved: SavedModel, model: DenseModel) -> dict[str, np.ndarray]:
    """Returns the arrays that scoring reads, by dotted path."""
    arrays = saved.dense()
    return {name: arrays[name] for name in model.arrays}


def lookup_table(saved: SavedModel, table: TableSpec) -> LookupTable:
    """Returns all rows of a table, of a dynamic one in the order of its keys."""
    rows = saved.table(table)
    if not table.is_dynamic:
        return LookupTable(rows)
    keys = saved.keys(table)
    order = np.argsort(keys)
    return LookupTable(rows[order], keys=keys[order])
