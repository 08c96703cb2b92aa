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
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax._base.agreement import differences, parts
from embark_jax._base.errors import may_pass
from embark_jax._base.memory import bytes_text
from embark_jax._base.object_store import key_value_store
from embark_jax.cache.stored_rows import StoredArray, StoredRows
from embark_jax.checkpoint import digests
from embark_jax.checkpoint.arrays import SavedArray, is_key, named_arrays, with_arrays
from embark_jax.checkpoint.contents import (
    ARRAYS,
    FILE,
    ORBAX_FILE,
    CheckpointContents,
    orbax_metadata,
)
from embark_jax.checkpoint.errors import (
    CheckpointError,
    OtherExperimentError,
    OverwrittenError,
    reason,
    run_on_all,
)
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.reading import SavedCheckpoint
from embark_jax.checkpoint.restoring import fill
from embark_jax.checkpoint.writing import start_writing
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import dynamic_blocks, table_shards
from embark_jax.launch.agreement import from_process_0
from embark_jax.plans.layout import SHARD_FIELDS
from embark_jax.train.state import TrainState


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
        self._identity, self._keep = identity, keep
        self._memory_bytes, self._say = memory_bytes, say
        self.best_step: int | None = None
        self.evaluations: list[dict[str, Any]] = []
        self._damaged: set[int] = set()  # cannot be read, and may be written anew
        self._saving: tuple[int, Future[None]] | None = None  # a step, and its write
        if keep is not None:
            run_on_all(self._by_process_0(self._folder.prepare))

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
        if self._keep is None:
            raise ValueError(
                "keep is None, must be a number for checkpoints to be saved"
            )
        check_whole(state, embeddings)
        self._finish()
        begin, keys, arrays = time.monotonic(), {}, named_arrays(state)
        for name, array in arrays.items():
            if is_key(array):
                keys[name] = str(jax.random.key_impl(array))
                arrays[name] = jax.random.key_data(array)
        saved = {name: SavedArray.of(name, array) for name, array in arrays.items()}
        blocks = dynamic_blocks(embeddings, state.storages)
        shards = table_shards(embeddings.plan.storages, blocks)
        contents = CheckpointContents(
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
                name: {field: fields[field].tolist() for field in SHARD_FIELDS}
                for name, fields in shards.items()
            },
        ).to_json()
        folder = self._folder.unfinished(step)
        try:
            run_on_all(self._by_process_0(self._folder.begin, step))
            written = run_on_all(
                lambda: start_writing(folder / ARRAYS, arrays, self._memory_bytes)
            )
        except Exception as error:
            raise self._failed(step, error) from None
        copied_s = time.monotonic() - begin

        def write_all() -> None:
            for write in written.writes:
                write.result()
            files = ts.KvStore.open(key_value_store(folder)).result()
            own = digests.digests_text(contents["checksum"], written.digests)
            texts = {digests.NAME.format(jax.process_index()): own}
            if jax.process_index() == 0:
                texts |= {FILE: json.dumps(contents), ORBAX_FILE: orbax_metadata(saved)}
            for name, text in texts.items():
                files.write(name, text.encode()).result()

        def commit() -> None:
            self._folder.commit(step)
            self._damaged.discard(step)
            self._remove_old()
            size, seconds = bytes_text(written.size), time.monotonic() - begin
            self._say(
                f"checkpoint {step}: {size} in {seconds:.1f} s; training waited "
                f"{copied_s:.2f} s"
            )

        def finish() -> None:
            run_on_all(write_all, "commit")
            run_on_all(self._by_process_0(commit), "commit")

        self._saving = step, in_background(finish)

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
        steps = from_process_0(self._folder.chosen_steps(step))
        check_whole(state, embeddings)
        jax.block_until_ready(state)  # else reading pays for initial tables
        arrays = named_arrays(state)

        def read(folder: epath.Path) -> CheckpointContents:
            saved = SavedCheckpoint(folder)
            theirs = parts(saved.contents.identity, list(self._identity))
            if lines := differences(theirs, self._identity, "in the checkpoint"):
                lines = ["belongs to another experiment:", *lines]
                raise OtherExperimentError("\n  ".join(lines))
            fill(saved, arrays, embeddings.plan, saved.contents.table_rows)
            return saved.contents

        problem, kind, begin = "", CheckpointError, time.monotonic()
        for number in steps:
            folder = self._folder.checkpoint(number)
            try:
                contents = run_on_all(functools.partial(read, folder))
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
        self._damaged = {*steps[: steps.index(number)]}
        self.evaluations = [dict(record) for record in contents.evaluations]
        # device_put would compare the processes' values in a collective.
        sharding = NamedSharding(embeddings.mesh, PartitionSpec())
        put = jax.jit(lambda *values: values, out_shardings=sharding)
        at, halted = put(np.int32(number), np.bool_(False))
        restored = with_arrays(state, arrays)._replace(step=at, halted=halted)
        return restored, dict(contents.bad_ids)

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
        if self._saving is None:
            return
        step, write = self._saving
        try:
            write.result()
        except Exception as error:
            raise self._failed(step, error) from None
        self._saving = None

    def _remove_old(self) -> None:
        """Deletes all checkpoints but the newest and the best; of those that are
        damaged nobody counts on any."""
        assert self._keep is not None
        steps = [step for step in self._folder.steps() if step not in self._damaged]
        old = [step for step in steps[: -self._keep] if step != self.best_step]
        self._folder.remove(old)

    def _by_process_0(self, function: Callable, *arguments: Any) -> Callable[[], None]:
        """Returns what calls a function in process 0, and does nothing in others."""
        is_first = jax.process_index() == 0
        return lambda: function(*arguments) if is_first else None

    def _failed(self, step: int, error: Exception) -> CheckpointError:
        self._saving, newest = None, "there is none yet"
        with contextlib.suppress(Exception):  # whatever a bucket's client raises
            if jax.process_index() == 0:
                self._folder.clear()
            if steps := self._folder.steps():
                newest = f"the newest is that of step {steps[-1]}"
        return CheckpointError(
            f"{self._folder.checkpoint(step)}: the checkpoint could not be written "
            f"({reason(error)}); {newest}",
            may_pass=may_pass(error),
        )


def check_whole(state: TrainState, embeddings: EmbeddingCollection) -> None:
    """Raises ``ValueError`` if a state has some rows of cached tables, not all."""
    for name in embeddings.cached:
        if not isinstance(state.storages[name], StoredArray | StoredRows):
            raise ValueError(
                f"the state has slots of {name}, which hold some rows of its tables "
                "alone; give Trainer.whole_state()"
            )


def in_background(function: Callable[[], None]) -> Future[None]:
    """Calls a function in a thread that does not outlive the program."""
    future: Future[None] = Future()

    def call():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="checkpoint-commit", daemon=True).start()
    return future
