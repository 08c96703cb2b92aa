"""What all processes do together, which fails in all of them if it fails in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from embark_jax.checkpoint.errors import CheckpointError, reason
from embark_jax.launch.agreement import tell_all

Result = TypeVar("Result")


def together(function: Callable[[], Result], topic: str = "checkpoint") -> Result:
    """Calls a function and waits until all processes have called theirs.

    Args:
      function: may raise whatever the file system, TensorStore and Orbax raise.
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
    problem = "" if error is None else reason(error)
    problems = [text for text in tell_all(problem, topic) if text]
    if error is not None:
        raise error
    if problems:
        raise CheckpointError(problems[0])
    return result  # pyright: ignore[reportReturnType]
