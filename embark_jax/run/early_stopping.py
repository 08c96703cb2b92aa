"""A run's reactions when the validation set no longer improves: learning rates are
lowered, or training stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from embark_jax._base.config import ConfigError
from embark_jax.config import EarlyStoppingConfig, PlateauConfig


class _Best:
    """Follows a metric of the validation set.

    Args:
      config: says which metric, and which values are better.
      key: key of the config, for messages.

    Attributes:
      step: step of the best evaluation; None before the first.
      waited: evaluations since then, or since this was set to 0.
    """

    def __init__(self, config: EarlyStoppingConfig | PlateauConfig, key: str):
        self._config, self._key = config, key
        self._value = 0.0
        self.step: int | None = None
        self.waited = 0

    def add(self, step: int, record: Mapping[str, Any]) -> None:
        """Takes account of an evaluation.

        Raises:
          ConfigError: if its metric has no value.
        """
        value = record[f"validation_{self._config.metric}"]
        if value is None:
            raise ConfigError(
                f"train.{self._key}.metric: {self._config.metric} has no value for "
                "these labels, which are soft or all alike; take log_loss"
            )
        sign = -1 if self._config.metric == "log_loss" else 1
        gain = sign * (value - self._value)
        if self.step is None or gain > self._config.min_change:
            self.step = step
            self._value = value
            self.waited = 0
        else:
            self.waited += 1


class EarlyStopping:
    """The rule that stops training because of the validation set.

    Args:
      config: says which metric, and how long to wait for a better value; None never
        stops.
      past: records of the evaluations from which a resumed run continues, in order.
    """

    def __init__(
        self,
        config: EarlyStoppingConfig | None,
        past: Iterable[Mapping[str, Any]] = (),
    ):
        self._config = config
        self._best = None if config is None else _Best(config, "early_stopping")
        for record in _evaluations(config, past):
            self.add(record["step"], record)

    def __str__(self) -> str:
        assert self._config is not None
        assert self._best is not None
        return (
            f"validation {self._config.metric} was best at step {self._best.step:,} "
            f"and no better in the {self._best.waited} evaluations since"
        )

    @property
    def best_step(self) -> int | None:
        """Step of the best evaluation; None before the first, and without a config."""
        return None if self._best is None else self._best.step

    @property
    def ended(self) -> bool:
        """Whether as many evaluations in a row as ``patience`` says were no better."""
        if self._config is None or self._best is None:
            return False
        return self._best.waited >= self._config.patience

    def add(self, step: int, record: Mapping[str, Any]) -> None:
        """Takes account of an evaluation.

        Args:
          step: step of the evaluation.
          record: record of the evaluation.

        Raises:
          ConfigError: if its metric has no value.
        """
        if self._best is not None:
            self._best.add(step, record)


class Plateau:
    """The factor by which learning rates are lowered.

    Args:
      config: says when, and how far; None never lowers them.
      past: records of the evaluations from which a resumed run continues, in order.

    Attributes:
      factor: current factor of all learning rates.
    """

    def __init__(
        self, config: PlateauConfig | None, past: Iterable[Mapping[str, Any]] = ()
    ):
        self._config = config
        self._best = None if config is None else _Best(config, "plateau")
        self.factor = 1.0
        for record in _evaluations(config, past):
            self.add(record["step"], record)

    def add(self, step: int, record: Mapping[str, Any]) -> bool:
        """Takes account of an evaluation; returns whether rates are lowered.

        Raises:
          ConfigError: if its metric has no value.
        """
        if self._config is None or self._best is None:
            return False
        self._best.add(step, record)
        before = self.factor
        if self._best.waited >= self._config.patience:
            self._best.waited = 0
            lowered = self.factor * self._config.factor
            self.factor = max(lowered, self._config.least)
        return self.factor < before


def _evaluations(
    config: EarlyStoppingConfig | PlateauConfig | None,
    past: Iterable[Mapping[str, Any]],
) -> Iterable[Mapping[str, Any]]:
    """Returns the records that have the metric; none without a config."""
    if config is None:
        return ()
    return (record for record in past if f"validation_{config.metric}" in record)
