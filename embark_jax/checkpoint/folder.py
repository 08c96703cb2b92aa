"""The folder of a run's checkpoints: which are complete, who may write, what is kept.

A checkpoint is written under a temporary name, and gets the name of its step when it is
complete. In a bucket, where nothing can be renamed, a last file says that it is. Names
are those of Orbax, whose readers know by them what is complete.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import filelock
from etils import epath

from embark_jax._base.bucket_copy import bucket_folder, check_writable
from embark_jax._base.files import check_path, locked
from embark_jax._base.object_store import (
    file_system_or_bucket,
    in_bucket,
    reached,
)
from embark_jax.checkpoint.contents import ARRAYS
from embark_jax.checkpoint.errors import CheckpointError

STEP = re.compile("0|[1-9][0-9]*")
UNFINISHED = ".orbax-checkpoint-tmp"
COMMITTED = "commit_success.txt"
"""File of a checkpoint in a bucket that says that it is complete."""


class CheckpointFolder:
    """The checkpoints in a folder, and the lock of its writer.

    Args:
      path: path of the folder.

    Attributes:
      path: path of the folder, absolute if on a file system.
    """

    def __init__(self, path: str | os.PathLike[str]):
        check_path(path)
        self._is_bucket = in_bucket(path)
        path = file_system_or_bucket(path)
        self.path = epath.Path(path if self._is_bucket else Path(path).absolute())
        self._lock: filelock.BaseFileLock | None = None

    def prepare(self) -> None:
        """Makes the folder, keeps other writers out, and clears what was left. Nothing
        keeps writers of other machines out of a bucket.

        Raises:
          CheckpointError: if another program writes there.
          OSError, StorageError: if the folder cannot be written.
        """
        if self._is_bucket:
            check_writable(self.path)
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            told = "another run writes its checkpoints here; stop it, or use another"
            error = CheckpointError(f"{self.path}: {told} --workdir")
            self._lock = locked(Path(self.path / ".lock"), error)
        self.clear()

    def release(self) -> None:
        """Lets other writers in."""
        if self._lock is not None:
            self._lock.release()

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in order."""
        complete = f"{{}}/{COMMITTED if self._is_bucket else ARRAYS}"
        with reached(self.path):
            files, names = self._listed()
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

    def checkpoint(self, step: int) -> epath.Path:
        """Returns the folder of a checkpoint."""
        return self.path / str(step)

    def unfinished(self, step: int) -> epath.Path:
        """Returns the folder of a checkpoint until it is complete."""
        name = str(step) if self._is_bucket else f"{step}{UNFINISHED}"
        return self.path / name

    def begin(self, step: int) -> None:
        """Makes the folder of a checkpoint that will be written, without what is left
        of others."""
        self.clear()
        if self._is_bucket:
            self.remove([step])
        else:
            (self.unfinished(step) / ARRAYS).mkdir(parents=True)

    def commit(self, step: int) -> None:
        """Says that a checkpoint is complete. It takes the place of one that is there,
        as that is damaged."""
        if self._is_bucket:
            (self.unfinished(step) / COMMITTED).write_text("")
            return
        self.remove([step])
        self.unfinished(step).rename(self.checkpoint(step))

    def remove(self, steps: list[int]) -> None:
        """Deletes checkpoints."""
        with reached(self.path):
            files, names = self._listed()
            for name in {str(step) for step in steps} & names:
                if self._is_bucket:  # without this file it is none any more
                    if files.exists(f"{name}/{COMMITTED}"):
                        files.rm_file(f"{name}/{COMMITTED}")
                else:
                    left = self.path / f"{name}{UNFINISHED}.old"
                    name = (self.path / name).rename(left).name
                files.rm(name, recursive=True)

    def clear(self) -> None:
        """Deletes what is left of writes that were killed or failed."""
        with reached(self.path):
            files, names = self._listed()
            for name in names:
                if self._is_bucket:
                    is_left = STEP.fullmatch(name)
                    is_left = is_left and not files.exists(f"{name}/{COMMITTED}")
                else:
                    is_left = UNFINISHED in name
                if is_left:
                    files.rm(name, recursive=True)

    def _listed(self) -> tuple[Any, set[str]]:
        """Returns the folder as a file system, and the names in it; what was listed
        before may have been changed by another process."""
        files = bucket_folder(self.path)
        return files, {*files.ls("", detail=False)} if files.exists("") else set()
