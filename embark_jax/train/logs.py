"""The metrics of a run on disk: JSON lines, and the same as TensorBoard events."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from tensorboardX import SummaryWriter

FILE_NAME = "metrics.jsonl"


class LogError(ValueError):
    """A log that is missing or damaged."""


class MetricsLog:
    """Appends to ``metrics.jsonl`` and to the TensorBoard events of a run.

    Each line is one JSON object with ``step`` first, and outlives the process once
    ``write`` has returned; events follow within seconds. JSON has no number for NaN and
    the infinities: they are written as the strings "nan", "inf" and "-inf", which
    Python's ``float`` reads.

    A run that resumes at step S repeats what came after it, and ends anew. So lines
    beyond S or with ``"final": true`` are dropped, atomically, with a last line that a
    killed process left unfinished; in TensorBoard events beyond S are hidden.

    Args:
      workdir: of the run; gets ``metrics.jsonl`` and ``tensorboard/``.
      resume_at: the step that training continues from; 0 begins anew.
      writes: False leaves no trace: in a run of several processes one writes.

    Raises:
      LogError: if a line other than an unfinished last one is not an object with a
        step.
    """

    def __init__(self, workdir: Path, resume_at: int = 0, writes: bool = True):
        workdir = Path(workdir)
        path = workdir / FILE_NAME if writes else Path(os.devnull)
        if writes:
            workdir.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _keep_until(path, resume_at)
        self._file = path.open("a", encoding="utf-8")
        self._events = SummaryWriter(
            str(workdir / "tensorboard"),
            purge_step=resume_at + 1,
            flush_secs=10,
            write_to_disk=writes,
        )

    def write(self, step: int, values: Mapping[str, ArrayLike | str | None]) -> None:
        """Logs values at a step.

        Args:
          step: steps applied so far.
          values: numbers, Python's or scalar arrays; strings, booleans and None too,
            which go into the JSON line only.

        Raises:
          ValueError: if an array is not a scalar, or a key is "step".
        """
        if "step" in values:
            raise ValueError(
                "key 'step' is given as a value, must be the argument only"
            )
        plain = {key: _plain(key, value) for key, value in values.items()}
        line = {"step": step, **{key: _json(value) for key, value in plain.items()}}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        for key, value in plain.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._events.add_scalar(key, value, step)

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        self._events.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def _plain(key: str, value: ArrayLike | str | None) -> bool | int | float | str | None:
    if value is None or isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.ndim:
        raise ValueError(f"{key} has shape {array.shape}, must be a scalar")
    return array.item()


def _json(value: bool | int | float | str | None) -> bool | int | float | str | None:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``, with NaN and the infinities as floats.

    A last line that is still being written, or that a killed process left unfinished,
    is left out.

    Raises:
      LogError: if there is none, or another line is damaged.
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
    """Each whole line, with its newline, and what it says."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record["step"], int):
                raise TypeError
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                return
            raise LogError(
                f"{path}, line {number}: {line[:80]!r} must be a JSON object with a "
                "step; only the last line may be damaged"
            ) from error
        yield line.rstrip(b"\n") + b"\n", record


def _keep_until(path: Path, step: int) -> None:
    """Drops what a run resumed at ``step`` writes again, and a last line cut short.

    The old file stays whole until the new one takes its name.
    """
    new = b"".join(
        line
        for line, record in _records(path)
        if record["step"] <= step and not record.get("final", False)
    )
    if new == path.read_bytes():
        return
    temporary = path.with_suffix(".jsonl.new")
    with temporary.open("wb") as file:
        file.write(new)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
