"""Counts the accesses in a sample of a config's data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig
from embark_jax.data import bag_counts
from embark_jax.plans.tables import PADDING_ID, FeatureSpec, TableSpec
from embark_jax.run.dataset import batch_checker, read_dataset
from embark_jax.statistics.accesses import FeatureAccess, Statistics, TableAccess
from embark_jax.statistics.agreement import HalfAgreement
from embark_jax.statistics.histogram import BIN_RATIO, Histogram
from embark_jax.statistics.recurrence import Recurrence

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
            table.name: _table_access(
                table.rows, [counts[table.name] for counts in counted]
            )
            for table in tables
            if not table.is_dynamic
        },
        _binned(np.concatenate(rarest)),
    )


def recurrence(config: ExperimentConfig, batches: int = 100) -> Recurrence:
    """Returns in how many of the first batches of an epoch each row is, and the
    accesses of the batch after them.

    Raises:
      ConfigError: if the config does not fit the dataset, or it has too few batches.
      DataError: if the dataset is missing or damaged, or a sample is bad.
    """
    dataset, _, tables, features = read_dataset(config)
    size = config.train.batch_size
    if (batches + 1) * size > dataset.train_samples:
        raise ConfigError(
            f"train.batch_size is {size:,}: {batches + 1} batches are more than the "
            f"{dataset.train_samples:,} training samples; lower it"
        )
    check = batch_checker(config, dataset, tables, features)
    seen = bag_counts.seen_in_batches(
        (check(dataset.train_batch(step, size)) for step in range(batches)), features
    )
    rows = np.zeros(batches + 1, np.int64)
    for table in tables:
        in_batches = np.bincount(seen[table.name][1], minlength=batches + 1)
        # A dynamic table has as many rows as keys were seen.
        of_table = 0 if table.is_dynamic else table.rows - in_batches.sum()
        rows += in_batches
        rows[0] += of_table
    following = check(dataset.train_batch(batches, size))
    accesses = np.zeros(batches + 1, np.int64)
    for feature in features:
        ids = np.asarray(following.ids[feature.name])
        times = bag_counts.seen_before(ids[ids != PADDING_ID], seen[feature.table])
        accesses += np.bincount(times, minlength=batches + 1)
    return Recurrence(rows, accesses)


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


def _table_access(rows: int, halves: Sequence[bag_counts.Counts]) -> TableAccess:
    """Returns the accesses of a table's rows, as each half of a sample counted them."""
    histogram = Histogram.from_counts(*bag_counts.merge(halves))
    return TableAccess(rows, histogram, HalfAgreement.from_counts(*halves))


def _binned(rarest: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Returns ``Statistics.rarest``: numbers within 5 % count as the least of them."""
    accesses, samples = np.unique(rarest, return_counts=True)
    of_bin = np.floor(np.log(np.maximum(accesses, 1)) / np.log(BIN_RATIO))
    of_bin[accesses == 0] = -1
    starts = np.flatnonzero(np.diff(of_bin, prepend=-2))
    in_bins = np.add.reduceat(samples, starts) if len(samples) else samples
    return tuple(zip(accesses[starts].tolist(), in_bins.tolist(), strict=True))
