"""The folder of a run, on a file system or in a bucket."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embark_jax._base.agreement import differences
from embark_jax._base.bucket_copy import (
    WRITTEN,
    Upload,
    check_writable,
    copy_of,
    local_copy,
)
from embark_jax._base.config import ConfigError
from embark_jax._base.files import check_path, locked, replacing
from embark_jax._base.object_store import (
    StorageError,
    file_system_or_bucket,
    in_bucket,
)
from embark_jax.config import ExperimentConfig, reading

CHECKPOINTS = "checkpoints"
CONFIG, PLAN = "config.yaml", "plan.json"


def config_of(files: Path) -> ExperimentConfig:
    """Reads the config that a run wrote.

    Raises:
      ConfigError: if there is none, or it is of another version.
    """
    path = files / CONFIG
    try:
        return reading.load(path)
    except ConfigError as error:
        if not path.exists():
            raise
        _, first, *_ = [*str(error).splitlines(), str(error)]
        raise ConfigError(
            f"{path}: was written by another version of embark_jax, which must be "
            f"taken for this run ({first.strip()})"
        ) from None


def facts_of_model(config: ExperimentConfig) -> dict[str, Any]:
    """Returns what a config says of the model that a checkpoint has."""
    model = config.model.model_dump(mode="json")
    dtype = model.pop("compute_dtype", None)
    return {"seed": config.seed, "model": model, "compute_dtype": dtype}


class RunFolder:
    """A run's checkpoints, which lie in its folder, and its other files, which are on
    this machine: those of a run in a bucket are a copy.

    Args:
      path: the folder.

    Attributes:
      path: the folder.
      checkpoints: folder of the checkpoints.
      files: folder of this machine that the run writes its other files to.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = file_system_or_bucket(path)
        self.checkpoints = self.path / CHECKPOINTS
        self.files = copy_of(self.path, WRITTEN)
        self._upload = Upload(self.files, self.path) if in_bucket(path) else None

    def read(self) -> Path:
        """Returns a folder of this machine with the files as they are now.

        Raises:
          StorageError: if the bucket cannot be used, or the folder is not there.
        """
        return local_copy(self.path, without=[CHECKPOINTS])

    def open(self, resume: bool) -> None:
        """Makes sure that a run can write here, before its work begins; creates nothing
        that stays.

        Raises:
          FileExistsError: if the folder already holds a run and ``resume`` is false.
          ConfigError, OSError, StorageError: if it cannot be written to.
        """
        if in_bucket(self.path):
            check_writable(self.path)
            self._keep_out()
            local_copy(self.path, without=[CHECKPOINTS], kind=WRITTEN)
        else:
            self._check_writable()
        if resume:
            return
        for name in (CONFIG, PLAN, "metrics.jsonl", CHECKPOINTS):
            if (self.files / name).exists():
                raise FileExistsError(
                    f"{self.path} already holds a run ({name}): pass --resume to "
                    "continue it, or another --workdir"
                )

    def changes(self, config: ExperimentConfig) -> list[str]:
        """Returns in words where a config differs from the one of the run so far."""
        if not (self.files / CONFIG).exists():
            return []
        before, now = (
            each.model_dump(mode="json", exclude_none=True)
            for each in (config_of(self.files), config)
        )
        return differences(before, now, "in the run so far")

    def save_config(self, config: ExperimentConfig) -> None:
        """Saves the config that trains the run from now on."""
        with replacing(self.files / CONFIG) as scratch:
            reading.save(config, scratch)

    def _keep_out(self) -> None:
        """Keeps other runs of this machine from writing to the copy, until this object
        goes."""
        self.files.parent.mkdir(parents=True, exist_ok=True)
        path = self.files.with_name(f"{self.files.name}.writer")
        told = "another run writes here; stop it, or use another --workdir"
        self._lock = locked(path, StorageError(f"{self.path}: {told}"))

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
        """Raises ``OSError`` if nothing can be written to the folder, or to the one
        that it will be made in."""
        path = Path(self.path).absolute()
        check_path(path)
        folder = next(each for each in (path, *path.parents) if each.exists())
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise type(error)(
                f"{self.path}: nothing can be written to {folder} ({error.strerror}); "
                "choose another --workdir"
            ) from None
