"""Rows in host memory and on disk are those that were last written; numbers of keys,
beside a dictionary."""

import numpy as np
import pytest

from embark_jax.cache.row_log import ROWS_PER_READ
from embark_jax.cache.row_store import UNKNOWN, KeyedRows, KeyNumbers, make_store

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
    for count in (1, ROWS_PER_READ, 3 * ROWS_PER_READ + 5, 0, ROWS // 2):
        numbers = rng.permutation(ROWS)[:count]
        rows = rng.standard_normal((count, VALUES), np.float32)
        store.write(keys[numbers], rows)
        expected[numbers] = rows
    is_held = store.holds(keys)
    np.testing.assert_array_equal(is_held, ~np.isnan(expected[:, 0]))
    held = rng.permutation(np.flatnonzero(is_held))
    np.testing.assert_array_equal(store.read(keys[held]), expected[held])
    assert not list(tmp_path.iterdir()), "a killed process would leave it"


def test_keys_are_numbered_in_the_order_in_which_they_come():
    rng, numbers, known = np.random.default_rng(0), KeyNumbers(), {}
    for turn in range(40):
        keys = rng.integers(0, [50, 2**63 - 1][turn % 2], rng.integers(0, 300))
        keys = np.concatenate([keys, keys[::2]])
        found = numbers.find(keys)
        assert found.tolist() == [known.get(k, UNKNOWN) for k in keys.tolist()]
        expected = [known.setdefault(k, len(known)) for k in keys.tolist()]
        _, first = np.unique(keys, return_index=True)
        new = keys[np.sort(first)]
        numbers.add(new[numbers.find(new) == UNKNOWN])
        found = numbers.find(keys)
        assert found.dtype == np.int32
        assert found.tolist() == expected
    assert numbers.keys.tolist() == list(known)
    assert len(numbers) == len(known) > 1024  # so that it has grown
    again = KeyNumbers(numbers.keys)
    assert again.find(numbers.keys).tolist() == list(range(len(known)))
