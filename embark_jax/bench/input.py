"""Times the input pipeline of an experiment alone: no device is used."""

from __future__ import annotations

import statistics
import time
from typing import Any

from embark_jax.config import ExperimentConfig
from embark_jax.data import prefetch
from embark_jax.dataset import batch_checker, read_dataset


def measure_input(
    config: ExperimentConfig, rounds: int, samples: int
) -> dict[str, Any]:
    """Times the training batches as the trainer takes them: made, checked, prefetched.

    Args:
      config: of the experiment.
      rounds: whose median is taken, after one to warm up; they go on in the epoch.
      samples: of a round, rounded to whole batches; many, so that it meets several
        windows of shuffled samples.

    Returns:
      ``samples_per_s`` and ``batch_ms``, medians, and what was measured.
    """
    dataset, tables, features = read_dataset(config)
    check = batch_checker(config, dataset, tables, features)
    size = config.train.batch_size
    batches = max(1, samples // size)
    times = []
    for number in range(rounds + 1):
        steps = range(number * batches, (number + 1) * batches)
        start = time.perf_counter()
        for _ in prefetch(lambda step: check(dataset.train_batch(step, size)), steps):
            pass
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times[1:])
    return {
        "samples_per_s": batches * size / seconds,
        "batch_ms": seconds / batches * 1e3,
        "name": config.name,
        "data": config.data.kind,
        "batch_size": size,
        "batches": batches,
        "rounds": rounds,
    }
