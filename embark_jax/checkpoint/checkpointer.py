"""The checkpoints of a run: saved during training, restored whatever plan wrote them.

Each process writes and reads for its own devices, and waits for others only before it
continues with them. The order of data is a function of seed and step: the step, with
the seed in the identity, is the data position.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax._base.config import differences
from embark_jax._base.memory import free_memory_bytes
from embark_jax._base.storage import local
from embark_jax.cache.stored_array import StoredArray
from embark_jax.checkpoint.errors import (
    CheckpointError,
    ForeignCheckpointError,
    OtherExperimentError,
)
from embark_jax.checkpoint.files import write_file
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.layout import check_whole, lay_out, named_arrays, with_arrays
from embark_jax.checkpoint.manifest import NAME, Manifest
from embark_jax.checkpoint.reading import SavedCheckpoint
from embark_jax.checkpoint.restoring import restore_array, restore_tables
from embark_jax.checkpoint.writing import GIGABYTE, StateWriter
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import table_layouts
from embark_jax.launch.agreement import tell_all
from embark_jax.train.state import TrainState

PLAN_NAME = "plan.json"
READING_BYTES = 256 << 20
"""Most bytes of memory that reading takes: more makes it no faster."""


MakeRoom = Callable[[Mapping[str, int]], tuple[TrainState, EmbeddingCollection]]


class Checkpointer:
    """Writes and reads the checkpoints of one run.

    Args:
      folder: holds one subfolder per checkpoint, named by its step.
      identity: JSON-like description of what a checkpoint must agree on to be loaded:
        seed, tables, features, model, optimizers; not plan or mesh. A saved one may
        have more keys than this one.
      keep: number of checkpoints to keep; older ones are deleted, and the rest of
        killed writes. None only reads, and changes nothing in the folder.
      memory_bytes: memory of this process that saving and restoring may take; None
        takes as much as a copy of its part of the state, but at most half of what is
        free.
      say: gets a line about each checkpoint and about those that were left out.

    Attributes:
      best_step: step of a checkpoint to keep however old it gets; None keeps none.
      evaluations: records of the run's evaluations, for the rules that continue from
        them; each checkpoint keeps them, ``restore`` sets them.

    Raises:
      CheckpointError: if another run writes into the folder.
      OSError: if the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        keep: int | None,
        memory_bytes: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ):
        self._folder = CheckpointFolder(local(folder).absolute())
        self._identity = identity
        self._keep = keep
        self.best_step: int | None = None
        self.evaluations: list[dict[str, Any]] = []
        self._memory_bytes = memory_bytes
        self._say = say
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        if keep is not None:
            self._prepare()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        # With several processes the others may never come to where they close.
        if kind is None or jax.process_count() == 1:
            self.close()

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in order; waits for one in the making.

        Raises:
          CheckpointError: if the latter could not be written, or if the newest is of an
            older version.
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
        named = named_arrays(state, tables=True) | named_arrays(state, tables=False)
        arrays, kinds = _numbers(named)
        layout = lay_out(arrays, embeddings.mesh)
        manifest = Manifest(
            step,
            self._identity,
            dict(bad_ids),
            list(self.evaluations),
            layout.files,
            {
                name: dataclasses.replace(each, key=kinds.get(name))
                for name, each in layout.arrays.items()
            },
            table_layouts(embeddings.plan.storages),
        )
        # All come here once nothing of theirs is written any more: a step that failed
        # may be tried again.
        hosts = tell_all(platform.node())
        memory = self._memory_bytes or _memory_share(hosts)
        writer, problem = None, ""
        try:
            folder = self._folder.begin(step)
            if jax.process_index() == 0:
                (folder / PLAN_NAME).write_text(embeddings.plan.to_json())
                write_file(folder / NAME, manifest.to_json().encode())
            writer = StateWriter(folder, arrays, layout, embeddings.mesh, memory)
        except OSError as error:
            problem = _reason(error)
        # Without this wait the others' next step would wait for a slow disk here.
        problems = [each for each in tell_all(problem) if each]
        if writer is None or problems:
            if writer is not None:
                writer.abandon()
            raise self._failed(step, problems[0], all_know=True)
        copied_s = time.monotonic() - begin

        def complete():
            try:
                writer.finish(lambda line: self._say(f"checkpoint {step}: {line}"))
                self._complete(step, manifest)
            except (OSError, CheckpointError) as error:
                self._error = self._failed(step, _reason(error))
                return
            seconds, size = time.monotonic() - begin, writer.size / GIGABYTE
            self._say(
                f"checkpoint {step}: {size:.2f} GB in {seconds:.1f} s, "
                f"{size / seconds:.2f} GB/s; training waited {copied_s:.2f} s"
            )

        self._thread = threading.Thread(target=complete, name="checkpoint", daemon=True)
        self._thread.start()

    def restore(
        self,
        state: TrainState,
        embeddings: EmbeddingCollection,
        step: int | None = None,
        make_room: MakeRoom | None = None,
    ) -> tuple[TrainState, dict[str, int]]:
        """Reads a checkpoint into a state of this model, whatever plan wrote it.

        Args:
          state: a trainer's ``whole_state``, for structure and shardings; consumed.
          embeddings: collection that the state belongs to.
          step: step of the checkpoint; None takes the newest that is not damaged.
          make_room: returns state and collection anew, with room for so many rows of
            each table: dynamic ones may have grown.

        Returns:
          The state, and the ``bad_ids`` that were saved with it.

        Raises:
          CheckpointError: if there is none, it is damaged, or of another model.
        """
        steps = chosen_steps(self._folder.path, self.steps, step)
        # The other processes may not see yet what process 0 sees.
        steps = [int(each) for each in tell_all(" ".join(map(str, steps)))[0].split()]
        memory = min(self._memory_bytes or READING_BYTES, READING_BYTES)
        jax.block_until_ready(state)  # else reading pays for initial tables
        tables: dict[str, jax.Array] = {}
        problems: list[str] = []
        damaged: list[int] = []
        for number in steps:
            begin, restored, problem = time.monotonic(), None, ""
            folder = self._folder.path / str(number)
            try:
                with SavedCheckpoint(folder, memory) as saved:
                    self._check_identity(saved)
                    if make_room is not None:
                        state, embeddings = make_room(saved.manifest.table_rows)
                    check_whole(state, embeddings)
                    tables = named_arrays(state, tables=True) | {
                        name: array  # already overwritten in part
                        for name, array in tables.items()
                        if not isinstance(array, StoredArray)
                    }
                    places = table_layouts(embeddings.plan.storages)
                    restore_tables(saved, tables, places)
                    restored = _state(saved, state, tables, embeddings)
            except ForeignCheckpointError:
                raise
            except (CheckpointError, OSError) as error:
                problem = f"{folder}: is damaged ({_reason(error)})"
            problems = [each for each in tell_all(problem) if each]
            if restored is not None and not problems:
                seconds = time.monotonic() - begin
                self._say(f"checkpoint {number}: read in {seconds:.1f} s")
                self._set_aside(damaged)
                self.evaluations = [dict(r) for r in saved.manifest.evaluations]
                return restored, dict(saved.manifest.bad_ids)
            self._say(f"left out {problems[0]}")
            damaged.append(number)
        raise CheckpointError(
            f"{problems[0]}; delete it to use an older one"
            if step is not None
            else f"{problems[0]}, and so are all older ones"
        )

    def close(self) -> None:
        """Waits until everything is written.

        Raises:
          CheckpointError: if it could not be written.
        """
        try:
            self._finish()
        finally:
            self._folder.release()

    def _prepare(self) -> None:
        """Process 0 clears the folder before any other writes into it."""
        error, problem = None, ""
        if jax.process_index() == 0:
            try:
                self._folder.prepare()
            except (OSError, CheckpointError) as caught:
                error, problem = caught, str(caught)
        problems = [each for each in tell_all(problem) if each]
        if error is not None:
            raise error
        if problems:
            raise CheckpointError(problems[0])

    def _set_aside(self, damaged: list[int]) -> None:
        """Makes room for checkpoints of the same steps, in a run that resumes."""
        if self._keep is not None and jax.process_index() == 0:
            for step in damaged:
                self._say(f"moved to {self._folder.set_aside(step)}")

    def _complete(self, step: int, manifest: Manifest) -> None:
        """Gives the checkpoint its name when all processes have written their parts."""
        if jax.process_index() == 0:
            self._folder.commit(step, manifest.files)
            if self._keep is not None:
                self._folder.keep(self._keep, self.best_step)
        else:
            self._folder.wait_for_commit(step)

    def _finish(self) -> None:
        """Waits for the checkpoint in the making; raises the reason if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _failed(
        self, step: int, reason: str, all_know: bool = False
    ) -> CheckpointError:
        process = jax.process_index()
        with contextlib.suppress(OSError):
            if process == 0:
                self._folder.discard(self._folder.temporary(step))
            elif not all_know:
                self._folder.tell_failed(step, process, reason)
        left = "there is none yet"
        with contextlib.suppress(OSError, CheckpointError):
            if steps := self._folder.steps():
                left = f"the newest is that of step {steps[-1]}"
        return CheckpointError(
            f"{self._folder.path / str(step)}: the checkpoint could not be written "
            f"({reason}); {left}"
        )

    def _check_identity(self, saved: SavedCheckpoint) -> None:
        theirs = saved.manifest.identity
        theirs = {key: theirs.get(key) for key in self._identity}
        if found := differences(theirs, self._identity, "in the checkpoint"):
            lines = "\n  ".join(found)
            raise OtherExperimentError(
                f"{saved.folder}: belongs to another experiment:\n  {lines}"
            )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _memory_share(hosts: Sequence[str]) -> int:
    """Returns this process's share of half of its host's free memory."""
    return free_memory_bytes() // 2 // hosts.count(platform.node())


def chosen_steps(folder: Path, steps: Sequence[int], step: int | None) -> list[int]:
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


def _numbers(
    arrays: Mapping[str, jax.Array],
) -> tuple[dict[str, jax.Array], dict[str, str]]:
    """Replaces random keys by their data; returns the arrays and the keys' kinds."""
    kinds = {
        name: str(jax.random.key_impl(array))
        for name, array in arrays.items()
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    }
    numbers = {
        name: jax.random.key_data(array) if name in kinds else array
        for name, array in arrays.items()
    }
    return numbers, kinds


def _state(
    saved: SavedCheckpoint,
    like: TrainState,
    tables: Mapping[str, jax.Array],
    embeddings: EmbeddingCollection,
) -> TrainState:
    """Returns the state, with the given arrays of the tables."""
    dense = named_arrays(like, tables=False)
    arrays = dict(tables) | {
        name: restore_array(saved, name, array) for name, array in dense.items()
    }
    # device_put would compare the processes' values in a collective.
    put = jax.jit(
        lambda *values: values,
        out_shardings=NamedSharding(embeddings.mesh, PartitionSpec()),
    )
    step, halted = put(np.int32(saved.manifest.step), np.bool_(False))
    return with_arrays(like, arrays)._replace(step=step, halted=halted)
