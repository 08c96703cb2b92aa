"""Metrics of a user's own, which a config names (``train.metrics``)."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from embark_jax.config import TrainConfig, import_named
from embark_jax.metrics.pointwise import Metric
from embark_jax.metrics.ranking import DECIDING


def own_metrics(config: TrainConfig) -> dict[str, Metric]:
    """Returns the metrics of the user's own, by name."""
    return {
        name: Metric(
            name,
            functools.partial(_value, own.function),
            own.higher_is_better,
            f"what {own.function} asks for",
        )
        for name, own in config.metrics.items()
    }


def deciding_metrics(config: TrainConfig) -> dict[str, Metric]:
    """Returns all metrics that may decide, between steps and trials."""
    return {**DECIDING, **own_metrics(config)}


def _value(kind: str, *arrays: Any) -> float | None:
    """Returns what the function gives; None, with a warning, if it fails: no evaluation
    ends a run."""
    function = import_named(kind)
    try:
        value = function(*arrays)
        return None if value is None else float(value)
    except Exception as error:  # of any class, from a user's code
        warnings.warn(
            f"{kind} raised {type(error).__name__}: {error}; its metric is undefined",
            stacklevel=2,
        )
        return None
