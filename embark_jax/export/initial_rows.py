"""Initial rows of dynamic tables in NumPy, as JAX draws them, to the bit."""

from __future__ import annotations

import numpy as np

from embark_jax.export.description import InitialRows


def draw_initial_rows(initial: InitialRows, keys: np.ndarray, dim: int) -> np.ndarray:
    """Returns the ``[n, dim]`` float32 rows that ``[n]`` int64 keys begin with, as
    ``embedding.initial.initial_value`` gives them, rounded to the table's format."""
    words = keys.astype(np.int64).view(np.uint64)
    cell = np.uint32(initial.key[0]), np.uint32(initial.key[1])
    cell = fold_in(cell, np.uint32(initial.table))
    cell = fold_in(cell, (words & np.uint64(0xFFFFFFFF)).astype(np.uint32))
    low, high = fold_in(cell, (words >> np.uint64(32)).astype(np.uint32))
    columns = np.arange(dim, dtype=np.uint32)
    low, high = fold_in((low[:, None], high[:, None]), columns)
    first, second = threefry(low, high, np.uint32(0), np.uint32(0))
    # The bits of a float from 1 to 2, then from -1 to 1.
    bits = ((first ^ second) >> np.uint32(9)) | np.uint32(0x3F800000)
    values = (bits.view(np.float32) - np.float32(1)) * np.float32(2)
    values = (values - np.float32(1)) * np.float32(initial.scale)
    if initial.dtype == "bfloat16":  # the upper halves, even ones where two are as near
        bits = values.view(np.uint32)
        bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        values = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    elif initial.dtype == "float16":
        values = values.astype(np.float16).astype(np.float32)
    return values


def fold_in(cell, number):
    """Returns what ``jax.random.fold_in`` does, for the two words of a key, or of
    many."""
    low, high = cell
    return threefry(low, high, np.uint32(0), number)


def threefry(key0, key1, x0, x1):
    """Returns two words of random bits, by Threefry-2x32 with 20 rounds
    (https://www.thesalmons.org/john/random123/papers/random123sc11.pdf)."""
    keys = key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA)
    rotations = (13, 15, 26, 6), (17, 29, 16, 24)
    with np.errstate(over="ignore"):  # sums are modulo 2**32
        x0, x1 = x0 + keys[0], x1 + keys[1]
        for i in range(5):
            for by in rotations[i % 2]:
                x0 = x0 + x1
                x1 = x0 ^ ((x1 << np.uint32(by)) | (x1 >> np.uint32(32 - by)))
            x0 = x0 + keys[(i + 1) % 3]
            x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1
