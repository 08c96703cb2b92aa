"""Trained models as plain files that need nothing of this package."""

from embark_jax.export.export import ExportError as ExportError
from embark_jax.export.export import export_run as export_run
