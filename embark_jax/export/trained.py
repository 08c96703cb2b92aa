"""The trained model of a run: its rows, and its dense part in JAX."""

from __future__ import annotations

from os import PathLike

import numpy as np

from embark_jax.config import trusted
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.jax_layers import jax_layers
from embark_jax.export.lookup import LookupTable
from embark_jax.export.scorer import IdScorer
from embark_jax.plans.tables import TableSpec
from embark_jax.run.saved import SavedRun


class TrainedModel:
    """A model in a checkpoint of a run.

    Args:
      workdir, step, trust_code: as in ``load_id_scorer``.

    Attributes:
      run: the run.
      saved: the checkpoint.
      dense: the dense part, and ``params`` its arrays by dotted path.

    Raises:
      ConfigError, CheckpointError: if the folder holds no usable config or checkpoint,
        or names code that is not trusted.
    """

    def __init__(
        self, workdir: str | PathLike[str], step: int | None, trust_code: bool
    ):
        self.run = SavedRun(workdir, step)
        model = self.run.config.model
        trusted(self.run.folder, model.kind, trust_code)
        self.saved = saved = self.run.model()
        self.dense = DenseModel(
            model, saved.tables, saved.features, saved.dense_features
        )
        arrays = saved.dense()
        self.params = {name: arrays[name] for name in self.dense.arrays}

    def table(self, table: TableSpec) -> LookupTable:
        """Returns all rows of a table, of a dynamic one in the order of its keys."""
        rows = self.saved.table(table)
        if not table.is_dynamic:
            return LookupTable(rows)
        keys = self.saved.keys(table)
        order = np.argsort(keys)
        return LookupTable(rows[order], keys[order])

    def scorer(self) -> IdScorer:
        """Returns what scores with the model."""
        return IdScorer(
            self.saved.features,
            self.saved.dense_features,
            {table.name: self.table(table) for table in self.saved.tables},
            jax_layers(self.dense, self.params),
            self.saved.step,
        )
