"""Times the input pipeline of an experiment alone: no device is used.

The same run also times what this machine does at best: a copy of as many bytes, and a
gather of as many rows in random order, both by NumPy in one thread, into memory that
was touched before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from embark_jax.config import ExperimentConfig
from embark_jax.data import prefetch
from embark_jax.data.records import WORD_BYTES
from embark_jax.run.dataset import batch_checker, read_dataset

GATHER_REPEATS = 5


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
      The medians ``samples_per_s``, ``batch_ms`` and ``bytes_per_s``; the latter also
      for a copy and a gather of a batch's rows; and what was measured.
    """
    dataset, _, tables, features = read_dataset(config)
    check = batch_checker(config, dataset, tables, features)
    size = config.train.batch_size
    batches = max(1, samples // size)

    def make_batch(step: int) -> np.ndarray:
        return check(dataset.train_batch(step, size)).to_records()

    times = []
    copies = []
    gathers = []
    sample_bytes = 0
    for number in range(rounds + 1):
        steps = range(number * batches, (number + 1) * batches)
        start = time.perf_counter()
        for records in prefetch(make_batch, steps):
            sample_bytes = records.itemsize
        times.append(time.perf_counter() - start)
        copied, gathered = _measure_memory(size, sample_bytes)
        copies.append(copied)
        gathers.append(gathered)
    seconds = statistics.median(times[1:])
    return {
        "samples_per_s": batches * size / seconds,
        "batch_ms": seconds / batches * 1e3,
        "bytes_per_s": batches * size * sample_bytes / seconds,
        "copy_bytes_per_s": size * sample_bytes / statistics.median(copies[1:]),
        "gather_bytes_per_s": size * sample_bytes / statistics.median(gathers[1:]),
        "name": config.name,
        "data": config.data.kind,
        "batch_size": size,
        "sample_bytes": sample_bytes,
        "batches": batches,
        "rounds": rounds,
    }


def _measure_memory(rows: int, row_bytes: int) -> tuple[float, float]:
    """Seconds to copy rows, and to gather the same number from twice as many."""
    rng = np.random.default_rng(0)
    source = np.ones((2 * rows, row_bytes // WORD_BYTES), np.int32)
    target = np.zeros((rows, row_bytes // WORD_BYTES), np.int32)
    order = rng.permutation(2 * rows)[:rows]

    def copy() -> None:
        np.copyto(target, source[:rows])

    def gather() -> None:
        # "clip": NumPy buffers the whole result if it checks indices.
        np.take(source, order, axis=0, out=target, mode="clip")

    return _seconds(copy), _seconds(gather)


def _seconds(function: Callable[[], None]) -> float:
    times = []
    for _ in range(GATHER_REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
