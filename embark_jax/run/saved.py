"""A trained model in a checkpoint, read extent by extent into host memory.

Reading needs neither the mesh nor the plan nor the data of the training.
"""

from __future__ import annotations

import contextlib
import json
from os import PathLike
from pathlib import Path

import numpy as np

from embark_jax._base.config import ConfigError
from embark_jax._base.storage import in_bucket
from embark_jax.cache.saved_keys import KEY, NO_ROW, USED
from embark_jax.checkpoint import CheckpointError, chosen_steps
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.reading import SavedCheckpoint, extents
from embark_jax.config import ExperimentConfig, reading
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run.logs import LogError, read_metrics


def read_config(workdir: Path) -> ExperimentConfig:
    """Reads the config of a run.

    Raises:
      ConfigError: if the folder is not a run's, or holds no usable config.
    """
    if not workdir.is_dir():
        raise ConfigError(f"{workdir}: is not a folder, must be the folder of a run")
    return reading.load(workdir / "config.yaml")


def best_step(workdir: Path) -> int | None:
    """Returns the best step of a run that stopped early, by its validation set, which
    is tested, evaluated, scored and exported; else None, for the newest."""
    with contextlib.suppress(LogError):
        for record in reversed(read_metrics(workdir)):
            if record.get("final"):
                return record.get("best_step")
    return None


ROWS = "storages.{}"


class SavedModel:
    """The parameters of a checkpoint, without their optimizers' state.

    Args:
      folder: a run's ``checkpoints``.
      step: step of the checkpoint; None takes the newest.

    Attributes:
      step: step of the checkpoint.
      tables, features: tables and features of the model.
      seed: seed of the initial tables.
      dense_features: number of columns of its dense input.

    Raises:
      CheckpointError: if there is none, or it is damaged.
    """

    def __init__(self, folder: str | PathLike[str], step: int | None = None):
        checkpoints = CheckpointFolder(folder)
        path = checkpoints.path
        if not in_bucket(path) and not path.is_dir():
            raise CheckpointError(f"{path}: no such folder")
        (self.step, *_) = chosen_steps(path, checkpoints.steps(), step)
        self._folder = path / str(self.step)
        self._held_rows: dict[str, np.ndarray] = {}
        try:
            self._saved = SavedCheckpoint(self._folder)
        except CheckpointError as error:
            raise self._damaged(error) from None
        identity = self._saved.description.identity
        shapes = identity["tables"]
        dynamic = any(shape["rows"] is None for shape in shapes.values())
        planned = self._planned_tables() if dynamic else {}
        self.tables = tuple(
            planned[name] if shape["rows"] is None else TableSpec(name, **shape)
            for name, shape in shapes.items()
        )
        self.seed: int = identity["seed"]
        self.features = tuple(
            FeatureSpec(name, **fields) for name, fields in identity["features"].items()
        )
        self.dense_features: int = identity["dense_features"]

    def dense(self) -> dict[str, np.ndarray]:
        """Returns parameters and other variables of the dense model by dotted path,
        such as "top.layers.0.w"."""
        names = {
            name.partition(".")[2]: name
            for name in self._saved.description.arrays
            if name.startswith(("params.", "model_state."))
        }
        try:
            return {path: self._saved.array(name) for path, name in names.items()}
        except CheckpointError as error:
            raise self._damaged(error) from None

    def table(self, table: TableSpec) -> np.ndarray:
        """Returns ``[rows, dim]`` float32 of one table; nothing else is read. Of a
        dynamic table these are the rows of ``keys``, in their order."""
        rows = np.empty((self._room(table), table.dim), np.float32)
        self._read(table, ROWS, rows)
        return rows[self._held(table)] if table.is_dynamic else rows

    def count(self, table: TableSpec) -> int:
        """Returns the number of rows of a table."""
        return len(self._held(table)) if table.is_dynamic else table.rows

    def rows(self, table: TableSpec, extent: range) -> np.ndarray:
        """Returns ``[n, dim]`` float32, some of the rows of ``table``, as in ``table``.

        Raises:
          CheckpointError: if they are damaged.
        """
        held = np.arange(len(extent))
        if table.is_dynamic:
            numbers = self._held(table)[extent.start : extent.stop]
            if not len(numbers):
                return np.empty((0, table.dim), np.float32)
            extent = range(int(numbers[0]), int(numbers[-1]) + 1)
            held = numbers - extent.start
        rows = np.empty((len(extent), table.dim), np.float32)
        self._read_extent(table, ROWS, extent, rows)
        return rows[held]

    def keys(self, table: TableSpec) -> np.ndarray:
        """Returns the ``[rows]`` int64 keys of a dynamic table."""
        keys = np.empty((self._room(table), 1), np.int64)
        self._read(table, f"embedding_state.{{}}.{KEY}", keys)
        return keys[self._held(table), 0]

    def _held(self, table: TableSpec) -> np.ndarray:
        """Returns which of the rows of a dynamic table are more than room for one."""
        if table.name not in self._held_rows:
            used = np.empty((self._room(table), 1), np.int32)
            self._read(table, f"embedding_state.{{}}.{USED}", used)
            self._held_rows[table.name] = np.flatnonzero(used[:, 0] != NO_ROW)
        return self._held_rows[table.name]

    def _room(self, table: TableSpec) -> int:
        return self._saved.description.table_rows[table.name]

    def _read(self, table: TableSpec, array: str, rows: np.ndarray) -> None:
        """Reads the first rows of a table in an array of each of its storages."""

        def read(extent: range) -> None:
            self._read_extent(table, array, extent, rows[extent.start : extent.stop])

        all_rows = extents(range(len(rows)), rows.itemsize * rows.shape[1])
        for _ in self._saved.in_threads(read, all_rows):
            pass

    def _read_extent(
        self, table: TableSpec, array: str, extent: range, into: np.ndarray
    ) -> None:
        try:
            for layout in self._saved.description.tables[table.name]:
                self._saved.table_rows(
                    layout, array.format(layout.storage), extent, into
                )
        except CheckpointError as error:
            raise self._damaged(error) from None

    def _planned_tables(self) -> dict[str, TableSpec]:
        """Returns the tables by name, as the plan in the checkpoint has them."""
        plan = Plan.from_json(json.dumps(self._saved.description.plan))
        return {table.name: table for table in plan.tables}

    def _damaged(self, error: CheckpointError) -> CheckpointError:
        return CheckpointError(
            f"{self._folder}: is damaged, delete it to use an older one ({error})"
        )
