"""Times the input pipeline of an experiment alone: no device is used.

The same run also times what this machine does at best: a copy of as many bytes, and a
gather of as many rows in random order, both by NumPy in one thread, into memory that
was touched before.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from embark_jax.bench.timing import median_s
from embark_jax.config import ExperimentConfig
from embark_jax.data import prefetch
from embark_jax.data.records import WORD_BYTES
from embark_jax.run.dataset import batch_checker, read_dataset

MEMORY_ROUNDS = 15


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

    first = itertools.count(step=batches)

    def read_all() -> int:
        """Returns the bytes of a sample."""
        begin, itemsize = next(first), 0
        for records in prefetch(make_batch, range(begin, begin + batches)):
            itemsize = records.itemsize
        return itemsize

    sample_bytes = read_all()
    seconds = median_s(read_all, rounds, warm_ups=0)
    copy_s, gather_s = _memory_s(size, sample_bytes)
    return {
        "samples_per_s": batches * size / seconds,
        "batch_ms": seconds / batches * 1e3,
        "bytes_per_s": batches * size * sample_bytes / seconds,
        "copy_bytes_per_s": size * sample_bytes / copy_s,
        "gather_bytes_per_s": size * sample_bytes / gather_s,
        "name": config.name,
        "data": config.data.kind,
        "batch_size": size,
        "sample_bytes": sample_bytes,
        "batches": batches,
        "rounds": rounds,
    }


def _memory_s(rows: int, row_bytes: int) -> tuple[float, float]:
    """Returns seconds to copy rows, and to gather as many from twice as many."""
    rng = np.random.default_rng(0)
    source = np.ones((2 * rows, row_bytes // WORD_BYTES), np.int32)
    target = np.zeros((rows, row_bytes // WORD_BYTES), np.int32)
    order = rng.permutation(2 * rows)[:rows]

    def copy() -> None:
        np.copyto(target, source[:rows])

    def gather() -> None:
        # "clip": NumPy buffers the whole result if it checks indices.
        np.take(source, order, axis=0, out=target, mode="clip")

    return median_s(copy, MEMORY_ROUNDS), median_s(gather, MEMORY_ROUNDS)
