"""Rows in host memory and on disk are those that were last written."""

import numpy as np
import pytest

from embark_jax.cache.row_log import ROWS_AT_ONCE
from embark_jax.cache.row_store import KeyedRows, make_store

ROWS, VALUES = 5_000, 7


@pytest.mark.parametrize("any_keys", [False, True])
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_it_has_what_was_last_written(tier, any_keys, tmp_path):
    """By number, and by any keys, of which there are more than it begins with."""
    rng = np.random.default_rng(0)
    rows = 0 if any_keys else ROWS
    store = KeyedRows(lambda n: make_store(tier, n, VALUES, tmp_path), rows, any_keys)
    keys = np.arange(ROWS)
    if any_keys:
        keys = rng.permutation(keys * (2**40 + 1) - 2**50)
    expected = np.full((ROWS, VALUES), np.nan, np.float32)
    for count in (1, ROWS_AT_ONCE, 3 * ROWS_AT_ONCE + 5, 0, ROWS // 2):
        numbers = rng.permutation(ROWS)[:count]
        rows = rng.standard_normal((count, VALUES), np.float32)
        store.write(keys[numbers], rows)
        expected[numbers] = rows
    is_held = store.holds(keys)
    np.testing.assert_array_equal(is_held, ~np.isnan(expected[:, 0]))
    held = rng.permutation(np.flatnonzero(is_held))
    np.testing.assert_array_equal(store.read(keys[held]), expected[held])
    assert not list(tmp_path.iterdir()), "a killed process would leave it"
