"""A run's reactions when the validation set no longer improves: learning rates are
lowered, or training stops."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any

from embark_jax._base.config import ConfigError
from embark_jax.config import EarlyStoppingConfig, PlateauConfig
from embark_jax.plans.metrics import DECIDING


class _Reaction(abc.ABC):
    """Follows a metric of the validation set.

    Args:
      config: says which metric, and how long to wait for a better value; None follows
        none.
      key: key of the config, for messages.
      past: records of the evaluations from which a resumed run continues, in order.

    Attributes:
      best_step: step of the best evaluation; None before the first, and without a
        config.
    """

    def __init__(
        self,
        config: EarlyStoppingConfig | PlateauConfig | None,
        key: str,
        past: Iterable[Mapping[str, Any]],
    ):
        self._config, self._key = config, key
        self._value = 0.0
        self.best_step: int | None = None
        self._waited = 0  # evaluations since the best one, or the last reaction
        if config is not None:
            for record in past:
                if f"validation_{config.metric}" in record:
                    self.add(record["step"], record)

    @abc.abstractmethod
    def add(self, step: int, record: Mapping[str, Any]) -> object:
        """Takes account of an evaluation.

        Raises:
          ConfigError: if its metric has no value.
        """

    @property
    def _is_due(self) -> bool:
        """Whether as many evaluations in a row as ``patience`` says were no better."""
        return self._config is not None and self._waited >= self._config.patience

    def _follow(self, step: int, record: Mapping[str, Any]) -> None:
        if self._config is None:
            return
        value = record[f"validation_{self._config.metric}"]
        if value is None:
            raise ConfigError(
                f"train.{self._key}.metric: {self._config.metric} has no value for "
                "these labels, which are soft or all alike; take log_loss"
            )
        gain = DECIDING[self._config.metric].gain(value, self._value)
        if self.best_step is None or gain > self._config.min_change:
            self.best_step = step
            self._value = value
            self._waited = 0
        else:
            self._waited += 1


class EarlyStopping(_Reaction):
    """The rule that stops training because of the validation set; see ``_Reaction``."""

    def __init__(
        self,
        config: EarlyStoppingConfig | None,
        past: Iterable[Mapping[str, Any]] = (),
    ):
        super().__init__(config, "early_stopping", past)

    def __str__(self) -> str:
        assert self._config is not None
        return (
            f"validation {self._config.metric} was best at step {self.best_step:,} "
            f"and no better in the {self._waited} evaluations since"
        )

    @property
    def ended(self) -> bool:
        """Whether training stops."""
        return self._is_due

    def add(self, step: int, record: Mapping[str, Any]) -> None:
        self._follow(step, record)


class Plateau(_Reaction):
    """The factor by which learning rates are lowered; see ``_Reaction``.

    Attributes:
      factor: current factor of all learning rates.
    """

    def __init__(
        self, config: PlateauConfig | None, past: Iterable[Mapping[str, Any]] = ()
    ):
        self.factor = 1.0
        self._rates = config
        super().__init__(config, "plateau", past)

    def add(self, step: int, record: Mapping[str, Any]) -> bool:
        """Takes account of an evaluation; returns whether rates are lowered."""
        self._follow(step, record)
        if self._rates is None or not self._is_due:
            return False
        self._waited, before = 0, self.factor
        self.factor = max(self.factor * self._rates.factor, self._rates.least)
        return self.factor < before
