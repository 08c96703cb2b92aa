"""Counts which rows the samples of a dataset look up, and how long their bags are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from embark_jax.data.batch import Batch
from embark_jax.plans.tables import PADDING_ID, FeatureSpec


class BagCounter:
    """Counts the bags of one feature.

    Attributes:
      samples: number of bags.
      accesses: number of ids in all bags, without padding.
      max_hotness: number of ids in the longest bag.
    """

    def __init__(self):
        self.samples = self.accesses = self.max_hotness = 0
        self._ids, self._counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

    def add(self, bags: np.ndarray) -> None:
        """Counts ``[batch, hotness]`` ids, padded with -1."""
        used = bags != PADDING_ID
        self.samples += len(bags)
        self.accesses += int(used.sum())
        self.max_hotness = max(self.max_hotness, int(used.sum(axis=1).max(initial=0)))
        ids, counts = np.unique(bags[used], return_counts=True)
        self._ids.append(ids.astype(np.int64))
        self._counts.append(counts)
        # Merged whenever new ids outnumber the merged ones: memory follows the rows
        # seen, and each id is merged a few times only.
        if sum(map(len, self._ids[1:])) > len(self._ids[0]):
            self.counts()

    def counts(self) -> Counts:
        """Returns what was counted."""
        merged = merge(zip(self._ids, self._counts, strict=True))
        self._ids, self._counts = [merged[0]], [merged[1]]
        return merged


Counts = tuple[np.ndarray, np.ndarray]
"""Unique ids, ascending, and how often each was seen."""


def count_halves(
    batches: Iterable[Batch], features: Sequence[FeatureSpec]
) -> tuple[dict[str, BagCounter], dict[str, BagCounter]]:
    """Counts each feature's bags in every second sample, and those in the others."""
    halves = (
        {f.name: BagCounter() for f in features},
        {f.name: BagCounter() for f in features},
    )
    for batch in batches:
        for begin, counters in enumerate(halves):
            for name, counter in counters.items():
                counter.add(batch.ids[name][begin::2])
    return halves


def merge(
    counted: Iterable[Counts],
) -> Counts:
    """Merges pairs of unique ids and their counts into one; pairs may share ids."""
    ids, counts = map(np.concatenate, zip(*counted, strict=True))
    ids, group = np.unique(ids, return_inverse=True)
    return ids, np.bincount(group, counts, len(ids)).astype(np.int64)


def rarest_accesses(
    batch: Batch, features: Sequence[FeatureSpec], counts: Mapping[str, Counts]
) -> np.ndarray:
    """Returns ``[batch]``: how often the rarest row of each sample was seen; where it
    has no id, as often as an int64 can say.

    Args:
      batch: the samples.
      features: features that count.
      counts: how often the rows of each table were seen.
    """
    rarest = np.full(len(batch), np.iinfo(np.int64).max)
    for feature in features:
        ids = np.asarray(batch.ids[feature.name])
        seen = seen_before(ids, counts[feature.table])
        seen[ids == PADDING_ID] = np.iinfo(np.int64).max
        rarest = np.minimum(rarest, seen.min(axis=1))
    return rarest


def seen_before(ids: np.ndarray, counts: Counts) -> np.ndarray:
    """Returns how often each of the ``[…]`` ids was counted."""
    unique_ids, seen = counts
    if not len(unique_ids):
        return np.zeros(ids.shape, np.int64)
    index = np.minimum(np.searchsorted(unique_ids, ids), len(unique_ids) - 1)
    return np.where(unique_ids[index] == ids, seen[index], 0)
