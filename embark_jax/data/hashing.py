"""A counter-based hash gives random bits without a state or a table."""

from __future__ import annotations

import numpy as np


def splitmix64(counters: np.ndarray) -> np.ndarray:
    """Returns the splitmix64 output for each counter; a bijection of the 64-bit
    integers.

    The constants are those of https://prng.di.unimi.it/splitmix64.c: its i-th output
    from seed s is the output at counter ``s + i * 0x9E3779B97F4A7C15``, i from 1.

    Args:
      counters: uint64, any shape.

    Returns:
      uint64 of the same shape.
    """
    bits = counters ^ (counters >> np.uint64(30))
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Counters a multiple of this apart give splitmix64's best-tested streams."""
