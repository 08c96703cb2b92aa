"""Keys that are hard to tell apart, and the initial row of each in the table "x"."""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.embedding.keys import hash_words, row_shard_of, words_of
from tests.matrix.runs import DIM, SCALE

EXTREME = [0, 1, -2, 2**63 - 1, -(2**63), 2**31, -(2**31), 2**32 - 1, 2**32]
BUCKET_SEEDS = (0x9E3779B9, 0x85EBCA6B)


@functools.cache
def colliding(count: int) -> list[int]:
    """Keys that hash to the last of 2, 4 and 8 owners, and to one first bucket of 64,
    and choose one second bucket: more than both hold."""
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2**22)
    first, step = (hash_words(words_of(keys), seed) for seed in BUCKET_SEEDS)
    chosen = (row_shard_of(words_of(keys), 8) == 7) & (first % 64 == 5)
    return keys[chosen & (step % 63 % 8 == 1)][:count].tolist()


@jax.jit
def initial_values(low: jax.Array, high: jax.Array) -> jax.Array:
    """Of the key with these halves, said the long way."""
    cell = jax.random.fold_in(jax.random.key(1), zlib.crc32(b"x") >> 1)
    cell = jax.random.fold_in(jax.random.fold_in(cell, low), high)
    columns = [jax.random.fold_in(cell, i) for i in range(DIM)]
    return jnp.stack([jax.random.uniform(c, minval=-1.0) * SCALE for c in columns])


@functools.cache
def initial_row(key: int) -> np.ndarray:
    return np.array(initial_values(np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)))
