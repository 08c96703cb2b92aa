"""The ranking quality of predictions: within groups of samples, such as a user's, and
of the item that a user met, among all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from embark_jax.metrics.pointwise import POINTWISE, Metric, are_soft
from embark_jax.metrics.ties import tie_starts


def rank(
    groups: ArrayLike, labels: ArrayLike, logits: ArrayLike, k: int
) -> dict[str, float | None]:
    """Computes metrics within groups.

    ``gauc`` is the mean AUC of the groups with both labels, weighted by their samples
    (https://arxiv.org/abs/1706.06978, section 6.2). ``ndcg@K`` and ``recall@K`` are
    those of the first K samples of each group by decreasing logit; the mean over groups
    with a positive sample. Equal logits, by the rule of ``ties``, are in random order,
    of which these are expectations. A metric is None if there is no such group.

    Args:
      groups: ``[samples]``, the group of each sample, such as its user's id.
      labels: ``[samples]``, each from 0 to 1; no metric takes those between.
      logits: ``[samples]`` logits; any score that orders samples will do.
      k: number of first samples.

    Raises:
      ValueError: if shapes differ, or a label is not from 0 to 1.
    """
    groups, labels, logits = map(np.asarray, (groups, labels, logits))
    if not groups.shape == labels.shape == logits.shape or groups.ndim != 1:
        raise ValueError(
            f"groups have shape {groups.shape}, labels {labels.shape} and logits "
            f"{logits.shape}, must all be [samples]"
        )
    if not ((labels >= 0) & (labels <= 1)).all():
        raise ValueError("labels must be from 0 to 1")
    if not len(groups) or are_soft(labels):
        return dict.fromkeys(("gauc", f"ndcg@{k}", f"recall@{k}"))
    order = np.lexsort([-logits, groups])
    groups, labels, logits = groups[order], labels[order].astype(int), logits[order]
    # Compared, not subtracted: ids above 2^53 have no float.
    begins_group = np.append(True, groups[1:] != groups[:-1])
    tie = np.flatnonzero(tie_starts(logits, begins_group))
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
    return {
        "gauc": float(np.average(aucs, weights=counts[both])) if any(both) else None,
        f"ndcg@{k}": _mean(dcg / gains[np.minimum(positives[some], k)]),
        f"recall@{k}": _mean(found / positives[some]),
    }


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


class Ranks(NamedTuple):
    """Where the items that users met are, among all items by decreasing product.

    Attributes:
      before: ``[users]`` number of items with a larger product.
      equal: ``[users]`` number of other items with the same product. Their order is
        left open: ``at_k`` takes the mean over all orders.
    """

    before: np.ndarray
    equal: np.ndarray


def at_k(ranks: Ranks, cutoffs: Sequence[int]) -> dict[str, float | None]:
    """Returns the hit rate ``hr@K`` and ``ndcg@K`` of ranks, for each cutoff K; None
    if there are no ranks.

    Of one item for each user, a hit is a rank below K, whose gain is
    ``1 / log2(rank + 2)`` (https://arxiv.org/abs/1808.09781, section IV-B). Items with
    the same product are in random order: both are expectations over it.
    """
    return {
        f"{metric.name}@{k}": metric.function(ranks, k)
        for k in cutoffs
        for metric in RETRIEVAL
    }


def hit_rate(ranks: Ranks, k: int) -> float | None:
    """See ``at_k``."""
    first, end, tied = _places(ranks, k)
    return _mean((end - first) / tied)


def ndcg(ranks: Ranks, k: int) -> float | None:
    """See ``at_k``."""
    first, end, tied = _places(ranks, k)
    gains = np.append(0, np.cumsum(1 / np.log2(np.arange(k) + 2.0)))
    return _mean((gains[end] - gains[first]) / tied)


def _places(ranks: Ranks, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the first rank of the item and its equals, the one after the last, both
    at most K, and how many they are."""
    before, tied = (np.asarray(x, np.int64) for x in (ranks.before, ranks.equal + 1))
    return np.minimum(before, k), np.minimum(before + tied, k), tied


RETRIEVAL = (
    Metric("hr", hit_rate, True, "a sample of label 1"),
    Metric("ndcg", ndcg, True, "a sample of label 1"),
)
"""Metrics of ranks and a cutoff K; a record has them as ``hr@10``."""


GROUPED = (
    Metric("gauc", rank, True, "a group with labels of both 0 and 1, none between"),
    Metric("recall", rank, True, "a group with a label of 1, none between 0 and 1"),
)
"""Metrics of groups, which ``rank`` computes together, with one that is above."""
METRICS = {metric.name: metric for metric in (*GROUPED, *POINTWISE, *RETRIEVAL)}
"""All metrics, by name before any cutoff."""
DECIDING = {
    **{m.name: m for m in POINTWISE if m.higher_is_better is not None},
    **{f"{m.name}@10": m for m in RETRIEVAL},
}
"""The metrics of the validation set that may decide, between steps and trials."""
