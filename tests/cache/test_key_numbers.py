"""Numbers of keys, beside a dictionary."""

import numpy as np

from embark_jax.cache.row_store import UNKNOWN, KeyNumbers


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
