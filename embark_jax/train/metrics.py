"""The quality of predictions, over a whole evaluation set and exactly."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.typing import ArrayLike


class NonFiniteLogitError(ValueError):
    """A prediction is NaN or infinite: the parameters are unusable."""


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Metrics of predicted click probabilities, computed in float64.

    Attributes:
      samples: number of samples that were evaluated.
      log_loss: mean binary cross entropy, in nats.
      normalized_entropy: ``log_loss`` over that of always predicting the mean label; 1
        is useless. None if all labels are equal. He et al., ADKDD 2014,
        https://doi.org/10.1145/2648584.2648589.
      calibration: mean prediction over mean label. None if all labels are 0.
      auc: area under the ROC curve, ties counted half. None if all labels are equal, or
        some are soft: neither 0 nor 1.
      accuracy: share of samples on whose side of 1/2 the prediction is; exactly 1/2
        counts as a prediction of 0. None if some labels are soft.
    """

    samples: int
    log_loss: float
    normalized_entropy: float | None
    calibration: float | None
    auc: float | None
    accuracy: float | None


def evaluate(labels: np.ndarray, logits: np.ndarray) -> Metrics:
    """Computes metrics of ``logits`` as predictions of ``labels``.

    Args:
      labels: ``[samples]``, each from 0 to 1: clicks, or probabilities of one.
      logits: ``[samples]`` log-odds of label 1.

    Raises:
      ValueError: if there are no samples, shapes differ or a label is not from 0 to 1.
      NonFiniteLogitError: if a logit is not finite.
    """
    from sklearn.metrics import roc_auc_score  # takes a second to import

    labels, logits = np.asarray(labels, np.float64), np.asarray(logits, np.float64)
    _check(labels, logits)
    log_loss = float(np.mean(np.logaddexp(0, logits) - labels * logits))
    base_rate = float(labels.mean())
    # Stable on both sides: exp never overflows.
    decay = np.exp(-np.abs(logits))
    predictions = np.where(logits > 0, 1, decay) / (1 + decay)
    one_class = base_rate in (0.0, 1.0)
    soft = bool(((labels != 0) & (labels != 1)).any())
    return Metrics(
        samples=len(labels),
        log_loss=log_loss,
        normalized_entropy=None if one_class else log_loss / _entropy(base_rate),
        calibration=float(predictions.mean()) / base_rate if base_rate else None,
        auc=None if one_class or soft else float(roc_auc_score(labels, logits)),
        accuracy=None if soft else float(np.mean((logits > 0) == (labels == 1))),
    )


def _entropy(p: float) -> float:
    return float(-p * np.log(p) - (1 - p) * np.log1p(-p))


def _check(labels: np.ndarray, logits: np.ndarray) -> None:
    if labels.shape != logits.shape or labels.ndim != 1 or not len(labels):
        raise ValueError(
            f"labels have shape {labels.shape} and logits {logits.shape}, must both be "
            "[samples] with at least one sample"
        )
    for name, array, good, rule, error in (
        ("label", labels, (labels >= 0) & (labels <= 1), "from 0 to 1", ValueError),
        ("logit", logits, np.isfinite(logits), "finite", NonFiniteLogitError),
    ):
        if not good.all():
            first = int(np.argmin(good))
            raise error(
                f"{name} of sample {first} is {array[first]}, must be {rule} "
                f"({np.sum(~good)} of {len(array)} samples are not)"
            )


class EvalAccumulator:
    """Collects labels and logits batch by batch, for ``evaluate``.

    Device arrays stay where they are until ``result``, so adding a batch waits for no
    device. In a run of several processes all must add the same global batches, and all
    get the result.
    """

    def __init__(self):
        self._batches: list[tuple[ArrayLike, ArrayLike, int]] = []

    def add(self, labels: ArrayLike, logits: ArrayLike, valid: int) -> None:
        """Adds a batch to those to evaluate.

        Args:
          labels, logits: ``[batch]``, on the host or on devices, sharded or not.
          valid: number of its first samples that count; the others are padding.
        """
        if isinstance(labels, np.ndarray):
            labels = labels.copy()  # which may be a view that keeps a whole batch
        self._batches.append((labels, logits, valid))

    def result(self) -> Metrics:
        """Returns the metrics of everything that was added.

        Raises:
          ValueError: as ``evaluate`` does.
        """
        labels, logits = (
            np.concatenate([_to_host(batch[i])[: batch[2]] for batch in self._batches])
            if self._batches
            else np.empty(0)
            for i in (0, 1)
        )
        return evaluate(labels, logits)


def _to_host(array: ArrayLike) -> np.ndarray:
    """Returns the whole of an array, whichever processes hold its parts."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)
