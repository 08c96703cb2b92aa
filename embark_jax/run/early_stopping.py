"""A run's reactions when the validation set no longer improves: learning rates are
lowered, or training stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from embark_jax._base.config import ConfigError
from embark_jax.config import EarlyStoppingConfig, PlateauConfig
from embark_jax.metrics.deciding import DECIDING

Record = Mapping[str, Any]
"""An evaluation: its step, and metrics by name."""


class _Patience:
    """Counts the evaluations since the best one; ``key`` is that of the config."""

    def __init__(self, config: EarlyStoppingConfig | PlateauConfig, key: str):
        self.config, self._key = config, key
        self._best = 0.0
        self.best_step: int | None = None
        self.waited = 0

    def add(self, record: Record) -> bool:
        """Takes account of an evaluation; returns whether as many in a row as
        ``patience`` says were no better."""
        metric = self.config.metric
        if f"validation_{metric}" not in record:
            return False
        value = record[f"validation_{metric}"]
        if value is None:
            raise ConfigError(
                f"train.{self._key}.metric: {metric} has no value for these labels, "
                "which are soft or all alike; take log_loss"
            )
        gain = DECIDING[metric].gain(value, self._best)
        if self.best_step is None or gain > self.config.min_change:
            self._best, self.best_step, self.waited = value, record["step"], 0
        else:
            self.waited += 1
        return self.waited >= self.config.patience


class EarlyStopping:
    """The rule that stops training because of the validation set.

    Args:
      config: says which metric, and how long to wait for a better value; None never
        stops.
      past: evaluations from which a resumed run continues, in order.

    Attributes:
      ended: whether training stops.
    """

    def __init__(self, config: EarlyStoppingConfig | None, past: Iterable[Record] = ()):
        self._patience = config and _Patience(config, "early_stopping")
        self.ended = False
        for record in past:
            self.add(record)

    @property
    def best_step(self) -> int | None:
        """Step of the best evaluation; None before the first, and without a config."""
        return self._patience.best_step if self._patience else None

    def add(self, record: Record) -> None:
        """Takes account of an evaluation.

        Raises:
          ConfigError: if its metric has no value.
        """
        self.ended = bool(self._patience and self._patience.add(record))

    def __str__(self) -> str:
        assert self._patience is not None
        return (
            f"validation {self._patience.config.metric} was best at step "
            f"{self.best_step:,} and no better in the {self._patience.waited} "
            "evaluations since"
        )


class Plateau:
    """The factor by which learning rates are lowered; arguments as for
    ``EarlyStopping``.

    Attributes:
      factor: current factor of all learning rates.
    """

    def __init__(self, config: PlateauConfig | None, past: Iterable[Record] = ()):
        self._config = config
        self._patience = config and _Patience(config, "plateau")
        self.factor = 1.0
        for record in past:
            self.add(record)

    def add(self, record: Record) -> bool:
        """Takes account of an evaluation; returns whether rates are lowered.

        Raises:
          ConfigError: if its metric has no value.
        """
        if self._config is None or self._patience is None:
            return False
        if not self._patience.add(record):
            return False
        self._patience.waited, before = 0, self.factor
        self.factor = max(self.factor * self._config.factor, self._config.least)
        return self.factor < before
