"""The folder of a run's checkpoints: which are complete, and which may go.

Orbax writes a checkpoint under a temporary name, and gives it the name of its step when
it is complete; in a bucket, where nothing can be renamed, it writes a file at last.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

import orbax.checkpoint as ocp
from etils import epath

from embark_jax._base.bucket_copy import bucket_client, check_writable, children
from embark_jax._base.storage import file_system_or_bucket, in_bucket, reached
from embark_jax.checkpoint.description import DESCRIPTION, NAME
from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.checkpoint.lease import Lease

STEP = re.compile("0|[1-9][0-9]*")
COMMITTED = ocp.path.atomicity.COMMIT_SUCCESS_FILE
"""File of a checkpoint in a bucket that says that it is complete."""


class CheckpointFolder:
    """The names in the folder, and the lock of its writer.

    Args:
      path: path of the folder.

    Attributes:
      path: path of the folder, absolute if on a file system.
      temporary: Orbax's class of checkpoints in the making; None is its own choice.
    """

    def __init__(self, path: str | os.PathLike[str]):
        is_local = not in_bucket(path)
        path = file_system_or_bucket(path)
        self.path = epath.Path(Path(path).absolute() if is_local else path)
        self._lock: int | Lease | None = None
        classes = ocp.path.atomicity
        # Orbax knows of Google's buckets alone.
        self.temporary = None if is_local else classes.CommitFileTemporaryPath

    def prepare(self, say: Callable[[str], None]) -> None:
        """Makes the folder, keeps other writers out, and clears what was left.

        Args:
          say: gets a line if this waits.

        Raises:
          CheckpointError: if another program writes there.
          OSError, StorageError: if the folder cannot be written.
        """
        if in_bucket(self.path):
            check_writable(self.path)
            self._lock = Lease(self.path, say)
            with reached(self.path):
                self.clear()
            return
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

    def check(self) -> None:
        """Raises ``CheckpointError`` if another program has begun to write there."""
        if isinstance(self._lock, Lease):
            self._lock.check()

    def release(self) -> None:
        """Lets other writers in."""
        if isinstance(self._lock, Lease):
            self._lock.release()
        elif self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in order."""
        if not in_bucket(self.path):
            names = self.path.iterdir() if self.path.exists() else ()
            return sorted(
                int(path.name)
                for path in names
                if STEP.fullmatch(path.name) and path.is_dir()
            )
        with reached(self.path):
            # What another process wrote is unknown to who has listed it before.
            files, root = bucket_client(self.path)
            names = [child["name"].split("/")[-1] for child in children(files, root)]
            return sorted(
                int(name)
                for name in names
                if STEP.fullmatch(name) and files.exists(f"{root}/{name}/{COMMITTED}")
            )

    def clear(self) -> None:
        """Deletes what is left of writes that were killed or failed."""
        for left in ocp.step.all_temporary_paths(
            self.path, temporary_path_cls=self.temporary
        ):
            left.get().rmtree(missing_ok=True)

    def set_aside(self, step: int) -> epath.Path | None:
        """Gives a damaged checkpoint another name, and returns it; None in a bucket,
        where that would copy all of it."""
        if in_bucket(self.path):
            return None
        names = (f"{step}.damaged-{i}" for i in itertools.count(1))
        path = next(self.path / n for n in names if not (self.path / n).exists())
        return (self.path / str(step)).rename(path)

    def keep(self, count: int, best: int | None) -> None:
        """Deletes all checkpoints except the newest ones and the best.

        They become temporary first, so that no name ever stands for a part of one.
        """
        steps = self.steps()
        if not in_bucket(self.path):
            # Orbax does not: what is older may go when the newest is on the disk.
            _sync(self.path / str(steps[-1]) / DESCRIPTION / NAME)
            _sync(self.path)
        for step in steps[:-count]:
            path = self.path / str(step)
            if step == best:
                continue
            if in_bucket(path):
                (path / COMMITTED).unlink()
            else:
                path.rename(path.with_name(path.name + ocp.utils.TMP_DIR_SUFFIX))
        self.clear()


def _sync(path: epath.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
