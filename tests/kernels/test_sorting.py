"""Sorting and numbering segments against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import begins_segment, number_segments, sort_positions
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.examples import few_examples, lists_of
from tests.kernels.implementations import each_implementation, run, run_gpu_programs

NUM_IDS = 6


@few_examples
@given(lists_of(st.integers(0, NUM_IDS - 1)), st.booleans())
def test_sort_is_stable(keys, gpu_programs):
    keys = np.array(keys, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        if gpu_programs:
            run_gpu_programs(patch)
        sorted_keys, order = sort_positions(jnp.asarray(keys), NUM_IDS)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(sorted_keys, np.sort(keys))


@pytest.mark.parametrize("gpu_programs", [False, True])
def test_keys_beyond_32_bits_are_sorted(gpu_programs, monkeypatch):
    if gpu_programs:
        run_gpu_programs(monkeypatch)
    keys = np.array([3, 2**33, 0, 2**33 + 1, 3], np.uint64)
    with jax.enable_x64(True):
        sorted_keys, order = sort_positions(jnp.asarray(keys), 2**34)
    np.testing.assert_array_equal(np.asarray(sorted_keys), np.sort(keys))
    np.testing.assert_array_equal(order, [2, 0, 4, 1, 3])


def test_sort_refuses_what_does_not_fit_64_bits():
    with pytest.raises(ValueError, match="need 66 bits to sort"):
        sort_positions(jnp.zeros(5, jnp.int32), 2**63)


@each_implementation
@pytest.mark.parametrize(
    ("segments", "longest", "capacity"),
    [(1, 1, 2), (600, 4, 1000), (600, 4, 300), (5, 2500, 8), (1500, 1, 1500)],
    ids=["one id", "several blocks", "overfull", "long ones", "no id twice"],
)
def test_segments_are_numbered(implementation, segments, longest, capacity):
    lengths = np.random.default_rng(0).integers(1, longest + 1, segments)
    keys = np.repeat(np.arange(segments) * 7, lengths).astype(np.uint32)

    def function(keys):
        first = begins_segment(keys)
        return number_segments(first, capacity, implementation=implementation)

    number, first = run(implementation, function, keys)
    np.testing.assert_array_equal(number, np.repeat(np.arange(segments), lengths))
    expected = (np.cumsum(lengths) - lengths)[:capacity]
    np.testing.assert_array_equal(first[: len(expected)], expected)


def test_nothing_has_no_segments():
    number, first = number_segments(begins_segment(jnp.zeros(0, jnp.int32)), 3)
    assert number.shape == (0,)
    assert first.shape == (3,)
