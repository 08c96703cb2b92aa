"""Errors about checkpoints, which all processes have if one has them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from embark_jax._base.errors import UserError, may_pass
from embark_jax.launch.agreement import tell_all
from embark_jax.train.state import StateLostError

Result = TypeVar("Result")


class CheckpointError(UserError, ValueError):
    """A checkpoint that is missing, damaged, of another model, or not written.

    Args:
      message: what is wrong.
      may_pass: as in ``UserError``.
    """

    def __init__(self, message: str, may_pass: bool = False):
        super().__init__(message)
        self.may_pass = may_pass


class OverwrittenError(CheckpointError, StateLostError):
    """Damage that was found when rows of the state had been overwritten."""


class OtherExperimentError(CheckpointError):
    """A checkpoint of another model or other data."""


def reason(error: Exception) -> str:
    """Returns what an error of the file system or TensorStore says."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if number := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(number[1]))
    return str(error)


def run_on_all(function: Callable[[], Result], topic: str = "checkpoint") -> Result:
    """Calls a function and waits until all processes have called theirs.

    Args:
      function: may raise whatever the file system and TensorStore raise.
      topic: name of a thread's calls; each thread has one of its own.

    Raises:
      Exception: what the function raises.
      CheckpointError: if it raises in another process.
    """
    result, error = None, None
    try:
        result = function()
    except Exception as caught:
        error = caught
    # An error without words is one, too.
    problem = None
    if error is not None:
        problem = reason(error) or type(error).__name__, may_pass(error)
    problems = [each for each in tell_all(problem, topic) if each]
    if error is not None:
        raise error
    if problems:
        raise CheckpointError(*problems[0])
    return result  # pyright: ignore[reportReturnType]
