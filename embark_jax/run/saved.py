"""A run that was trained, and the checkpoint of it that is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from embark_jax._base.agreement import differences, parts
from embark_jax._base.config import ConfigError
from embark_jax._base.object_store import file_system_or_bucket
from embark_jax.checkpoint import CheckpointError
from embark_jax.checkpoint.errors import OtherExperimentError
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.reading import SavedCheckpoint
from embark_jax.data.encoding import FOLDER as ENCODING
from embark_jax.data.encoding import read_encoding
from embark_jax.data.manifest import FILE_NAME
from embark_jax.run.folder import (
    CHECKPOINTS,
    CONFIG,
    RunFolder,
    config_of,
    facts_of_model,
)
from embark_jax.run.logs import LogError, read_metrics


class SavedRun:
    """A run of ``embark train``, with the checkpoint of it that is taken. Its folder
    stays as it is. What evaluates, scores, exports or goes on from a run begins here.

    Args:
      path: folder of the run, which may be in a bucket, or one of its checkpoints.
      step: step of the checkpoint; None takes the best of a run that stopped early, by
        its validation set, or else the newest.

    Attributes:
      folder: its files but the checkpoints, on this machine.
      checkpoints: folder of its checkpoints.
      config: its config.
      step: step of the checkpoint; None for the newest.

    Raises:
      ConfigError: if the folder is no run's, or holds no usable config.
      StorageError: if its bucket cannot be used.
    """

    def __init__(self, path: str | PathLike[str], step: int | None = None):
        where = file_system_or_bucket(path)
        if where.name.isdecimal() and where.parent.name == CHECKPOINTS:
            if step not in (None, int(where.name)):
                raise ConfigError(f"{where}: is not the checkpoint of step {step}")
            where, step = where.parent, int(where.name)
        if where.name == CHECKPOINTS:
            where = where.parent
        run = RunFolder(where)
        self.folder = run.read()
        self.checkpoints = run.checkpoints
        if not self.folder.is_dir():
            raise ConfigError(f"{where}: is not a folder, must be the folder of a run")
        self.config = config_of(self.folder)
        self.step = _best_step(self.folder) if step is None else step

    def checkpoint(self) -> SavedCheckpoint:
        """Opens the checkpoint.

        Raises:
          CheckpointError: if there is none, it is damaged, or the other files of the
            run are not those that trained it.
        """
        checkpoints = CheckpointFolder(self.checkpoints)
        path = checkpoints.checkpoint(checkpoints.chosen_steps(self.step)[0])
        with undamaged(path):
            saved = SavedCheckpoint(path)
        ours = facts_of_model(self.config)
        if (self.folder / ENCODING / FILE_NAME).exists():
            ours["values"] = read_encoding(self.folder / ENCODING).manifest.meaning()
        theirs = parts(saved.contents.identity, list(ours))
        if lines := differences(theirs, ours, "in the checkpoint"):
            lines.insert(0, f"{path}: was not trained by the files of its run:")
            raise OtherExperimentError(
                "\n  ".join(lines)
                + f"\n{CONFIG} and {ENCODING}/ (whose digests values "
                "has) must be those that trained it"
            )
        return saved


@contextlib.contextmanager
def undamaged(folder: PathLike[str]) -> Iterator[None]:
    """Adds to an error of reading a checkpoint where it is, and what to do."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder}: is damaged, delete it to use an older one ({error})"
        ) from None


def _best_step(folder: Path) -> int | None:
    """Returns the best step of a run that stopped early."""
    with contextlib.suppress(LogError):
        for record in reversed(read_metrics(folder)):
            if record.get("final"):
                return record.get("best_step")
    return None
