"""Orbax's manager of checkpoints, set up for ours: what it writes, names and keeps."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from embark_jax.cache.stored_rows import StoredArray
from embark_jax.checkpoint.description import ARRAYS, DESCRIPTION, NAME
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.writing import StateWriter
from embark_jax.launch.agreement import WAIT_MS

# Orbax logs each of its steps, and the errors that it raises.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)


class Manager(ocp.CheckpointManager):
    """Orbax's manager, which saves in the background, gives a checkpoint its name when
    it is complete, deletes older ones, and has all processes wait for each other.

    Args:
      folder, writer: where arrays are written, and what writes them.
      keep: number of newest checkpoints to keep, beside that of ``best_step``.
      written: is called, in process 0, when all files of a checkpoint are written.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        writer: StateWriter,
        keep: int,
        best_step: Callable[[], int | None],
        written: Callable[[], None],
    ):
        # With processes named, they wait without a collective.
        processes = ocp.options.MultiprocessingOptions(
            active_processes=set(range(jax.process_count()))
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
        options = ocp.CheckpointManagerOptions(
            create=False,
            step_name_format=folder,
            preservation_policy=policies.AnyPreservationPolicy(
                [policies.LatestN(keep), Best(best_step)]
            ),
            temporary_path_class=folder.temporary,
            multiprocessing_options=processes,
            async_options=ocp.AsyncOptions(
                timeout_secs=WAIT_MS // 1000,
                create_directories_asynchronously=False,
                post_finalization_callback=written,
            ),
        )
        handlers = {ARRAYS: arrays, DESCRIPTION: description}
        super().__init__(folder.path, options=options, item_handlers=handlers)
        # It gives checkpoints in a bucket their names so, but not the items in them.
        items: Any = self._checkpointer.handler
        items._temporary_path_class = folder.temporary

    def reached_preemption(self, step: int) -> bool:
        """Returns False: JAX's service must not be asked about steps that have passed,
        or the processes of a run that is asked to stop do not agree on where."""
        return False


@dataclasses.dataclass
class Best(policies.PreservationPolicy):
    """Preserves the checkpoint of the best step, whichever that is now."""

    step: Callable[[], int | None]

    def should_preserve(
        self,
        checkpoints: Sequence[policies.PolicyCheckpointInfo],
        *,
        context: policies.PreservationContext,
    ) -> list[bool]:
        best = self.step()
        return [checkpoint.step == best for checkpoint in checkpoints]
