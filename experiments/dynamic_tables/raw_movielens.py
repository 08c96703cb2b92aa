"""MovieLens-100k as it would come without a vocabulary: ids are 63-bit numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from embark_jax.data import Batch, MovieLens100K
from embark_jax.data.hashing import splitmix64

RAW = ("user", "item", "zip_code")
"""Tables whose ids are raw: those of many rows with an id a sample."""


class RawMovieLens(MovieLens100K):
    """The same samples; ids of three tables are hashed, which is one to one here.

    Args:
      seed: orders the training samples.
    """

    def __init__(self, *, seed: int):
        super().__init__(seed=seed)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        return _raw(super().train_batch(step, batch_size))

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return map(_raw, super().test_batches(batch_size))

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        return map(_raw, super().validation_batches(batch_size))


def _raw(batch: Batch) -> Batch:
    hashed = {
        name: (splitmix64(ids.astype(np.uint64) + np.uint64(1)) >> np.uint64(1)).astype(
            np.int64
        )
        for name, ids in batch.ids.items()
        if name in RAW
    }
    return dataclasses.replace(batch, ids={**batch.ids, **hashed})
