"""The ranking quality of predictions within a user's samples, and their calibration."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Metrics of predictions within groups, such as a user's samples.

    Attributes:
      gauc: mean AUC of the groups with both labels, weighted by their samples
        (https://arxiv.org/abs/1706.06978, section 6.2). None if there is no such group.
      ndcg, recall, mrr: metrics at the first ``k`` samples of each group by decreasing
        prediction (equal ones in the order given); the mean over groups with a positive
        sample. MRR is that of the first positive sample, 0 if it is not among these.
        None if there is no such group.
      k: number of first samples.
      groups: number of all groups.
    """

    gauc: float | None
    ndcg: float | None
    recall: float | None
    mrr: float | None
    k: int
    groups: int


def rank(groups: ArrayLike, labels: ArrayLike, logits: ArrayLike, k: int) -> Ranking:
    """Computes metrics within groups.

    Args:
      groups: ``[samples]``, the group of each sample, such as its user's id.
      labels: ``[samples]``, each 0 or 1.
      logits: ``[samples]`` logits; any score that orders samples will do.
      k: ``k`` of ``Ranking``.

    Raises:
      ValueError: if shapes differ, there are no samples, or a label is neither 0 nor 1.
    """
    groups, labels, logits = map(np.asarray, (groups, labels, logits))
    if not groups.shape == labels.shape == logits.shape or groups.ndim != 1:
        raise ValueError(
            f"groups have shape {groups.shape}, labels {labels.shape} and logits "
            f"{logits.shape}, must all be [samples]"
        )
    if not len(groups):
        raise ValueError("there are no samples")
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("labels must be 0 or 1")
    order = np.lexsort([-logits, groups])
    labels, logits = labels[order].astype(bool), logits[order]
    first = np.flatnonzero(_differs_from_previous(groups[order]))
    counts = np.diff(np.append(first, len(order)))
    ranks = np.arange(len(order)) - np.repeat(first, counts)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values.astype(np.float64), first)

    positives = summed(labels)
    some, both = positives > 0, (positives > 0) & (positives < counts)
    shown = labels & (ranks < k)
    gains = 1 / np.log2(np.arange(counts.max()) + 2)
    ideal = np.append(0, np.cumsum(gains))[np.minimum(positives, k).astype(int)]
    firsts = np.maximum.reduceat(np.where(shown, 1 / (ranks + 1), 0.0), first)
    with np.errstate(divide="ignore", invalid="ignore"):
        aucs = _aucs(first, counts, labels, logits, positives)
        by_group = summed(np.where(shown, gains[ranks], 0)) / ideal
        recalls = summed(shown) / positives
    return Ranking(
        gauc=float(np.average(aucs[both], weights=counts[both])) if any(both) else None,
        ndcg=_mean(by_group[some]),
        recall=_mean(recalls[some]),
        mrr=_mean(firsts[some]),
        k=k,
        groups=len(first),
    )


def calibration(
    labels: ArrayLike, logits: ArrayLike, buckets: int = 10
) -> list[tuple[float, float]]:
    """Returns mean prediction and mean label of buckets with equally many samples, from
    the least likely to the most; buckets whose predictions are all equal become one."""
    from sklearn.calibration import calibration_curve  # takes a second to import

    probabilities = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    observed, predicted = calibration_curve(
        np.asarray(labels), probabilities, n_bins=buckets, strategy="quantile"
    )
    return list(zip(predicted.tolist(), observed.tolist(), strict=True))


def _aucs(
    first: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    logits: np.ndarray,
    positives: np.ndarray,
) -> np.ndarray:
    """Returns the AUC of each group, ties counted half, from ranks (Mann and Whitney,
    https://doi.org/10.1214/aoms/1177730491).

    Args:
      first: index of each group's first sample.
      counts: number of samples of each group.
      labels, logits: values of all samples, by group and decreasing logit.
      positives: number of positive samples of each group.
    """
    is_new = _differs_from_previous(logits)
    is_new[first] = True
    ties = np.flatnonzero(is_new)
    sizes = np.diff(np.append(ties, len(logits)))
    # From the end of the group, as ranks go up with logits.
    middle = np.repeat(ties + (sizes - 1) / 2, sizes)
    ranks = np.repeat(first + counts, counts) - middle
    sums = np.add.reduceat(np.where(labels, ranks, 0.0), first)
    return (sums - positives * (positives + 1) / 2) / (positives * (counts - positives))


def _differs_from_previous(values: np.ndarray) -> np.ndarray:
    """Returns for each value whether it is the first, or not equal to the one before.

    Values are compared, not subtracted: ids above 2^53 have no float, and infinities no
    difference.
    """
    return np.append(True, values[1:] != values[:-1])


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
