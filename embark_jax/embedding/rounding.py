"""The noise with which updated rows of 16 bits are rounded: see
``embark_kernels.rounding``."""

from __future__ import annotations

from collections.abc import Callable

import jax
from embark_kernels.rounding import column_noise

from embark_jax.embedding.hot_keys import HotKeys
from embark_jax.embedding.initial import ShardsByDevice
from embark_jax.plans.storage import Storage


def noise_of(
    storage: Storage, hot_keys: HotKeys, step: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that gives the uint32 noise ``[n]`` of rows, inside
    ``shard_map``, from their slots in this device's block, ``[n]`` int32.

    The random bits that follow depend on the table, row and column and on the step,
    never on plan or mesh, and not on the seed of the run: its rows and batches do.

    Args:
      storage: the storage.
      hot_keys: index of the plan's listed hot rows.
      step: ``[]`` int32 number of the step.
    """
    shards = ShardsByDevice(storage, hot_keys)
    key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), step)

    def of_row(row_low, row_high, seed):
        row = jax.random.fold_in(jax.random.fold_in(key, seed), row_low)
        return jax.random.key_data(jax.random.fold_in(row, row_high))[0]

    def noise(slots):
        row_low, row_high, column, seed, _, _ = shards.locate(slots)
        return jax.vmap(of_row)(row_low, row_high, seed) + column_noise(column)

    return noise
