"""Counts the accesses in a sample of a config's data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from embark_jax.config import ExperimentConfig
from embark_jax.data import bag_counts
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run.dataset import batch_checker, read_dataset
from embark_jax.statistics.accesses import FeatureAccess, Statistics, TableAccess
from embark_jax.statistics.histogram import BIN_RATIO, Histogram

Progress = Callable[[Sequence[int]], Iterable[int]]


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

    halves = bag_counts.count_halves(batches(progress(steps)), features)
    counted = [
        {
            table.name: _counts_of(table, half, features)
            for table in tables
            if not table.is_dynamic
        }
        for half in halves
    ]
    of_tables = [feature for feature in features if feature.table in counted[0]]
    rarest = [
        bag_counts.rarest_accesses(batch, of_tables, counted[0])[1::2]
        for batch in batches(steps)
    ]
    return Statistics(
        len(steps) * size,
        {f.name: _feature_access([half[f.name] for half in halves]) for f in features},
        {
            table.name: TableAccess(
                table.rows,
                Histogram.from_counts(
                    *bag_counts.merge(counts[table.name] for counts in counted)
                ),
            )
            for table in tables
            if not table.is_dynamic
        },
        _binned(np.concatenate(rarest)),
    )


def _counts_of(
    table: TableSpec,
    half: Mapping[str, bag_counts.BagCounter],
    features: Sequence[FeatureSpec],
) -> bag_counts.Counts:
    return bag_counts.merge(
        half[feature.name].counts()
        for feature in features
        if feature.table == table.name
    )


def _feature_access(halves: Sequence[bag_counts.BagCounter]) -> FeatureAccess:
    return FeatureAccess(
        sum(half.accesses for half in halves) / sum(half.samples for half in halves),
        max(half.max_hotness for half in halves),
        len(bag_counts.merge(half.counts() for half in halves)[0]),
    )


def _binned(rarest: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Returns ``Statistics.rarest``: numbers within 5 % count as the least of them."""
    accesses, samples = np.unique(rarest, return_counts=True)
    of_bin = np.floor(np.log(np.maximum(accesses, 1)) / np.log(BIN_RATIO))
    of_bin[accesses == 0] = -1
    starts = np.flatnonzero(np.diff(of_bin, prepend=-2))
    in_bins = np.add.reduceat(samples, starts) if len(samples) else samples
    return tuple(zip(accesses[starts].tolist(), in_bins.tolist(), strict=True))
