"""The metrics of a run: JSON lines on disk, and the same for TensorBoard, or Weights &
Biases, which ``LOGGERS`` names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from embark_jax._base.config import ConfigError
from embark_jax._base.errors import UserError
from embark_jax._base.files import replacing
from embark_jax._base.object_store import local

FILE_NAME = "metrics.jsonl"


class LogError(UserError, ValueError):
    """A log that is missing or damaged."""


class TensorBoard:
    """Events of TensorBoard, within seconds, in ``tensorboard/``; a run that resumes
    hides those beyond its step."""

    def __init__(self, workdir: Path, resume_at: int):
        self._events = SummaryWriter(
            str(workdir / "tensorboard"), purge_step=resume_at + 1, flush_secs=10
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for key, value in numbers.items():
            self._events.add_scalar(key, value, step)

    def close(self) -> None:
        self._events.close()


class WeightsAndBiases:
    """A run of Weights & Biases (https://docs.wandb.ai), in ``wandb/``, whose settings
    are those of its environment: ``WANDB_MODE=offline`` keeps it here, for ``wandb
    sync``. A run that resumes goes on with it.

    Raises:
      ConfigError: if it is not installed.
    """

    def __init__(self, workdir: Path, resume_at: int):
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ConfigError(
                "train.loggers: wandb is not installed: pip install 'embark_jax[wandb]'"
            ) from None
        name = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:16]
        self._run = wandb.init(
            dir=workdir,
            name=workdir.name,
            id=name,
            resume="allow" if resume_at else None,
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""Loggers by name: ``Logger(workdir, resume_at)``, with ``write(step, numbers)`` and
``close()``."""


class MetricsLog(contextlib.AbstractContextManager):
    """Appends to ``metrics.jsonl`` of a run, and tells its loggers.

    Each line is one JSON object with ``step`` first, and outlives the process once
    ``write`` has returned. JSON has no number for NaN and
    the infinities: they are written as the strings "nan", "inf" and "-inf", which
    Python's ``float`` reads.

    A run that resumes at step S repeats all later steps, and ends anew. So lines beyond
    S or with ``"final": true`` are dropped, atomically, with a last line that a killed
    process left unfinished.

    Args:
      workdir: folder of the run; gets ``metrics.jsonl``, and a folder of each logger.
      resume_at: step from which training continues; 0 begins anew.
      writes: False leaves no trace: in a run of several processes only one writes.
      loggers: names of ``LOGGERS``.

    Raises:
      LogError: if a line of a log that is continued is no record.
    """

    def __init__(
        self,
        workdir: Path,
        resume_at: int = 0,
        writes: bool = True,
        loggers: Sequence[str] = ("tensorboard",),
    ):
        workdir = local(workdir)
        path = workdir / FILE_NAME if writes else Path(os.devnull)
        if writes:
            workdir.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _keep_until(path, resume_at)
        self._loggers = [LOGGERS[n](workdir, resume_at) for n in loggers if writes]
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Logs values at a step.

        Args:
          step: number of steps applied so far.
          values: numbers of Python, NumPy or JAX; also strings, booleans and None,
            which go into the JSON line only.
        """
        plain = {
            key: value.item() if hasattr(value, "item") else value
            for key, value in values.items()
        }
        numbers = {key: x for key, x in plain.items() if type(x) in (int, float)}
        infinite = {key: str(x) for key, x in numbers.items() if not math.isfinite(x)}
        line = {"step": step, **plain, **infinite}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        for logger in self._loggers:
            logger.write(step, numbers)

    def __exit__(self, *exception) -> None:
        """Closes the file and the loggers."""
        self._file.close()
        for logger in self._loggers:
            logger.close()


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Returns the lines of ``metrics.jsonl``, with NaN and the infinities as floats.

    A last line that is still being written, or that a killed process left unfinished,
    is left out.

    Raises:
      LogError: if the file is missing, or another line is damaged.
    """
    path = Path(workdir) / FILE_NAME
    if not path.is_file():
        raise LogError(f"{workdir}: holds no {FILE_NAME}, so it is no run's workdir")
    return [
        {key: _NOT_FINITE.get(value, value) for key, value in record.items()}
        for _, record in _records(path)
    ]


_NOT_FINITE: dict[Any, Any] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _records(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields each line, with its newline, and its object; a last line without a newline
    was cut short, and is left out."""
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        try:
            record = json.loads(line)
            int(record["step"])
        except (ValueError, KeyError, TypeError):
            raise LogError(
                f"{path}, line {number}: {line[:80]!r} must be a JSON object with a "
                "step; delete the line"
            ) from None
        yield line, record


def _keep_until(path: Path, step: int) -> None:
    """Drops lines that a run resumed at ``step`` writes again, with the evaluation on a
    time window that begins there, and a last line cut short."""
    kept = [
        line
        for line, record in _records(path)
        if not record.get("final", False)
        and record["step"] < step + ("window" not in record)
    ]
    with replacing(path) as scratch:  # the old file stays whole until then
        scratch.write_bytes(b"".join(kept))
