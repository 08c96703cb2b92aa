"""The checkpoints of a run: saved during training, restored whatever plan wrote them.

Each process writes and reads for its own devices; no device takes part. The order of
data is a function of seed and step: the step, with the seed in the identity, is the
data position.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax._base.agreement import differences, parts
from embark_jax._base.storage import in_bucket
from embark_jax.cache.stored_rows import StoredArray, StoredRows
from embark_jax.checkpoint.description import ARRAYS, DESCRIPTION, NAME, Description
from embark_jax.checkpoint.errors import (
    CheckpointError,
    OtherExperimentError,
    OverwrittenError,
    reason,
    together,
)
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.layout import SavedArray, is_key, named_arrays, with_arrays
from embark_jax.checkpoint.manager import Manager
from embark_jax.checkpoint.reading import SavedCheckpoint
from embark_jax.checkpoint.restoring import fill
from embark_jax.checkpoint.writing import NonFiniteError, StateWriter
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import dynamic_blocks, table_shards
from embark_jax.launch.agreement import of_process_0
from embark_jax.plans.layout import SHARD_FIELDS
from embark_jax.train.state import TrainState

GIGABYTE = 1e9


class Checkpointer(contextlib.AbstractContextManager):
    """Writes and reads the checkpoints of one run.

    Args:
      folder: holds one subfolder per checkpoint, named by its step; it may lie in a
        bucket, ``gs://`` or ``s3://``.
      identity: what a checkpoint must agree on to be loaded, JSON-like: seed, tables,
        features, model, optimizers; not plan or mesh. A saved one may have more keys.
      keep: number of newest checkpoints to keep. None only reads, and changes nothing
        in the folder.
      memory_bytes: memory of this process that saving may take; None takes a quarter
        of its part of the state. With as much as its part, training waits for a copy in
        memory alone.
      say: gets a line about each checkpoint and about those that were left out.

    Attributes:
      best_step: step of a checkpoint to keep however old it gets; None keeps none.
      evaluations: records of the run's evaluations, for the rules that continue from
        them; each checkpoint keeps them, ``restore`` sets them.

    Raises:
      CheckpointError: if another run writes into the folder.
      OSError, StorageError: if the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        identity: Mapping[str, Any],
        keep: int | None,
        memory_bytes: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ):
        self._folder = CheckpointFolder(folder)
        self._identity = identity
        self.best_step: int | None = None
        self.evaluations: list[dict[str, Any]] = []
        self._say = say
        self._writer = StateWriter(memory_bytes)
        self._saving: tuple[int, float] | None = None  # its step and when it began
        self._manager: Manager | None = None
        if keep is not None:
            main = jax.process_index() == 0
            together(self._folder.prepare if main else lambda: None)
            self._manager = Manager(
                self._folder, self._writer, keep, lambda: self.best_step, self._written
            )

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        # Of several processes the others may never come to here.
        if kind is None or jax.process_count() == 1:
            self.close()

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in order; waits for one in the making.

        Raises:
          CheckpointError: if the latter could not be written.
        """
        self._finish()
        return self._folder.steps()

    def save(
        self,
        state: TrainState,
        step: int,
        embeddings: EmbeddingCollection,
        bad_ids: Mapping[str, int],
    ) -> None:
        """Copies the state, then writes the copy in the background.

        A write that is killed or fails leaves the older checkpoints as they are.

        Args:
          state: a trainer's ``whole_state``; may be donated as soon as this returns.
          step: step of the state.
          embeddings: collection that the state belongs to.
          bad_ids: for each feature the ids dropped or hashed so far.

        Raises:
          CheckpointError: if this checkpoint, or the one before it, could not be
            written.
        """
        if self._manager is None:
            raise ValueError(
                "keep is None, must be a number for checkpoints to be saved"
            )
        check_whole(state, embeddings)
        self._finish()
        self._saving = step, time.monotonic()
        keys, arrays = {}, named_arrays(state)
        for name, array in arrays.items():
            if is_key(array):
                keys[name] = str(jax.random.key_impl(array))
                arrays[name] = jax.random.key_data(array)
        saved = {name: SavedArray.of(name, array) for name, array in arrays.items()}
        blocks = dynamic_blocks(embeddings, state.storages)
        shards = table_shards(embeddings.plan.storages, blocks)
        description = Description(
            step=step,
            identity=self._identity,
            bad_ids=bad_ids,
            evaluations=self.evaluations,
            plan=json.loads(embeddings.plan.to_json()),
            arrays={name: (array.dtype, array.shape) for name, array in saved.items()},
            keys=keys,
            storages=[storage.name for storage in embeddings.plan.storages],
            processes=jax.process_count(),
            tables={
                name: {field: of_table[field].tolist() for field in SHARD_FIELDS}
                for name, of_table in shards.items()
            },
        ).to_json()
        self._writer.checkpoint = description["checksum"]
        items = {
            ARRAYS: ocp.args.PyTreeSave(arrays),
            DESCRIPTION: ocp.args.JsonSave(description),
        }
        try:
            # Its own barriers give up after minutes, this one does not. What is damaged
            # is not there any more.
            together(self._manager.reload)
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        except Exception as error:
            raise self._failed(error) from None

    def restore(
        self,
        state: TrainState,
        embeddings: EmbeddingCollection,
        step: int | None = None,
    ) -> tuple[TrainState, dict[str, int]]:
        """Reads a checkpoint into a state of this model, whatever plan wrote it.

        Args:
          state: a trainer's ``whole_state``, for structure and shardings; consumed.
          embeddings: collection that the state belongs to.
          step: step of the checkpoint; None takes the newest that is not damaged.

        Returns:
          The state, and the ``bad_ids`` that were saved with it.

        Raises:
          CheckpointError: if there is none, it is damaged, or of another model;
            ``OverwrittenError`` if the state is gone.
        """
        self._finish()
        # The other processes may not see yet what process 0 sees.
        steps = of_process_0(self._folder.chosen_steps(step))
        check_whole(state, embeddings)
        jax.block_until_ready(state)  # else reading pays for initial tables
        arrays = named_arrays(state)

        def read(folder: epath.Path) -> Description:
            saved = SavedCheckpoint(folder)
            theirs = parts(saved.description.identity, list(self._identity))
            if lines := differences(theirs, self._identity, "in the checkpoint"):
                lines = ["belongs to another experiment:", *lines]
                raise OtherExperimentError("\n  ".join(lines))
            fill(saved, arrays, embeddings.plan, saved.description.table_rows)
            return saved.description

        problem, kind, begin = "", CheckpointError, time.monotonic()
        for number in steps:
            folder = self._folder.of_step(number)
            try:
                description = together(functools.partial(read, folder))
                break
            except OtherExperimentError as error:
                raise OtherExperimentError(f"{folder}: {error}") from None
            except (CheckpointError, OSError) as error:
                problem = f"{folder}: is damaged ({reason(error)})"
                if isinstance(error, OverwrittenError):
                    kind = OverwrittenError
                self._say(f"left out {problem}")
        else:
            rest = "; delete it to use an older one" if step else ", as all older ones"
            if kind is OverwrittenError:
                rest += "; rows of the state are overwritten: make a new trainer"
            raise kind(problem + rest)
        self._say(f"checkpoint {number}: read in {time.monotonic() - begin:.1f} s")
        # The run will come to these steps again.
        self._folder.damaged = {*steps[: steps.index(number)]}
        self.evaluations = [dict(record) for record in description.evaluations]
        # device_put would compare the processes' values in a collective.
        sharding = NamedSharding(embeddings.mesh, PartitionSpec())
        put = jax.jit(lambda *values: values, out_shardings=sharding)
        at, halted = put(np.int32(number), np.bool_(False))
        restored = with_arrays(state, arrays)._replace(step=at, halted=halted)
        return restored, dict(description.bad_ids)

    def close(self) -> None:
        """Waits until everything is written.

        Raises:
          CheckpointError: if it could not be written.
        """
        try:
            self._finish()
        finally:
            if self._manager is not None:
                self._manager.close()
            self._folder.release()

    def _finish(self) -> None:
        """Waits for the checkpoint in the making; raises the reason if it failed."""
        if self._manager is None or self._saving is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from None
        self._saving = None

    def _written(self) -> None:
        """Says what a checkpoint took, in process 0, when all files are written."""
        if not in_bucket(self._folder.path):
            # Orbax does not: what is older may go when the newest is on the disk.
            for path in self._folder.unfinished():
                _sync(path / DESCRIPTION / NAME)
        assert self._saving is not None
        step, begin = self._saving
        seconds, size = time.monotonic() - begin, self._writer.size / GIGABYTE
        self._say(
            f"checkpoint {step}: {size:.2f} GB in {seconds:.1f} s, "
            f"{size / seconds:.2f} GB/s; training waited {self._writer.copied_s:.2f} s"
        )

    def _failed(self, error: Exception) -> CheckpointError:
        assert self._saving is not None
        (step, _), self._saving, newest = self._saving, None, "there is none yet"
        with contextlib.suppress(Exception):  # whatever a bucket's client raises
            if jax.process_index() == 0:
                self._folder.clear()
            if steps := self._folder.steps():
                newest = f"the newest is that of step {steps[-1]}"
        return CheckpointError(
            f"{self._folder.of_step(step)}: the checkpoint could not be written "
            f"({reason(error)}); {newest}",
            may_pass=not isinstance(error, NonFiniteError),
        )


def check_whole(state: TrainState, embeddings: EmbeddingCollection) -> None:
    """Raises ``ValueError`` if a state has some rows of cached tables, not all."""
    for name in embeddings.cached:
        if not isinstance(state.storages[name], StoredArray | StoredRows):
            raise ValueError(
                f"the state has slots of {name}, which hold some rows of its tables "
                "alone; give Trainer.whole_state()"
            )


def _sync(path: os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
