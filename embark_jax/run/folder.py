"""The folder of a run, on a file system or in a bucket."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from embark_jax._base.bucket_copy import Upload, check_writable, copy_of, local_copy
from embark_jax._base.storage import StorageError, file_system_or_bucket, in_bucket

CHECKPOINTS = "checkpoints"


class RunFolder:
    """A run's checkpoints, which lie in its folder, and its other files, which are on
    this machine: those of a run in a bucket are a copy.

    Args:
      path: the folder.

    Attributes:
      path: the folder.
      checkpoints: folder of the checkpoints.
      files: folder of this machine with the other files.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = file_system_or_bucket(path)
        self.checkpoints = self.path / CHECKPOINTS
        self.files = copy_of(self.path)
        self._upload = Upload(self.files, self.path) if in_bucket(path) else None

    def read(self) -> Path:
        """Returns the folder of the files, as the bucket has them now.

        Raises:
          StorageError: if the bucket cannot be used, or the folder is not there.
        """
        return local_copy(self.path, without=[CHECKPOINTS])

    def open(self, resume: bool) -> None:
        """Makes sure that a run can write here, before its work begins; creates nothing
        that stays.

        Raises:
          FileExistsError: if the folder already holds a run and ``resume`` is false.
          OSError, StorageError: if it cannot be written to.
        """
        if in_bucket(self.path):
            check_writable(self.path)
            local_copy(self.path, without=[CHECKPOINTS], new=True)
        else:
            self._check_writable()
        if resume:
            return
        for name in ("config.yaml", "plan.json", "metrics.jsonl", CHECKPOINTS):
            if (self.files / name).exists():
                raise FileExistsError(
                    f"{self.path} already holds a run ({name}): pass --resume to "
                    "continue it, or another --workdir"
                )

    def publish(self) -> None:
        """Copies files that have changed to the bucket, if the folder is in one.

        Raises:
          StorageError: if the bucket cannot be used.
        """
        if self._upload is None:
            return
        try:
            self._upload()
        except StorageError as error:
            raise StorageError(
                f"{error}. The run's files are in {self.files}"
            ) from None

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """Publishes at the beginning and at the end, however that comes."""
        self.publish()
        try:
            yield
        except BaseException:
            with contextlib.suppress(StorageError):  # the first error says why
                self.publish()
            raise
        self.publish()

    def _check_writable(self) -> None:
        folder = Path(self.path).absolute()
        while not folder.exists():
            folder = folder.parent
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise type(error)(
                f"{self.path}: nothing can be written to {folder} ({error.strerror}); "
                "choose another --workdir"
            ) from None
