"""Counts the accesses in a sample of a config's data: which rows are looked up, how
often, and how long bags are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from embark_jax.config import ExperimentConfig
from embark_jax.data import Batch
from embark_jax.plans.tables import PADDING_ID, FeatureSpec
from embark_jax.run.dataset import batch_checker, read_dataset
from embark_jax.statistics.accesses import FeatureAccess, Statistics, TableAccess
from embark_jax.statistics.histogram import BIN_RATIO, Histogram

Progress = Callable[[Sequence[int]], Iterable[int]]
Counts = tuple[np.ndarray, np.ndarray]
"""Unique ids, ascending, and how often each was seen."""


def sample_accesses(
    config: ExperimentConfig, samples: int, progress: Progress = iter
) -> Statistics:
    """Returns statistics of random batches of an epoch, as the model would see them.

    The batches are a function of the config's seed. They are read twice: the second
    time to see how many samples of one half have rows alone that the other half saw
    often.

    Args:
      config: experiment config.
      samples: number of samples, rounded to whole batches; at most an epoch.
      progress: iterates over the steps, and may show progress.

    Raises:
      ConfigError: if the config does not fit the dataset.
      DataError: if the dataset is missing or damaged, or a sample is bad.
    """
    dataset, _, tables, features = read_dataset(config)
    check = batch_checker(config, dataset, tables, features)
    samples = min(samples, dataset.train_samples)
    size = min(samples, config.train.batch_size)
    random = np.random.default_rng(config.seed)
    steps = random.choice(dataset.train_samples // size, samples // size, replace=False)
    steps = np.sort(steps).tolist()

    def batches(steps: Iterable[int]):
        return (check(dataset.train_batch(step, size)) for step in steps)

    halves = [{f.name: BagCounter() for f in features} for _ in range(2)]
    for batch in batches(progress(steps)):
        for begin, half in enumerate(halves):
            for name, counter in half.items():
                counter.add(batch.ids[name][begin::2])
    fixed = [table for table in tables if not table.is_dynamic]
    counted = [
        {
            t.name: merge(half[f.name].counts() for f in features if f.table == t.name)
            for t in fixed
        }
        for half in halves
    ]
    countable = [feature for feature in features if feature.table in counted[0]]
    rarest = [
        rarest_accesses(batch, countable, counted[0])[1::2] for batch in batches(steps)
    ]
    return Statistics(
        len(steps) * size,
        {f.name: _feature_access([half[f.name] for half in halves]) for f in features},
        {
            table.name: TableAccess(
                table.rows,
                Histogram.from_counts(*merge(counts[table.name] for counts in counted)),
            )
            for table in fixed
        },
        _binned(np.concatenate(rarest)),
    )


def _feature_access(halves: Sequence[BagCounter]) -> FeatureAccess:
    return FeatureAccess(
        sum(half.accesses for half in halves) / sum(half.samples for half in halves),
        max(half.max_hotness for half in halves),
        len(merge(half.counts() for half in halves)[0]),
    )


def _binned(rarest: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Returns ``Statistics.rarest``: numbers within 5 % count as the least of them."""
    accesses, samples = np.unique(rarest, return_counts=True)
    bins = np.floor(np.log(np.maximum(accesses, 1)) / np.log(BIN_RATIO))
    bins[accesses == 0] = -1
    starts = np.flatnonzero(np.diff(bins, prepend=-2))
    in_bins = np.add.reduceat(samples, starts) if len(samples) else samples
    return tuple(zip(accesses[starts].tolist(), in_bins.tolist(), strict=True))


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


def merge(counted: Iterable[Counts]) -> Counts:
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
    rarest = np.full(len(batch), most := np.iinfo(np.int64).max)
    for feature in features:
        ids = np.asarray(batch.ids[feature.name])
        known, seen = counts[feature.table]
        if not len(known):
            seen_before = np.zeros(ids.shape, np.int64)
        else:
            place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
            seen_before = np.where(known[place] == ids, seen[place], 0)
        seen_before[ids == PADDING_ID] = most
        rarest = np.minimum(rarest, seen_before.min(axis=1))
    return rarest
