"""The folder of a run's checkpoints: which are complete, and how one becomes complete.

A checkpoint is written as ``STEP.tmp``, and is complete when it has the name ``STEP``.
Anything with another name remains from a write that was killed.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.checkpoint.files import sums_path, sync_folder, write_synced
from embark_jax.checkpoint.manifest import NAME

TEMPORARY = ".tmp"
FAILED = "failed-"
"""A process that cannot write its part leaves the reason in such a file."""
PATIENCE_S = 3600.0
"""Seconds by which one process may write later than another."""
GLANCE_S = 0.05


class CheckpointFolder:
    """The names in the folder, and the lock of its writer.

    Args:
      path: path of the folder.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None

    def prepare(self) -> None:
        """Makes the folder, keeps other writers out, and clears what was left.

        Raises:
          CheckpointError: if another program writes there.
          OSError: if the folder cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise CheckpointError(
                f"{self.path}: another run writes its checkpoints here; stop it, or "
                "use another --workdir"
            ) from None
        except OSError:
            pass  # a filesystem without locks
        for path in self.path.glob(f"*{TEMPORARY}"):
            shutil.rmtree(path, ignore_errors=True)

    def release(self) -> None:
        """Lets other writers in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in order."""
        if not self.path.is_dir():
            return []
        names = [path.name for path in self.path.iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def temporary(self, step: int) -> Path:
        """Returns the path at which the checkpoint is written."""
        return self.path / f"{step}{TEMPORARY}"

    def begin(self, step: int) -> Path:
        """Makes the folder to write into, and returns it.

        Raises:
          CheckpointError: if that step already has a checkpoint.
        """
        if (self.path / str(step)).exists():
            raise CheckpointError(f"{self.path / str(step)}: is there already")
        folder = self.temporary(step)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def commit(self, step: int, files: Mapping[str, int]) -> None:
        """Waits until all files are written, by whichever process, and makes them a
        checkpoint.

        Args:
          step: step of the checkpoint.
          files: bytes of each file.

        Raises:
          CheckpointError: if a process could not write its part.
        """
        folder = self.temporary(step)
        wanted = [sums_path(folder / name) for name in (*files, NAME)]
        deadline = time.monotonic() + PATIENCE_S
        while missing := [path.name for path in wanted if not path.exists()]:
            for path in folder.glob(f"{FAILED}*"):
                raise CheckpointError(path.read_text())
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{folder}: {missing[0]} and {len(missing) - 1} more files have "
                    f"not come in {PATIENCE_S:.0f} s"
                )
            time.sleep(GLANCE_S)
        for name, size in files.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != size:
                raise CheckpointError(f"{name} was taken away or cut")
        sync_folder(folder)
        folder.rename(self.path / str(step))
        sync_folder(self.path)

    def wait_for_commit(self, step: int) -> None:
        """Waits until process 0 has completed the checkpoint, or given it up."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self.path / str(step)).exists():
            if not self.temporary(step).exists() or time.monotonic() > deadline:
                if (self.path / str(step)).exists():
                    return
                raise CheckpointError("process 0 has not completed it")
            time.sleep(GLANCE_S)

    def tell_failed(self, step: int, process: int, reason: str) -> None:
        """Tells process 0, which waits in ``commit``, that a part cannot be written."""
        folder = self.temporary(step)
        if folder.exists():
            write_synced(folder / f"{FAILED}{process}", reason.encode())

    def discard(self, path: Path) -> None:
        """Deletes a checkpoint, complete or not.

        It loses its name first, so that no name ever stands for a part of it and no
        process writes into it any more.
        """
        names = (f"{path.stem}.old-{i}{TEMPORARY}" for i in itertools.count(1))
        doomed = next(self.path / n for n in names if not (self.path / n).exists())
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def set_aside(self, step: int) -> Path:
        """Gives a damaged checkpoint another name, and returns it."""
        names = (f"{step}.damaged-{i}" for i in itertools.count(1))
        path = next(self.path / n for n in names if not (self.path / n).exists())
        return (self.path / str(step)).rename(path)

    def keep(self, count: int, best: int | None) -> None:
        """Deletes all checkpoints except the newest ones and the best."""
        for step in self.steps()[:-count]:
            if step != best:
                self.discard(self.path / str(step))
