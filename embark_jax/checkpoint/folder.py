"""The folder of a run's checkpoints: which are complete, and who may write.

Orbax writes a checkpoint under a temporary name, and gives it the name of its step when
it is complete; in a bucket, where nothing can be renamed, it writes a file at last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import filelock
import orbax.checkpoint as ocp
from etils import epath

from embark_jax._base.bucket_copy import bucket_folder, check_writable
from embark_jax._base.storage import file_system_or_bucket, in_bucket, reached
from embark_jax.checkpoint.description import ARRAYS
from embark_jax.checkpoint.errors import CheckpointError

STEP = re.compile("0|[1-9][0-9]*")
COMMITTED = ocp.path.atomicity.COMMIT_SUCCESS_FILE
"""File of a checkpoint in a bucket that says that it is complete."""


class CheckpointFolder(ocp.step.NameFormat[ocp.step.Metadata]):
    """The checkpoints in a folder by name, as Orbax's manager asks for them, and the
    lock of its writer.

    Args:
      path: path of the folder.

    Attributes:
      path: path of the folder, absolute if on a file system.
      temporary: Orbax's class of checkpoints in the making; None is its own choice.
      damaged: steps of checkpoints that are there and cannot be read: Orbax may write
        them anew.
    """

    def __init__(self, path: str | os.PathLike[str]):
        is_local = not in_bucket(path)
        path = file_system_or_bucket(path)
        self.path = epath.Path(Path(path).absolute() if is_local else path)
        self.damaged: set[int] = set()
        self._lock: filelock.BaseFileLock | None = None
        classes = ocp.path.atomicity
        # Orbax knows of Google's buckets alone.
        self.temporary = None if is_local else classes.CommitFileTemporaryPath

    def prepare(self) -> None:
        """Makes the folder, keeps other writers out, and clears what was left. Nothing
        keeps writers of other machines out of a bucket.

        Raises:
          CheckpointError: if another program writes there.
          OSError, StorageError: if the folder cannot be written.
        """
        if in_bucket(self.path):
            check_writable(self.path)
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = filelock.FileLock(self.path / ".lock", thread_local=False)
            try:
                self._lock.acquire(blocking=False)
            except filelock.Timeout:
                raise CheckpointError(
                    f"{self.path}: another run writes its checkpoints here; stop it, "
                    "or use another --workdir"
                ) from None
        with reached(self.path):
            self.clear()

    def release(self) -> None:
        """Lets other writers in."""
        if self._lock is not None:
            self._lock.release()

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in order."""
        complete = f"{{}}/{COMMITTED}" if in_bucket(self.path) else f"{{}}/{ARRAYS}"
        with reached(self.path):
            # What another process wrote is unknown to who has listed it before.
            files = bucket_folder(self.path)
            names = files.ls("", detail=False) if files.exists("") else ()
            return sorted(
                int(name)
                for name in names
                if STEP.fullmatch(name) and files.exists(complete.format(name))
            )

    def chosen_steps(self, step: int | None) -> list[int]:
        """Returns the steps to try, best first: the given one, or all, the newest
        first.

        Raises:
          CheckpointError: if the given step is not among the complete checkpoints.
        """
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"{self.path}: holds no complete checkpoint")
        if step is not None and step not in steps:
            raise CheckpointError(
                f"{self.path}: holds no complete checkpoint of step {step}, only of "
                f"{', '.join(map(str, steps))}"
            )
        return steps[::-1] if step is None else [step]

    def of_step(self, step: int) -> epath.Path:
        """Returns the folder of a checkpoint."""
        return self.path / str(step)

    def unfinished(self) -> list[epath.Path]:
        """Returns the folders of checkpoints in the making, or of killed writes."""
        paths = ocp.step.all_temporary_paths(
            self.path, temporary_path_cls=self.temporary
        )
        return [path.get() for path in paths]

    def clear(self) -> None:
        """Deletes what is left of writes that were killed or failed."""
        for left in self.unfinished():
            left.rmtree(missing_ok=True)

    def build_name(self, step: int) -> str:
        return str(step)

    def find_all(self, base_path: epath.PathLike) -> Iterator[ocp.step.Metadata]:
        for step in self.steps():
            if step not in self.damaged:
                yield ocp.step.Metadata(step, self.of_step(step))

    def find_step(self, base_path: epath.PathLike, step: int) -> ocp.step.Metadata:
        return ocp.step.Metadata(step, self.of_step(step))
