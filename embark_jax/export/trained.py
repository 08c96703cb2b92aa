"""The trained model of a run: its rows, read extent by extent into host memory, and its
dense part in JAX."""

from __future__ import annotations

import json
from os import PathLike

import numpy as np

from embark_jax.cache.stored_rows import KEY, NO_ROW, USED
from embark_jax.checkpoint.reading import in_threads, row_chunks
from embark_jax.config import trusted
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.lookup import LookupTable
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import TableSpec
from embark_jax.run.saved import SavedRun, undamaged


class TrainedModel:
    """A model in a checkpoint of a run, without mesh or data, and without its
    optimizers' state.

    Args:
      workdir, step, trust_code: as in ``load_id_scorer``.

    Attributes:
      run: the run.
      step: step of the checkpoint.
      tables, features: tables and features of the model.
      dense_features: number of columns of its dense input.
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
        self._saved = self.run.checkpoint()
        contents = self._saved.contents
        self.step = contents.step
        self.dense_features: int = contents.identity["dense_features"]
        plan = Plan.from_json(json.dumps(contents.plan))
        self.tables, self.features = plan.tables, plan.features
        self.dense = DenseModel(model, self.tables, self.features, self.dense_features)
        # By dotted path in the model, such as "top.layers.0.w".
        names = {
            name.partition(".")[2]: name
            for name in contents.arrays
            if name.startswith(("params.", "model_state."))
        }
        with undamaged(self._saved.folder):
            self.params = {
                path: self._saved.array(names[path]) for path in self.dense.arrays
            }

    def table(self, table: TableSpec) -> LookupTable:
        """Returns all rows of a table, float32, of a dynamic one in the order of its
        keys; nothing else is read."""
        rows = self._read(table, "storages.{}", np.float32, table.dim)
        if not table.is_dynamic:
            return LookupTable(rows)
        keys, used = (
            self._read(table, f"embedding_state.{{}}.{name}", dtype, 1)[:, 0]
            for name, dtype in ((KEY, np.int64), (USED, np.int32))
        )
        filled = np.flatnonzero(used != NO_ROW)
        order = filled[np.argsort(keys[filled])]
        return LookupTable(rows[order], keys[order])

    def _read(self, table: TableSpec, array: str, dtype: type, width: int):
        """Returns what arrays of storages have of all rows, or slots, of a table."""
        count = self._saved.contents.table_rows[table.name]
        rows = np.empty((count, width), dtype)

        def read(numbers: range) -> None:
            part = rows[numbers.start : numbers.stop]
            part[:] = self._saved.rows(table.name, array, numbers, range(width))

        with undamaged(self._saved.folder):
            for _ in in_threads(read, row_chunks(count, rows.itemsize * width)):
                pass
        return rows
