"""Times the input pipeline of an experiment alone: no device is used."""

from __future__ import annotations

import itertools
from typing import Any

from embark_jax.bench.timing import median_s
from embark_jax.config import ExperimentConfig
from embark_jax.data import prefetch
from embark_jax.data.layout import Layout
from embark_jax.run.dataset import batch_checker, read_dataset


def measure_input(
    config: ExperimentConfig, rounds: int, samples: int
) -> dict[str, Any]:
    """Times the training batches as the trainer takes them: made, checked, prefetched.

    Args:
      config: the experiment's config.
      rounds: number of timed rounds, after one to warm up; results are medians. Each
        round continues in the epoch where the last one ended.
      samples: samples per round, rounded to whole batches. Take enough to meet several
        windows of shuffled samples.

    Returns:
      The medians ``samples_per_s``, ``batch_ms`` and ``bytes_per_s``, and what was
      measured.
    """
    dataset, _, tables, features = read_dataset(config)
    check = batch_checker(config, dataset, tables, features)
    size = config.train.batch_size
    batches = max(1, samples // size)

    def make_batch(step: int) -> Layout:
        layout, _ = check(dataset.train_batch(step, size)).matrices()
        return layout

    first = itertools.count(step=batches)

    def read_all() -> int:
        """Returns the bytes of a sample."""
        begin, sample_bytes = next(first), 0
        for layout in prefetch(make_batch, range(begin, begin + batches)):
            sample_bytes = layout.sample_bytes
        return sample_bytes

    sample_bytes = read_all()
    seconds = median_s(read_all, rounds, warm_ups=0)
    return {
        "samples_per_s": batches * size / seconds,
        "batch_ms": seconds / batches * 1e3,
        "bytes_per_s": batches * size * sample_bytes / seconds,
        "name": config.name,
        "data": config.data.kind,
        "batch_size": size,
        "sample_bytes": sample_bytes,
        "batches": batches,
        "rounds": rounds,
    }
