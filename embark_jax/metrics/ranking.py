"""The ranking quality of predictions within groups of samples, such as a user's."""

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
        prediction; the mean over groups with a positive sample. MRR is that of the
        first positive sample, 0 if it is not among these. None if there is no such
        group. Equal predictions are in random order, of which these are expectations.
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
    groups, labels, logits = groups[order], labels[order].astype(int), logits[order]
    begins_group = _differs_from_previous(groups)
    tie = np.flatnonzero(begins_group | _differs_from_previous(logits))
    size, positive = np.diff(np.append(tie, len(order))), np.add.reduceat(labels, tie)
    negative = size - positive
    begins_group = begins_group[tie]
    first, group = np.flatnonzero(begins_group), np.cumsum(begins_group) - 1

    def summed(of_ties: np.ndarray) -> np.ndarray:
        return np.add.reduceat(of_ties, first)

    counts, positives, negatives = map(summed, (size, positive, negative))
    some, both = positives > 0, (positives > 0) & (negatives > 0)
    # Mann and Whitney, https://doi.org/10.1214/aoms/1177730491.
    above = np.cumsum(negative) - negative
    below = negatives[group] - (above - above[first][group]) - negative
    aucs = (
        summed(positive * (below + negative / 2))[both] / (positives * negatives)[both]
    )
    place = tie - tie[first][group]
    begin, end = np.minimum(place, k), np.minimum(place + size, k)
    gains = np.append(0, np.cumsum(1 / np.log2(np.arange(counts.max()) + 2)))
    share = positive / size
    dcg = summed(share * (gains[end] - gains[begin]))[some]
    found = summed(share * (end - begin))[some]
    relevant = np.flatnonzero(positive)
    relevant = relevant[np.unique(group[relevant], return_index=True)[1]]
    return Ranking(
        gauc=float(np.average(aucs, weights=counts[both])) if any(both) else None,
        ndcg=_mean(dcg / gains[np.minimum(positives[some], k)]),
        recall=_mean(found / positives[some]),
        mrr=_mean(_reciprocal(place, size, positive, k)[relevant]),
        k=k,
        groups=len(first),
    )


def _reciprocal(
    place: np.ndarray, size: np.ndarray, positive: np.ndarray, k: int
) -> np.ndarray:
    """Returns the expected reciprocal rank, from 1, of the first positive sample of a
    tie in random order; ranks beyond k count as 0.

    Args:
      place: rank of the first sample of each tie, from 0.
      size, positive: number of its samples, and of the positive ones.
    """
    expected, none_before = np.zeros(len(size)), np.ones(len(size))
    for ahead in range(min(k, size.max())):  # samples of the tie before the first
        rest = np.maximum(size - ahead, 1)
        rank = place + ahead + 1
        chance = none_before * positive / rest
        expected += np.where(rank <= k, chance / rank, 0)
        none_before *= np.maximum(rest - positive, 0) / rest
    return expected


def _differs_from_previous(values: np.ndarray) -> np.ndarray:
    """Returns for each value whether it is the first, or not equal to the one before.

    Values are compared, not subtracted: ids above 2^53 have no float, and infinities no
    difference.
    """
    return np.append(True, values[1:] != values[:-1])


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
