"""Errors about checkpoints."""

from __future__ import annotations

from typing import Any

from embark_jax.errors import UserError


class CheckpointError(UserError, ValueError):
    """A checkpoint that is missing, damaged, of another model, or not written."""


class ForeignCheckpointError(CheckpointError):
    """A checkpoint of another model or other data, or in an unknown format."""


def differences(theirs: Any, mine: Any, there: str, where: str = "") -> list[str]:
    """Returns the places in which two JSON-like values differ, by dotted path.

    Args:
      theirs, mine: the values.
      there: says whose ``theirs`` is, such as "in the checkpoint".
      where: path of the values.
    """
    if isinstance(theirs, dict) and isinstance(mine, dict):
        return [
            difference
            for key in sorted(theirs.keys() | mine.keys())
            for difference in differences(
                theirs.get(key, "nothing"),
                mine.get(key, "nothing"),
                there,
                f"{where}.{key}",
            )
        ]
    if theirs == mine:
        return []
    return [f"{where.lstrip('.')} is {theirs} {there}, {mine} here"]
