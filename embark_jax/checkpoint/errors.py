"""Errors about checkpoints."""

from __future__ import annotations

import os
import re

from embark_jax._base.errors import UserError


class CheckpointError(UserError, ValueError):
    """A checkpoint that is missing, damaged, of another model, or not written."""


class OtherExperimentError(CheckpointError):
    """A checkpoint of another model or other data."""


def reason(error: Exception) -> str:
    """Returns what an error of the file system, TensorStore or Orbax says."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if number := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(number[1]))
    return str(error)
