"""A trained model in a checkpoint, read piece by piece into host memory.

Needs neither the mesh nor the plan nor the data that it was trained with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from embark_jax.tables import FeatureSpec, TableSpec
from embark_jax.train.checkpoint import (
    WEIGHTS,
    CheckpointError,
    chosen_step,
    read_items,
)

_AS_NUMPY = ocp.RestoreArgs(restore_type=np.ndarray)


class SavedModel:
    """The parameters of a checkpoint, without their optimizers' state.

    Args:
      folder: a run's ``checkpoints``.
      step: of the checkpoint; None takes the newest.

    Attributes:
      step: of the checkpoint.
      tables, features: of the model.
      dense_features: columns of its dense input.

    Raises:
      CheckpointError: if there is none, or it is damaged.
    """

    def __init__(self, folder: Path, step: int | None = None):
        self._folder = Path(folder).absolute()
        if not self._folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder")
        options = ocp.CheckpointManagerOptions(
            create=False, cleanup_tmp_directories=False
        )
        # With handlers named, the manager can tell what a checkpoint holds.
        handlers = {name: ocp.PyTreeCheckpointHandler() for name in ("dense", "tables")}
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=options,
            item_names=("dense", "tables", "run"),
            item_handlers=handlers,
        )
        self.step = chosen_step(self._folder, sorted(self._manager.all_steps()), step)
        identity = self._read(run=ocp.args.JsonRestore())["run"]["identity"]
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
        self._manager.close()

    def dense(self) -> dict[str, np.ndarray]:
        """Parameters of the dense model by dotted path, such as "top.layers.0.w"."""
        saved = self._manager.item_metadata(self.step)["dense"]["params"]
        params = self._restore("dense", {"params": saved})["params"]
        return {
            ".".join(key.key for key in path).removesuffix(".value"): array
            for path, array in jax.tree.leaves_with_path(params)
        }

    def table(self, table: TableSpec) -> np.ndarray:
        """``[rows, dim]`` of one table, which is all that is read."""
        found = self._restore("tables", {table.name: {WEIGHTS: 0}})
        return found[table.name][WEIGHTS][: table.rows]  # padded to a fleet's devices

    def _restore(self, item: str, wanted: Any) -> Any:
        args = ocp.args.PyTreeRestore(
            wanted,
            restore_args=jax.tree.map(lambda _: _AS_NUMPY, wanted),
            partial_restore=True,
        )
        return self._read(**{item: args})[item]

    def _read(self, **items: ocp.args.CheckpointArgs) -> Any:
        return read_items(self._manager, self._folder, self.step, **items)
