"""The quality of predictions, over a whole evaluation set and exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embark_jax._base.errors import UserError
from embark_jax.metrics.ties import tie_numbers

if TYPE_CHECKING:
    from jax.typing import ArrayLike


class Metric(NamedTuple):
    """A metric, by which reports, early stopping, plateaus and searches know it.

    Attributes:
      name: its name in records; behind it, one of ranks has its cutoff.
      function: computes it; that of several metrics gives them by name.
      higher_is_better: None if the best value is neither the largest nor the smallest.
      needs: what samples must have for it to be defined; otherwise it is None.
    """

    name: str
    function: Callable[..., Any]
    higher_is_better: bool | None
    needs: str

    def gain(self, value: float, other: float) -> float:
        """Returns by how much a value is better than another, below 0 if it is not."""
        return value - other if self.higher_is_better else other - value


class NonFiniteLogitError(UserError, ValueError):
    """A prediction is NaN or infinite: the parameters are unusable."""


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Metrics of predicted click probabilities, computed in float64; None is undefined,
    as all are of no samples.

    Attributes:
      samples: number of samples that were evaluated.
      log_loss: mean binary cross entropy, in nats.
      normalized_entropy: ``log_loss`` over that of always predicting the mean label; 1
        is useless. None if all labels are equal. He et al., ADKDD 2014,
        https://doi.org/10.1145/2648584.2648589.
      calibration: mean prediction over mean label. None if all labels are 0.
      auc: area under the ROC curve, ties counted half, by the rule of ``ties``. None if
        all labels are equal, or some are soft: neither 0 nor 1.
      accuracy: share of samples on whose side of 1/2 the prediction is; exactly 1/2
        counts as a prediction of 0. None if some labels are soft.
      tasks: metrics of each label, of the samples that have it, if samples have
        several; those above are then their means, None if one of them is.
    """

    samples: int
    log_loss: float | None = None
    normalized_entropy: float | None = None
    calibration: float | None = None
    auc: float | None = None
    accuracy: float | None = None
    tasks: tuple[Metrics, ...] = ()


def evaluate(
    labels: np.ndarray, logits: np.ndarray, weights: np.ndarray | None = None
) -> Metrics:
    """Computes metrics of ``logits`` as predictions of ``labels``.

    Args:
      labels: ``[samples]`` or ``[samples, tasks]``, each from 0 to 1: clicks, or
        probabilities of one. One of several may be missing: NaN.
      logits: log-odds of label 1, of the same shape.
      weights: ``[samples]`` weights, 0 or more, in all means; a pair of samples counts
        in the AUC by their product. None weighs all alike.

    Raises:
      ValueError: if there are no samples, shapes differ, a label is not from 0 to 1, or
        a weight is below 0 or not finite.
      NonFiniteLogitError: if a logit is not finite.
    """
    labels, logits = np.asarray(labels, np.float64), np.asarray(logits, np.float64)
    _check(labels, logits, weights)
    if labels.ndim > 1:
        pairs = zip(labels.T, logits.T, strict=True)
        tasks = [_of_label(*labelled(*pair, weights)) for pair in pairs]
        return _means(len(labels), tasks)
    return _of_label(labels, logits, weights)


def _of_label(
    labels: np.ndarray, logits: np.ndarray, weights: np.ndarray | None
) -> Metrics:
    """Returns the metrics of one label's samples; none is defined without weight."""
    if not len(labels) or (weights is not None and not weights.any()):
        return Metrics(len(labels))
    values: dict[str, Any] = {
        metric.name: metric.function(labels, logits, weights) for metric in POINTWISE
    }
    return Metrics(len(labels), **values)


def labelled(
    labels: np.ndarray, logits: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns one label's samples that have it: their labels, logits and weights."""
    known = ~np.isnan(labels)
    return labels[known], logits[known], None if weights is None else weights[known]


def log_loss(labels: np.ndarray, logits: np.ndarray, weights=None) -> float:
    """See ``Metrics``, here and below; arguments are as in ``evaluate``, of one
    label."""
    return _mean(np.logaddexp(0, logits) - labels * logits, weights)


def normalized_entropy(
    labels: np.ndarray, logits: np.ndarray, weights=None
) -> float | None:
    p = _mean(labels, weights)
    if p in (0.0, 1.0):
        return None
    entropy = -p * np.log(p) - (1 - p) * np.log1p(-p)
    return log_loss(labels, logits, weights) / float(entropy)


def calibration(labels: np.ndarray, logits: np.ndarray, weights=None) -> float | None:
    # Stable on both sides: exp never overflows.
    decay = np.exp(-np.abs(logits))
    predictions = np.where(logits > 0, 1, decay) / (1 + decay)
    base_rate = _mean(labels, weights)
    return _mean(predictions, weights) / base_rate if base_rate else None


def auc(labels: np.ndarray, logits: np.ndarray, weights=None) -> float | None:
    from sklearn.metrics import roc_auc_score  # takes a second to import

    counted = np.unique(labels if weights is None else labels[weights > 0])
    if are_soft(labels) or len(counted) < 2:
        return None
    return float(roc_auc_score(labels, tie_numbers(logits), sample_weight=weights))


def accuracy(labels: np.ndarray, logits: np.ndarray, weights=None) -> float | None:
    if are_soft(labels):
        return None
    return _mean((logits > 0) == (labels == 1), weights)


POINTWISE = (
    Metric("log_loss", log_loss, False, "a sample with the label"),
    Metric("normalized_entropy", normalized_entropy, False, "labels that differ"),
    Metric("calibration", calibration, None, "a label above 0"),
    Metric("auc", auc, True, "labels of both 0 and 1, and none between"),
    Metric("accuracy", accuracy, True, "labels of 0 and 1 alone"),
)
"""Metrics of labels, logits and the weights of samples."""
OF_PROBABILITIES = tuple(metric.name for metric in POINTWISE if metric.name != "auc")
"""Those that mean nothing where logits are scores that order, and no log odds."""


def _mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    return float(np.average(values, weights=weights))


def are_soft(labels: np.ndarray) -> bool:
    return bool(((labels != 0) & (labels != 1)).any())


def _means(samples: int, tasks: Sequence[Metrics]) -> Metrics:
    def mean(name: str) -> Any:
        values = [getattr(task, name) for task in tasks]
        return None if None in values else sum(values) / len(values)

    names = [task.name for task in dataclasses.fields(Metrics)[1:-1]]
    means = {name: mean(name) for name in names}
    return Metrics(samples, **means, tasks=tuple(tasks))


def _check(labels: np.ndarray, logits: np.ndarray, weights: np.ndarray | None) -> None:
    if labels.shape != logits.shape or labels.ndim not in (1, 2) or not labels.size:
        raise ValueError(
            f"labels have shape {labels.shape} and logits {logits.shape}, must both be "
            "[samples] or [samples, tasks] with at least one sample"
        )
    if weights is not None and (
        np.shape(weights) != (len(labels),)
        or not (np.isfinite(weights).all() and min(weights) >= 0)
    ):
        raise ValueError(
            f"weights have shape {np.shape(weights)}, must be one for each of the "
            f"{len(labels)} samples, finite, and 0 or more"
        )
    missing = np.isnan(labels) & (labels.ndim == 1)
    for wrong in np.argwhere((labels < 0) | (labels > 1) | missing):
        label = labels[*wrong]
        raise ValueError(f"label of sample {wrong[0]} is {label}, must be from 0 to 1")
    for wrong in np.argwhere(~np.isfinite(logits)):
        logit = logits[*wrong]
        raise NonFiniteLogitError(
            f"logit of sample {wrong[0]} is {logit}, must be finite"
        )


def to_host(array: ArrayLike) -> np.ndarray:
    """Returns the whole of an array, whichever processes hold its shards; where this is
    not one alone, all must call it."""
    import jax  # which an export is scored without
    from jax.experimental import multihost_utils

    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)
