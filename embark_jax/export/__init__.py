"""Exports trained models as plain files that do not need this package."""

from embark_jax.export.export import ExportError as ExportError
from embark_jax.export.export import export_run as export_run
from embark_jax.export.scorer import Scorer as Scorer
from embark_jax.export.scorer import load_scorer as load_scorer
