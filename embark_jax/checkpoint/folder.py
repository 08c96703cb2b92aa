"""The folder of a run's checkpoints: which are complete, and which may go.

Orbax writes a checkpoint under a temporary name, and gives it the name of its step when
it is complete.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from pathlib import Path

import orbax.checkpoint as ocp

from embark_jax.checkpoint.description import DESCRIPTION, NAME
from embark_jax.checkpoint.errors import CheckpointError


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
        self.clear()

    def release(self) -> None:
        """Lets other writers in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in order."""
        names = ocp.step.standard_name_format()
        return sorted(each.step for each in names.find_all(self.path))

    def clear(self) -> None:
        """Deletes what is left of writes that were killed or failed."""
        for temporary in ocp.step.all_temporary_paths(self.path):
            shutil.rmtree(temporary.get(), ignore_errors=True)

    def set_aside(self, step: int) -> Path:
        """Gives a damaged checkpoint another name, and returns it."""
        names = (f"{step}.damaged-{i}" for i in itertools.count(1))
        path = next(self.path / n for n in names if not (self.path / n).exists())
        return (self.path / str(step)).rename(path)

    def keep(self, count: int, best: int | None) -> None:
        """Deletes all checkpoints except the newest ones and the best.

        They become temporary first, so that no name ever stands for a part of one.
        """
        steps = self.steps()
        # Orbax does not: what is older may go when the newest is on the disk.
        for path in (self.path / str(steps[-1]) / DESCRIPTION / NAME, self.path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for step in steps[:-count]:
            if step != best:
                path = self.path / str(step)
                path.rename(path.with_name(path.name + ocp.utils.TMP_DIR_SUFFIX))
        self.clear()
