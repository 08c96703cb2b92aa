"""A run that was trained, and its model in host memory, read extent by extent."""

from __future__ import annotations

import contextlib
import json
from os import PathLike
from pathlib import Path

import numpy as np

from embark_jax._base.config import ConfigError
from embark_jax._base.storage import file_system_or_bucket
from embark_jax.cache.stored_rows import KEY, NO_ROW, USED
from embark_jax.checkpoint import CheckpointError
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.reading import SavedCheckpoint, extents, in_threads
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run.folder import CHECKPOINTS, RunFolder, config_of
from embark_jax.run.logs import LogError, read_metrics


class SavedRun:
    """A run of ``embark train``, with the checkpoint of it that is taken. Its folder
    stays as it is. What evaluates, scores, exports or goes on from a run begins here.

    Args:
      path: folder of the run, which may be in a bucket, or one of its checkpoints.
      step: step of the checkpoint; None takes the best of a run that stopped early, by
        its validation set, or else the newest.

    Attributes:
      folder: its files but the checkpoints, on this machine.
      checkpoints: folder of its checkpoints.
      config: its config.
      step: step of the checkpoint; None for the newest.

    Raises:
      ConfigError: if the folder is no run's, or holds no usable config.
      StorageError: if its bucket cannot be used.
    """

    def __init__(self, path: str | PathLike[str], step: int | None = None):
        where = file_system_or_bucket(path)
        if where.name.isdecimal() and where.parent.name == CHECKPOINTS:
            if step not in (None, int(where.name)):
                raise ConfigError(f"{where}: is not the checkpoint of step {step}")
            where, step = where.parent, int(where.name)
        if where.name == CHECKPOINTS:
            where = where.parent
        run = RunFolder(where)
        self.folder = run.read()
        self.checkpoints = run.checkpoints
        if not self.folder.is_dir():
            raise ConfigError(f"{where}: is not a folder, must be the folder of a run")
        self.config = config_of(self.folder)
        self.step = _best_step(self.folder) if step is None else step

    def checkpoint(self) -> SavedCheckpoint:
        """Opens the checkpoint.

        Raises:
          CheckpointError: if there is none, or it is damaged.
        """
        return open_checkpoint(self.checkpoints, self.step)

    def model(self) -> SavedModel:
        """Returns the parameters of the checkpoint, without mesh, plan or data.

        Raises:
          CheckpointError: if there is none, or it is damaged.
        """
        return SavedModel(self.checkpoint())


def open_checkpoint(
    folder: str | PathLike[str], step: int | None = None
) -> SavedCheckpoint:
    """Opens the checkpoint of a step in a run's ``checkpoints``; None for the newest.

    Raises:
      CheckpointError: if there is none, or it is damaged.
    """
    checkpoints = CheckpointFolder(folder)
    path = checkpoints.of_step(checkpoints.chosen_steps(step)[0])
    try:
        return SavedCheckpoint(path)
    except CheckpointError as error:
        raise _damaged(path, error) from None


def _best_step(folder: Path) -> int | None:
    """Returns the best step of a run that stopped early."""
    with contextlib.suppress(LogError):
        for record in reversed(read_metrics(folder)):
            if record.get("final"):
                return record.get("best_step")
    return None


class SavedModel:
    """The parameters of a checkpoint, without their optimizers' state.

    Args:
      saved: the checkpoint.

    Attributes:
      step: step of the checkpoint.
      tables, features: tables and features of the model.
      dense_features: number of columns of its dense input.
    """

    def __init__(self, saved: SavedCheckpoint):
        self._saved, self.step = saved, saved.description.step
        identity = self._saved.description.identity
        shapes = identity["tables"]
        dynamic = any(shape["rows"] is None for shape in shapes.values())
        planned = self._planned_tables() if dynamic else {}
        self.tables = tuple(
            planned[name] if shape["rows"] is None else TableSpec(name, **shape)
            for name, shape in shapes.items()
        )
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
            raise _damaged(self._saved.folder, error) from None

    def table(self, table: TableSpec) -> np.ndarray:
        """Returns ``[rows, dim]`` float32 of one table; nothing else is read. Of a
        dynamic table these are the rows of ``keys``, in their order."""
        rows = np.empty((self._room(table), table.dim), np.float32)
        self._read(table, "storages.{}", rows)
        return rows[self._filled(table)] if table.is_dynamic else rows

    def keys(self, table: TableSpec) -> np.ndarray:
        """Returns the ``[rows]`` int64 keys of a dynamic table."""
        keys = np.empty((self._room(table), 1), np.int64)
        self._read(table, f"embedding_state.{{}}.{KEY}", keys)
        return keys[self._filled(table), 0]

    def _filled(self, table: TableSpec) -> np.ndarray:
        """Returns which of the slots of a dynamic table hold a row."""
        used = np.empty((self._room(table), 1), np.int32)
        self._read(table, f"embedding_state.{{}}.{USED}", used)
        return np.flatnonzero(used[:, 0] != NO_ROW)

    def _room(self, table: TableSpec) -> int:
        return self._saved.description.table_rows[table.name]

    def _read(self, table: TableSpec, array: str, rows: np.ndarray) -> None:
        """Reads the first rows of a table in an array of each of its storages."""

        def read(numbers: range) -> None:
            part = rows[numbers.start : numbers.stop]
            part[:] = self._saved.rows(table.name, array, numbers, range(rows.shape[1]))

        try:
            parts = extents(len(rows), rows.itemsize * rows.shape[1])
            for _ in in_threads(read, parts):
                pass
        except CheckpointError as error:
            raise _damaged(self._saved.folder, error) from None

    def _planned_tables(self) -> dict[str, TableSpec]:
        """Returns the tables by name, as the plan in the checkpoint has them."""
        plan = Plan.from_json(json.dumps(self._saved.description.plan))
        return {table.name: table for table in plan.tables}


def _damaged(folder: PathLike[str], error: CheckpointError) -> CheckpointError:
    return CheckpointError(
        f"{folder}: is damaged, delete it to use an older one ({error})"
    )
