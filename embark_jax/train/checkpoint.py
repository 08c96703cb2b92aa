"""Checkpoints: Orbax, asynchronous and atomic, with logical tables.

A checkpoint holds each table as its rows ``0..rows`` with their optimizer state, so
that any plan on any number of devices can load it. The order of data is a function of
seed and step, and nothing else is random after initialisation: the step, with the seed
in the identity, is both data position and random state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A checkpoint that is missing, damaged or of another model."""


class Checkpointer:
    """Writes and reads the checkpoints of one run.

    Args:
      folder: holds one subfolder a checkpoint, named by its step.
      identity: JSON-like description of what a checkpoint must agree on to be loaded:
        seed, tables, features, model, optimizers; not plan or mesh. What is saved may
        have more keys than what is asked for.
      keep: how many to keep; older ones are deleted, and what a killed write left.
        None only reads, and changes nothing in the folder.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], keep: int | None):
        self._folder = Path(folder).absolute()
        self._identity = identity
        writes = keep is not None
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=writes, cleanup_tmp_directories=writes
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        # Of several processes the others may never come to where they close.
        if kind is None or jax.process_count() == 1:
            self.close()

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in order; waits for one in the making."""
        self._manager.wait_until_finished()
        return sorted(self._manager.all_steps())

    def save(
        self,
        state: TrainState,
        step: int,
        embeddings: EmbeddingCollection,
        bad_ids: Mapping[str, int],
    ) -> None:
        """Writes in the background; a killed write leaves the older ones as they are.

        Args:
          state: to be saved; may be donated as soon as this returns.
          step: that it is at.
          embeddings: the collection that the state belongs to.
          bad_ids: for each feature those mended so far, so that a run that resumes
            goes on counting.
        """
        dense = _dense(state)
        run = {"step": step, "identity": self._identity, "bad_ids": dict(bad_ids)}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                dense=ocp.args.PyTreeSave(dense),
                tables=ocp.args.PyTreeSave(_export(state, embeddings)),
                run=ocp.args.JsonSave(run),
            ),
        )

    def restore(
        self,
        state: TrainState,
        embeddings: EmbeddingCollection,
        step: int | None = None,
    ) -> tuple[TrainState, dict[str, int]]:
        """Reads a checkpoint into a state of this model, whatever plan wrote it.

        Args:
          state: gives structure and shardings; consumed.
          embeddings: the collection that the state belongs to.
          step: of the checkpoint; None takes the newest.

        Returns:
          The state, and the ``bad_ids`` that were saved with it.

        Raises:
          CheckpointError: if there is none, it is damaged, or of another model.
        """
        step = chosen_step(self._folder, self.steps, step)
        run = self._read(step, run=ocp.args.JsonRestore())["run"]
        saved = {key: run["identity"].get(key) for key in self._identity}
        if found := differences(saved, self._identity, "in the checkpoint"):
            raise CheckpointError(
                f"{self._folder / str(step)}: belongs to another experiment:\n  "
                + "\n  ".join(found)
            )
        dense = _dense(state)
        dense_args = ocp.checkpoint_utils.construct_restore_args(dense)
        tables = _logical_shapes(state, embeddings)
        arrays = self._read(
            step,
            dense=ocp.args.PyTreeRestore(dense, restore_args=dense_args),
            tables=ocp.args.PyTreeRestore(tables, restore_args=_padded(tables)),
        )
        storages, embedding_state = _load(state, embeddings, arrays["tables"])
        replicated = NamedSharding(embeddings.mesh, PartitionSpec())
        restored = TrainState(
            step=jax.device_put(jnp.asarray(run["step"], jnp.int32), replicated),
            halted=jax.device_put(jnp.zeros((), bool), replicated),
            params=arrays["dense"]["params"],
            dense_state=arrays["dense"]["dense_state"],
            model_state=jax.tree.map(
                _with_keys, state.model_state, arrays["dense"]["model_state"]
            ),
            storages=storages,
            embedding_state=embedding_state,
        )
        return restored, run["bad_ids"]

    def _read(self, step: int, **items: ocp.args.CheckpointArgs) -> Mapping[str, Any]:
        return read_items(self._manager, self._folder, step, **items)

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def chosen_step(folder: Path, steps: Sequence[int], step: int | None) -> int:
    """The step asked for, or the newest for None.

    Raises:
      CheckpointError: if it is not among the steps of the complete checkpoints.
    """
    if not steps:
        raise CheckpointError(f"{folder}: holds no complete checkpoint")
    if step is not None and step not in steps:
        raise CheckpointError(
            f"{folder}: holds no complete checkpoint of step {step}, only of "
            f"{', '.join(map(str, steps))}"
        )
    return steps[-1] if step is None else step


def read_items(
    manager: ocp.CheckpointManager,
    folder: Path,
    step: int,
    **items: ocp.args.CheckpointArgs,
) -> Mapping[str, Any]:
    """Parts of a checkpoint: of "dense", "tables" and "run".

    Raises:
      CheckpointError: if it is damaged.
    """
    try:
        return manager.restore(step, args=ocp.args.Composite(**items))
    except Exception as error:  # Orbax has no common class for what it may raise
        reason = str(error).partition(" [")[0].partition("\n")[0]
        raise CheckpointError(
            f"{folder / str(step)}: is damaged, delete it to use an older one "
            f"({type(error).__name__}: {reason[:500]})"
        ) from error


def _dense(state: TrainState) -> dict[str, Any]:
    """What a checkpoint holds beside tables; random keys as their data."""
    return {
        "params": state.params,
        "dense_state": state.dense_state,
        "model_state": jax.tree.map(_without_keys, state.model_state),
    }


def _without_keys(array: jax.Array) -> jax.Array:
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_key else array


def _with_keys(like: jax.Array, array: jax.Array) -> jax.Array:
    """The inverse of ``_without_keys``."""
    if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return array
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))


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


def differences(theirs: Any, mine: Any, there: str, where: str = "") -> list[str]:
    """In which places two JSON-like values differ, by dotted path.

    Args:
      theirs, mine: the values.
      there: says whose ``theirs`` is, such as "in the checkpoint".
      where: path of the values.
    """
    if isinstance(theirs, dict) and isinstance(mine, dict):
        return [
            difference
            for key in sorted(theirs.keys() | mine.keys())
            for difference in differences(
                theirs.get(key, "nothing"),
                mine.get(key, "nothing"),
                there,
                f"{where}.{key}",
            )
        ]
    if theirs == mine:
        return []
    return [f"{where.lstrip('.')} is {theirs} {there}, {mine} here"]
