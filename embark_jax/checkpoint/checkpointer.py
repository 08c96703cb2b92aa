"""The checkpoints of a run: saved during training, restored whatever plan wrote them.

Orbax saves in the background, gives a checkpoint its name when it is complete, and has
all processes wait for each other. Each process writes and reads for its own devices; no
device takes part. The order of data is a function of seed and step: the step, with the
seed in the identity, is the data position.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax._base.agreement import differences, parts
from embark_jax.cache.stored_array import StoredArray
from embark_jax.cache.stored_rows import StoredRows
from embark_jax.checkpoint.agreement import in_process_0, together
from embark_jax.checkpoint.description import ARRAYS, DESCRIPTION, NAME, Description
from embark_jax.checkpoint.errors import CheckpointError, OtherExperimentError, reason
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.layout import SavedArray, is_key, named_arrays, with_arrays
from embark_jax.checkpoint.reading import READING_BYTES, SavedCheckpoint
from embark_jax.checkpoint.restoring import restore_arrays
from embark_jax.checkpoint.writing import StateWriter
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import dynamic_blocks, table_layouts
from embark_jax.launch.agreement import WAIT_MS, of_process_0
from embark_jax.train.state import TrainState

GIGABYTE = 1e9

# Orbax logs each of its steps, and the errors that it raises.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)


class Checkpointer:
    """Writes and reads the checkpoints of one run.

    Args:
      folder: holds one subfolder per checkpoint, named by its step; it may lie in a
        bucket, ``gs://`` or ``s3://``.
      identity: JSON-like description of what a checkpoint must agree on to be loaded:
        seed, tables, features, model, optimizers; not plan or mesh. A saved one may
        have more keys than this one.
      keep: number of checkpoints to keep; older ones are deleted, and the rest of
        killed writes. None only reads, and changes nothing in the folder.
      memory_bytes: memory of this process that saving and restoring may take; None
        takes a quarter of its part of the state. With as much as its part, training
        waits for a copy in memory alone.
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
        self._keep = keep
        self.best_step: int | None = None
        self.evaluations: list[dict[str, Any]] = []
        self._memory_bytes = memory_bytes
        self._say = say
        self._writer = StateWriter()
        self._orbax = _orbax(self._writer, self._folder.temporary)
        self._damaged: set[int] = set()  # left out, and written anew
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        if keep is not None:
            in_process_0(functools.partial(self._folder.prepare, say))

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        # Of several processes the others may never come to where they close.
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
          state: state to save, a trainer's ``whole_state``; may be donated as soon as
            this returns.
          step: step of the state.
          embeddings: collection that the state belongs to.
          bad_ids: for each feature the ids dropped or hashed so far, so that a resumed
            run continues the count.

        Raises:
          CheckpointError: if this checkpoint, or the one before it, could not be
            written.
        """
        check_whole(state, embeddings)
        self._finish()
        begin = time.monotonic()
        keys, arrays = {}, named_arrays(state)
        for name, array in arrays.items():
            if is_key(array):
                keys[name] = str(jax.random.key_impl(array))
                arrays[name] = jax.random.key_data(array)
        saved = {name: SavedArray.of(name, array) for name, array in arrays.items()}
        description = Description(
            step=step,
            identity=self._identity,
            bad_ids=bad_ids,
            evaluations=self.evaluations,
            plan=json.loads(embeddings.plan.to_json()),
            arrays={name: (array.dtype, array.shape) for name, array in saved.items()},
            keys=keys,
            tables=table_layouts(
                embeddings.plan.storages, dynamic_blocks(embeddings, state.storages)
            ),
        )
        items = {
            ARRAYS: ocp.args.PyTreeSave(arrays),
            DESCRIPTION: ocp.args.JsonSave(description.to_json()),
        }
        # All come here once nothing of theirs is written any more: a step that failed
        # may be tried again.
        in_process_0(self._folder.check)
        self._writer.memory_bytes = self._memory_bytes
        try:
            self._orbax.save(
                self._folder.path / str(step),
                args=ocp.args.Composite(**items),
                force=step in self._damaged,
            )
        except Exception as error:
            raise self._failed(step, error) from None
        waited_s = time.monotonic() - begin

        def tidy():
            self._folder.check()
            self._folder.keep(self._keep or 1, self.best_step)

        def complete():
            try:
                self._orbax.wait_until_finished()
                in_process_0(tidy, "commit")
            except Exception as error:
                self._error = self._failed(step, error)
                return
            seconds, size = time.monotonic() - begin, self._writer.size / GIGABYTE
            self._say(
                f"checkpoint {step}: {size:.2f} GB in {seconds:.1f} s, "
                f"{size / seconds:.2f} GB/s; training waited {waited_s:.2f} s"
            )

        self._thread = threading.Thread(target=complete, name="checkpoint", daemon=True)
        self._thread.start()

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
          CheckpointError: if there is none, it is damaged, or of another model.
        """
        steps = chosen_steps(self._folder.path, self.steps, step)
        # The other processes may not see yet what process 0 sees.
        steps = of_process_0(steps)
        jax.block_until_ready(state)  # else reading pays for initial tables
        overwritten: dict[str, jax.Array] = {}  # by a checkpoint that was damaged

        def read(folder: epath.Path) -> tuple[TrainState, Description]:
            memory = min(self._memory_bytes or READING_BYTES, READING_BYTES)
            saved = SavedCheckpoint(folder, memory)
            self._check_identity(saved)
            check_whole(state, embeddings)
            arrays = named_arrays(state) | overwritten
            layouts = table_layouts(embeddings.plan.storages)
            restored = restore_arrays(saved, arrays, layouts, overwritten)
            return with_arrays(state, restored), saved.description

        damaged, problem = [], ""
        for number in steps:
            begin, folder = time.monotonic(), self._folder.path / str(number)
            try:
                restored, description = together(functools.partial(read, folder))
            except OtherExperimentError:
                raise
            except (CheckpointError, OSError) as error:
                problem = f"{folder}: is damaged ({reason(error)})"
                self._say(f"left out {problem}")
                damaged.append(number)
                continue
            seconds = time.monotonic() - begin
            self._say(f"checkpoint {number}: read in {seconds:.1f} s")
            if self._keep is not None and jax.process_index() == 0:
                for other in damaged:  # the run will come to these steps again
                    if path := self._folder.set_aside(other):
                        self._say(f"moved to {path}")
            self._damaged = set(damaged)
            self.evaluations = [dict(record) for record in description.evaluations]
            # device_put would compare the processes' values in a collective.
            sharding = NamedSharding(embeddings.mesh, PartitionSpec())
            put = jax.jit(lambda *values: values, out_shardings=sharding)
            at, halted = put(np.int32(number), np.bool_(False))
            restored = restored._replace(step=at, halted=halted)
            return restored, dict(description.bad_ids)
        older = "delete it to use an older one" if step else "and so are all older ones"
        raise CheckpointError(f"{problem}{';' if step else ','} {older}")

    def close(self) -> None:
        """Waits until everything is written.

        Raises:
          CheckpointError: if it could not be written.
        """
        try:
            self._finish()
        finally:
            self._folder.release()

    def _finish(self) -> None:
        """Waits for the checkpoint in the making; raises the reason if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _failed(self, step: int, error: Exception) -> CheckpointError:
        newest = "there is none yet"
        with contextlib.suppress(Exception):  # whatever a bucket's client raises
            if jax.process_index() == 0:
                self._folder.clear()
            if steps := self._folder.steps():
                newest = f"the newest is that of step {steps[-1]}"
        return CheckpointError(
            f"{self._folder.path / str(step)}: the checkpoint could not be written "
            f"({reason(error)}); {newest}"
        )

    def _check_identity(self, saved: SavedCheckpoint) -> None:
        theirs = parts(saved.description.identity, list(self._identity))
        if lines := differences(theirs, self._identity, "in the checkpoint"):
            raise OtherExperimentError(
                "\n  ".join([f"{saved.folder}: belongs to another experiment:", *lines])
            )


def chosen_steps(
    folder: epath.Path, steps: Sequence[int], step: int | None
) -> list[int]:
    """Returns the steps to try, best first: the given one, or all, the newest first.

    Raises:
      CheckpointError: if the given step is not among the complete checkpoints.
    """
    if not steps:
        raise CheckpointError(f"{folder}: holds no complete checkpoint")
    if step is not None and step not in steps:
        raise CheckpointError(
            f"{folder}: holds no complete checkpoint of step {step}, only of "
            f"{', '.join(map(str, steps))}"
        )
    return sorted(steps, reverse=True) if step is None else [step]


def check_whole(state: TrainState, embeddings: EmbeddingCollection) -> None:
    """Raises ``ValueError`` if a state has some rows of cached tables, not all."""
    for name in embeddings.cached:
        if not isinstance(state.storages[name], StoredArray | StoredRows):
            raise ValueError(
                f"the state has slots of {name}, which hold some rows of its tables "
                "alone; give Trainer.whole_state()"
            )


def _orbax(writer: StateWriter, temporary: type | None) -> ocp.AsyncCheckpointer:
    """Returns what saves arrays, which ``writer`` writes, and a description.

    Args:
      writer: writes the arrays.
      temporary: Orbax's class of checkpoints in the making; None is its own choice.
    """
    # With processes named, they wait without a collective.
    processes = ocp.options.MultiprocessingOptions(
        active_processes=set(range(jax.process_count()))
    )
    waiting = ocp.AsyncOptions(
        timeout_secs=WAIT_MS // 1000, create_directories_asynchronously=False
    )
    arrays = ocp.PyTreeCheckpointHandler(
        use_ocdbt=False,
        use_zarr3=True,
        multiprocessing_options=processes,
        type_handler_registry=ocp.type_handlers.create_type_handler_registry(
            (jax.Array, writer), (StoredArray, writer)
        ),
    )
    description = ocp.JsonCheckpointHandler(NAME, multiprocessing_options=processes)
    options = ocp.CompositeOptions(
        multiprocessing_options=processes,
        async_options=waiting,
        temporary_path_class=temporary,
    )
    items = ocp.CompositeCheckpointHandler(
        composite_options=options, **{ARRAYS: arrays, DESCRIPTION: description}
    )
    return ocp.AsyncCheckpointer(
        items,
        async_options=waiting,
        multiprocessing_options=processes,
        temporary_path_class=temporary,
    )
