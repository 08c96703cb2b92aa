"""A run's reactions when the validation set no longer improves: learning rates are
lowered, or training stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embark_jax.config import EarlyStoppingConfig, PlateauConfig, TrainConfig
from embark_jax.metrics.pointwise import Metric
from embark_jax.run.own_metrics import deciding_metrics

Record = Mapping[str, Any]
"""An evaluation: its step, and metrics by name."""


class _Patience:
    """Counts the evaluations since the best one."""

    def __init__(self, config: EarlyStoppingConfig | PlateauConfig, metric: Metric):
        self.config, self._metric = config, metric
        self._best = 0.0
        self.best_step: int | None = None
        self.waited = 0

    def add(self, record: Record) -> bool:
        """Takes account of an evaluation; returns whether as many in a row as
        ``patience`` says were no better. One without a value does not count."""
        metric = self.config.metric
        value = record.get(f"validation_{metric}")
        if value is None:
            return False
        gain = self._metric.gain(value, self._best)
        if self.best_step is None or gain > self.config.min_change:
            self._best, self.best_step, self.waited = value, record["step"], 0
        else:
            self.waited += 1
        return self.waited >= self.config.patience


class Improvement:
    """What a run does because of the validation set.

    Args:
      config: says which metrics, and how long to wait for better values.
      past: evaluations from which a resumed run continues, in order.

    Attributes:
      ended: whether training stops.
      factor: current factor of all learning rates.
    """

    def __init__(self, config: TrainConfig, past: Sequence[Record] = ()):
        metrics = deciding_metrics(config)
        self._stop, self._plateau = (
            section and _Patience(section, metrics[section.metric])
            for section in (config.early_stopping, config.plateau)
        )
        self.ended, self.factor = False, 1.0
        for record in past:
            self.add(record)

    @property
    def best_step(self) -> int | None:
        """Step of the best evaluation; None before the first, and without early
        stopping."""
        return self._stop.best_step if self._stop else None

    def add(self, record: Record) -> bool:
        """Takes account of an evaluation; returns whether rates are lowered."""
        self.ended = bool(self._stop and self._stop.add(record))
        if not (self._plateau and self._plateau.add(record)):
            return False
        config, before = self._plateau.config, self.factor
        assert isinstance(config, PlateauConfig)
        self._plateau.waited = 0
        self.factor = max(before * config.factor, config.least)
        return self.factor < before

    def __str__(self) -> str:
        assert self._stop is not None
        return (
            f"validation {self._stop.config.metric} was best at step "
            f"{self.best_step:,} and no better in the {self._stop.waited} evaluations "
            "since"
        )
