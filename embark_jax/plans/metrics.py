"""The metrics of evaluations: what computes each, and which of two values is better.

A metric is a function and its entry here, by which reports, early stopping, plateaus
and searches know it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple


class Metric(NamedTuple):
    """A metric.

    Attributes:
      name: its name in records; behind it, one of ranks has its cutoff.
      function: what computes it, as ``module:name``.
      higher_is_better: None if the best value is neither the largest nor the smallest.
    """

    name: str
    function: str
    higher_is_better: bool | None

    @property
    def compute(self) -> Callable[..., float | None]:
        """The function itself."""
        return pkgutil.resolve_name(self.function)

    def gain(self, value: float, other: float) -> float:
        """Returns by how much a value is better than another, below 0 if it is not."""
        return value - other if self.higher_is_better else other - value


POINTWISE = (
    Metric("log_loss", "embark_jax.metrics.pointwise:log_loss", False),
    Metric(
        "normalized_entropy", "embark_jax.metrics.pointwise:normalized_entropy", False
    ),
    Metric("calibration", "embark_jax.metrics.pointwise:calibration", None),
    Metric("auc", "embark_jax.metrics.pointwise:auc", True),
    Metric("accuracy", "embark_jax.metrics.pointwise:accuracy", True),
)
"""Metrics of labels, logits and the weights of samples."""
RETRIEVAL = (
    Metric("hr", "embark_jax.metrics.retrieval:hit_rate", True),
    Metric("ndcg", "embark_jax.metrics.retrieval:ndcg", True),
)
"""Metrics of ranks and a cutoff K; a record has them as ``hr@10``."""
DECIDING = {
    **{m.name: m for m in POINTWISE if m.higher_is_better is not None},
    **{f"{m.name}@10": m for m in RETRIEVAL},
}
"""Metrics of the validation set that may decide, between steps and between trials."""
if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Literal[tuple(DECIDING)]
