"""Errors about checkpoints."""

from __future__ import annotations

from embark_jax._base.errors import UserError


class CheckpointError(UserError, ValueError):
    """A checkpoint that is missing, damaged, of another model, or not written."""


class ForeignCheckpointError(CheckpointError):
    """A checkpoint of another model or other data, or in an unknown format."""


class OtherExperimentError(ForeignCheckpointError):
    """A checkpoint of another model or other data."""
