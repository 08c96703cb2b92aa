"""The initial row of a key of the table "user", which ``tests.builders`` trains."""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np

DIM, SCALE = 4, 0.3


@jax.jit
def initial_values(low: jax.Array, high: jax.Array) -> jax.Array:
    """Of a user whose key has these halves, said the long way."""
    cell = jax.random.fold_in(jax.random.key(1), zlib.crc32(b"user") >> 1)
    cell = jax.random.fold_in(jax.random.fold_in(cell, low), high)
    columns = [jax.random.fold_in(cell, i) for i in range(DIM)]
    return jnp.stack([jax.random.uniform(c, minval=-1.0) * SCALE for c in columns])


@functools.cache
def initial_row(key: int) -> np.ndarray:
    return np.array(initial_values(np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)))
