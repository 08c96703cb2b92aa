"""The trained model of a run: its rows, and its dense part in JAX."""

from __future__ import annotations

from os import PathLike
from typing import NamedTuple

import numpy as np

from embark_jax.config import trusted
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.jax_layers import jax_layers
from embark_jax.export.lookup import LookupTable
from embark_jax.export.scorer import IdScorer
from embark_jax.plans.tables import TableSpec
from embark_jax.run.saved import SavedModel, SavedRun


class TrainedModel(NamedTuple):
    """A model in a checkpoint of a run.

    Attributes:
      run: the run.
      saved: the checkpoint.
      dense: the dense part, and ``params`` its arrays by dotted path.
    """

    run: SavedRun
    saved: SavedModel
    dense: DenseModel
    params: dict[str, np.ndarray]

    def table(self, table: TableSpec) -> LookupTable:
        """Returns all rows of a table, of a dynamic one in the order of its keys."""
        rows = self.saved.table(table)
        if not table.is_dynamic:
            return LookupTable(rows)
        keys = self.saved.keys(table)
        order = np.argsort(keys)
        return LookupTable(rows[order], keys=keys[order])


def trained_model(
    workdir: str | PathLike[str], step: int | None, trust_code: bool
) -> TrainedModel:
    """Returns the model of a run.

    Raises:
      ConfigError, CheckpointError: if the folder holds no usable config or checkpoint,
        or names code that is not trusted.
    """
    run = SavedRun(workdir, step)
    model = run.config.model
    trusted(run.folder, model.kind, trust_code)
    saved = run.model()
    dense = DenseModel(model, saved.tables, saved.features, saved.dense_features)
    arrays = saved.dense()
    params = {name: arrays[name] for name in dense.arrays}
    return TrainedModel(run, saved, dense, params)


def run_scorer(
    folder: str | PathLike[str], step: int | None, trust_code: bool
) -> IdScorer:
    """Returns the scorer of a run's model; see ``load_id_scorer``."""
    model = trained_model(folder, step, trust_code)
    saved = model.saved
    return IdScorer(
        saved.features,
        saved.dense_features,
        {table.name: model.table(table) for table in saved.tables},
        jax_layers(model.dense, model.params),
        saved.step,
    )
