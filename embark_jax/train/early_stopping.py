"""When training stops because the validation set says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from embark_jax.config import ConfigError, EarlyStoppingConfig


class EarlyStopping:
    """Follows a metric of the validation set.

    Args:
      config: which metric, and how long to wait for a better value; None never stops.
      past: records of ``metrics.jsonl`` that a resumed run goes on from, in order.

    Attributes:
      best_step: step of the best evaluation; None before the first.
    """

    def __init__(
        self,
        config: EarlyStoppingConfig | None,
        past: Iterable[Mapping[str, Any]] = (),
    ):
        self._config = config
        self._best = 0.0
        self._waited = 0
        self.best_step: int | None = None
        if config is not None:
            for record in past:
                if f"validation_{config.metric}" in record:
                    self.add(record["step"], record)

    def __str__(self) -> str:
        assert self._config is not None
        return (
            f"validation {self._config.metric} was best at step {self.best_step:,} and "
            f"no better in the {self._waited} evaluations since"
        )

    @property
    def ended(self) -> bool:
        """Whether as many evaluations in a row as ``patience`` says were no better."""
        return self._config is not None and self._waited >= self._config.patience

    def add(self, step: int, record: Mapping[str, Any]) -> None:
        """Takes account of an evaluation.

        Args:
          step: that it was made at.
          record: of the evaluation.

        Raises:
          ConfigError: if its metric has no value.
        """
        if self._config is None:
            return
        value = record[f"validation_{self._config.metric}"]
        if value is None:
            raise ConfigError(
                f"train.early_stopping.metric: {self._config.metric} has no value for "
                "these labels, which are soft or all alike; take log_loss"
            )
        sign = -1 if self._config.metric == "log_loss" else 1
        gain = sign * (value - self._best)
        if self.best_step is None or gain > self._config.min_change:
            self.best_step, self._best, self._waited = step, value, 0
        else:
            self._waited += 1
