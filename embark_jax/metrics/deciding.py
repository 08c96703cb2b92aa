"""The metrics of the validation set that may decide, between steps and trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from embark_jax.metrics.pointwise import POINTWISE
from embark_jax.metrics.ranking import RETRIEVAL

DECIDING = {
    **{m.name: m for m in POINTWISE if m.higher_is_better is not None},
    **{f"{m.name}@10": m for m in RETRIEVAL},
}
if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Literal[tuple(DECIDING)]
