"""Rows in host memory and on disk are those that were last written."""

import numpy as np
import pytest

from embark_jax.cache.row_log import ROWS_AT_ONCE
from embark_jax.cache.row_store import copy_rows, make_store

ROWS, VALUES = 5_000, 7


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_it_has_what_was_last_written(tier, tmp_path):
    rng = np.random.default_rng(0)
    store, everything = make_store(tier, ROWS, VALUES, tmp_path), np.arange(ROWS)
    expected = np.full((ROWS, VALUES), np.nan, np.float32)
    for count in (1, ROWS_AT_ONCE, 3 * ROWS_AT_ONCE + 5, 0, ROWS // 2):
        numbers = rng.permutation(ROWS)[:count]
        rows = rng.standard_normal((count, VALUES), np.float32)
        store.write(numbers, rows)
        expected[numbers] = rows
    is_held = store.holds(everything)
    np.testing.assert_array_equal(is_held, ~np.isnan(expected[:, 0]))
    held = rng.permutation(everything[is_held])
    np.testing.assert_array_equal(store.read(held), expected[held])

    larger = make_store(tier, 2 * ROWS, VALUES, tmp_path)
    copy_rows(store, larger)
    is_held = larger.holds(np.arange(2 * ROWS))
    np.testing.assert_array_equal(np.flatnonzero(is_held), np.sort(held))
    np.testing.assert_array_equal(larger.read(held), expected[held])
    assert not list(tmp_path.iterdir()), "a killed process would leave it"
