"""A trained model in a checkpoint, read piece by piece into host memory.

Reading needs neither the mesh nor the plan nor the data of the training.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from embark_jax import config_io
from embark_jax.config import ConfigError, ExperimentConfig
from embark_jax.tables import FeatureSpec, TableSpec
from embark_jax.train.checkpoint import CheckpointError, chosen_steps
from embark_jax.train.checkpoint.checkpointer import READING_BYTES
from embark_jax.train.checkpoint.errors import ForeignCheckpointError
from embark_jax.train.checkpoint.folder import CheckpointFolder
from embark_jax.train.checkpoint.reading import SavedCheckpoint, pieces
from embark_jax.train.logs import LogError, read_metrics


def read_config(workdir: Path) -> ExperimentConfig:
    """Reads the config of a run.

    Raises:
      ConfigError: if the folder is not a run's, or holds no usable config.
    """
    if not workdir.is_dir():
        raise ConfigError(f"{workdir}: is not a folder, must be the folder of a run")
    return config_io.load(workdir / "config.yaml")


def best_step(workdir: Path) -> int | None:
    """Returns the step that a run was tested at, if it stopped early; else None."""
    with contextlib.suppress(LogError):
        for record in reversed(read_metrics(workdir)):
            if record.get("final"):
                return record.get("best_step")
    return None


class SavedModel:
    """The parameters of a checkpoint, without their optimizers' state.

    Args:
      folder: a run's ``checkpoints``.
      step: step of the checkpoint; None takes the newest.

    Attributes:
      step: step of the checkpoint.
      tables, features: tables and features of the model.
      dense_features: number of columns of its dense input.

    Raises:
      CheckpointError: if there is none, or it is damaged.
    """

    def __init__(self, folder: Path, step: int | None = None):
        folder = Path(folder).absolute()
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder")
        (self.step, *_) = chosen_steps(folder, CheckpointFolder(folder).steps(), step)
        self._folder = folder / str(self.step)
        try:
            self._saved = SavedCheckpoint(self._folder, READING_BYTES)
        except ForeignCheckpointError as error:
            raise ForeignCheckpointError(f"{self._folder}: {error}") from None
        except CheckpointError as error:
            raise self._damaged(error) from None
        identity = self._saved.manifest.identity
        dynamic = [n for n, each in identity["tables"].items() if each["rows"] is None]
        if dynamic:
            raise CheckpointError(
                f"{self._folder}: table {dynamic[0]!r} is dynamic; such models are "
                "evaluated with `embark evaluate`, but not exported yet"
            )
        self.tables = tuple(
            TableSpec(name, **shape) for name, shape in identity["tables"].items()
        )
        self.features = tuple(
            FeatureSpec(name, **fields) for name, fields in identity["features"].items()
        )
        self.dense_features: int = identity["dense_features"]

    def __enter__(self) -> SavedModel:
        return self

    def __exit__(self, *exception) -> None:
        self._saved.close()

    def dense(self) -> dict[str, np.ndarray]:
        """Returns parameters and running statistics of the dense model by dotted path,
        such as "top.layers.0.w"."""
        names = {
            name.partition(".")[2]: name
            for name in self._saved.manifest.arrays
            if name.startswith(("params.", "model_state."))
        }
        try:
            arrays = {path: self._saved.array(name) for path, name in names.items()}
        except CheckpointError as error:
            raise self._damaged(error) from None
        # Leaves out keys and counts of random streams, which training alone uses.
        return {path: each for path, each in arrays.items() if each.dtype.kind == "f"}

    def table(self, table: TableSpec) -> np.ndarray:
        """Returns ``[rows, dim]`` of one table; nothing else is read."""
        layout = self._saved.manifest.tables[table.name]
        rows = np.empty((table.rows, table.dim), np.float32)

        def read(piece: range) -> None:
            into = rows[piece.start : piece.stop]
            for each in layout:
                self._saved.table_rows(each, f"storages.{each.storage}", piece, into)

        try:
            all_rows = pieces(range(table.rows), rows.itemsize * table.dim)
            for _ in self._saved.in_threads(read, all_rows):
                pass
        except CheckpointError as error:
            raise self._damaged(error) from None
        return rows

    def _damaged(self, error: CheckpointError) -> CheckpointError:
        return CheckpointError(
            f"{self._folder}: is damaged, delete it to use an older one ({error})"
        )
