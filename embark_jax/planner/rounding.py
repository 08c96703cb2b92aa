"""Whole numbers near fractions."""

from __future__ import annotations

import numpy as np


def rounded(values: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that sum to ``total``, the largest remainders rounded up."""
    whole = np.floor(values + 1e-6).astype(int)
    order = np.argsort(whole - values, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole
