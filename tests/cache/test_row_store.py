"""Rows in host memory and on disk are those that were last written."""

import numpy as np
import pytest

from embark_jax.cache.row_store import ROWS_AT_ONCE, RowStore

ROWS, VALUES = 5_000, 7


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_it_has_what_was_last_written(tier, tmp_path):
    rng = np.random.default_rng(0)
    store = RowStore(ROWS, VALUES, tier, tmp_path)
    expected = np.full((ROWS, VALUES), np.nan, np.float32)
    for count in (1, ROWS_AT_ONCE, 3 * ROWS_AT_ONCE + 5, 0, ROWS // 2):
        numbers = rng.permutation(ROWS)[:count]
        rows = rng.standard_normal((count, VALUES), np.float32)
        store.write(numbers, rows)
        expected[numbers] = rows
    np.testing.assert_array_equal(store.written, ~np.isnan(expected[:, 0]))
    held = rng.permutation(np.flatnonzero(store.written))
    np.testing.assert_array_equal(store.read(held), expected[held])

    store.forget(held[:10])
    larger = RowStore(2 * ROWS, VALUES, tier, tmp_path)
    store.copy_to(larger)
    np.testing.assert_array_equal(np.flatnonzero(larger.written), np.sort(held[10:]))
    np.testing.assert_array_equal(larger.read(held[10:]), expected[held[10:]])
    assert not list(tmp_path.iterdir()), "a killed process would leave it"
