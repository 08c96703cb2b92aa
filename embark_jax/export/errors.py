"""The error of exports. ``score.py`` of an export holds this class, too."""

from __future__ import annotations

from embark_jax._base.errors import UserError


class ExportError(UserError, ValueError):
    """A run that cannot be exported, or an export that cannot be used."""
