"""A warning about dense columns that are far from 1 in size."""

import re

import numpy as np

from embark_jax.data import scale_warnings


def columns(*sizes: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((1000, len(sizes))).astype(np.float32) * sizes


def test_columns_near_1_need_none():
    names = ["a", "b", "c", "d"]
    assert scale_warnings(columns(1, 5, 0.05, 0), names) == []
    counts = np.log1p(np.geomspace(1, 1e6, 100))[:, None].astype(np.float32)
    assert scale_warnings(counts, ["count"]) == []
    rare = np.zeros((4096, 1), np.float32)
    rare[7] = 1
    assert scale_warnings(rare, ["indicator"]) == []


def test_others_are_named_with_what_to_do():
    (warning,) = scale_warnings(columns(1, 300, 1e-4), ["a", "b", "c"])
    assert "far from 1 in size" in warning
    assert re.search(r"b about (29|30|31)\d, c about 0.0001\d* \(", warning)
    assert "a about" not in warning
    assert "first 1,000 samples" in warning
    assert "(value - mean) / standard deviation" in warning
    year = np.full((8, 1), 1995, np.float32)
    assert "year about 2e+03" in scale_warnings(year, ["year"])[0]


def test_many_are_counted():
    names = [f"x{i}" for i in range(9)]
    (warning,) = scale_warnings(columns(*[100] * 9), names)
    assert "x4 about" in warning
    assert "x5" not in warning
    assert "and 4 more" in warning
