"""Checkpoints: Orbax, asynchronous and atomic, with logical tables.

A checkpoint holds each table as its rows ``0..rows`` with their optimizer state, so
that any plan on any number of devices can load it. The order of data is a function of
seed and step, and nothing else is random after initialisation: the step, with the seed
in the identity, is both data position and random state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import (
    export_array,
    load_array,
    logical_shape,
    logical_sharding,
)
from embark_jax.train.step import TrainState

WEIGHTS = "weights"
"""Name of a table's rows beside those of its optimizer states."""


class CheckpointError(ValueError):
    """A checkpoint that is missing or does not belong to this model."""


class Checkpointer:
    """Writes and reads the checkpoints of one run.

    Args:
      folder: holds one subfolder a checkpoint, named by its step.
      identity: JSON-like description of what a checkpoint must agree on to be loaded:
        seed, tables, features, model, optimizers; not plan or mesh.
      keep: how many to keep; older ones are deleted.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], keep: int = 3):
        self._folder = Path(folder).absolute()
        self._identity = identity
        self._manager = ocp.CheckpointManager(
            self._folder, options=ocp.CheckpointManagerOptions(max_to_keep=keep)
        )

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint."""
        return self._manager.latest_step()

    def save(
        self, state: TrainState, step: int, embeddings: EmbeddingCollection
    ) -> None:
        """Writes in the background; a killed write leaves the older ones as they are.

        Args:
          state: to be saved; may be donated as soon as this returns.
          step: that it is at.
          embeddings: the collection that the state belongs to.
        """
        dense = {"params": state.params, "dense_state": state.dense_state}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                dense=ocp.args.PyTreeSave(dense),
                tables=ocp.args.PyTreeSave(_export(state, embeddings)),
                run=ocp.args.JsonSave({"step": step, "identity": self._identity}),
            ),
        )

    def restore(
        self,
        state: TrainState,
        embeddings: EmbeddingCollection,
        step: int | None = None,
    ) -> TrainState:
        """Reads a checkpoint into a state of this model, whatever plan wrote it.

        Args:
          state: gives structure and shardings; consumed.
          embeddings: the collection that the state belongs to.
          step: of the checkpoint; None takes the newest.

        Raises:
          CheckpointError: if there is none, or it belongs to another model.
        """
        step = self.latest_step if step is None else step
        if step is None or step not in self._manager.all_steps():
            raise CheckpointError(
                f"{self._folder}: no checkpoint {'' if step is None else step}; "
                f"complete ones: {sorted(self._manager.all_steps()) or 'none'}"
            )
        args = ocp.args.Composite(run=ocp.args.JsonRestore())
        run = self._manager.restore(step, args=args)["run"]
        differences = _differences(run["identity"], self._identity)
        if differences:
            raise CheckpointError(
                f"{self._folder / str(step)} belongs to another model: "
                + "; ".join(differences)
            )
        dense = {"params": state.params, "dense_state": state.dense_state}
        dense_args = ocp.checkpoint_utils.construct_restore_args(dense)
        tables = _logical_shapes(state, embeddings)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                dense=ocp.args.PyTreeRestore(dense, restore_args=dense_args),
                tables=ocp.args.PyTreeRestore(tables, restore_args=_padded(tables)),
            ),
        )
        storages, embedding_state = _load(state, embeddings, restored["tables"])
        replicated = NamedSharding(embeddings.mesh, PartitionSpec())
        return TrainState(
            step=jax.device_put(jnp.asarray(run["step"], jnp.int32), replicated),
            halted=jax.device_put(jnp.zeros((), bool), replicated),
            params=restored["dense"]["params"],
            dense_state=restored["dense"]["dense_state"],
            storages=storages,
            embedding_state=embedding_state,
        )

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def _arrays(state: TrainState, storage: str) -> dict[str, jax.Array]:
    """A storage and its optimizer states by the names they have in a checkpoint."""
    return {WEIGHTS: state.storages[storage], **state.embedding_state[storage]}


def _export(state: TrainState, embeddings: EmbeddingCollection) -> dict[str, Any]:
    return {
        placement.table.name: {
            name: export_array(embeddings, placement.table.name, array)
            for name, array in _arrays(state, storage.name).items()
        }
        for storage in embeddings.plan.storages
        for placement in storage.placements
    }


def _logical_shapes(state: TrainState, embeddings: EmbeddingCollection) -> dict:
    """Shapes and shardings of what ``_export`` gives for this state."""
    sharding = logical_sharding(embeddings)
    devices = embeddings.plan.devices
    shapes: dict[str, dict[str, jax.ShapeDtypeStruct]] = {}
    for storage in embeddings.plan.storages:
        for placement in storage.placements:
            shapes[placement.table.name] = {
                name: jax.ShapeDtypeStruct(
                    logical_shape(
                        placement,
                        devices,
                        placement.table.dim if array.shape[1] == storage.width else 1,
                    ),
                    array.dtype,
                    sharding=sharding,
                )
                for name, array in _arrays(state, storage.name).items()
            }
    return shapes


def _padded(shapes: Any) -> Any:
    """Restore arguments that let a table's padding differ: it depends on the fleet."""
    return jax.tree.map(
        lambda shape: ocp.ArrayRestoreArgs(
            sharding=shape.sharding, global_shape=shape.shape, strict=False
        ),
        shapes,
    )


def _load(
    state: TrainState, embeddings: EmbeddingCollection, tables: dict[str, Any]
) -> tuple[dict, dict]:
    """Storages and optimizer states with the rows of logical tables in them."""
    storages, embedding_state = {}, {}
    for storage in embeddings.plan.storages:
        arrays = _arrays(state, storage.name)
        for placement in storage.placements:
            table = placement.table.name
            for name in arrays:
                arrays[name] = load_array(
                    embeddings, table, arrays[name], tables[table][name]
                )
        storages[storage.name] = arrays.pop(WEIGHTS)
        embedding_state[storage.name] = arrays
    return storages, embedding_state


def _differences(saved: Any, mine: Any, where: str = "") -> list[str]:
    """Where two JSON-like values differ, by dotted path."""
    if isinstance(saved, dict) and isinstance(mine, dict):
        return [
            difference
            for key in sorted(saved.keys() | mine.keys())
            for difference in _differences(
                saved.get(key, "nothing"), mine.get(key, "nothing"), f"{where}.{key}"
            )
        ]
    if saved == mine:
        return []
    return [f"{where.lstrip('.')} is {saved} in the checkpoint, {mine} here"]
