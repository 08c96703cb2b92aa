"""Jagged sequences stand for padded ones, and are checked like them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embark_jax.data import Batch, BatchChecker, DataError, Jagged
from embark_jax.plans.tables import FeatureSpec

PADDED = np.array(
    [[-1, 7, 8, -1], [-1] * 4, [5, -1, 6, -1], [1, 2, 3, 4], [-1, -1, -1, 9]]
)
VALUES = [7, 8, 5, -1, 6, 1, 2, 3, 4, 9]
LONGEST = 4
FEATURES = [FeatureSpec("past", "t", LONGEST, "none", weighted=True), FeatureSpec("t")]


def test_padding_between_two_events_is_a_value():
    jagged = Jagged.of(PADDED, PADDED >= 0)
    np.testing.assert_array_equal(jagged.values, VALUES)
    np.testing.assert_array_equal(jagged.length, [2, 0, 3, 4, 1])
    np.testing.assert_array_equal(jagged.begin[jagged.length > 0], [1, 0, 0, 3])


@given(
    hnp.arrays(
        np.int64,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=5),
        elements=st.integers(-1, 3),
    ),
    st.integers(0, 5),
    st.integers(0, 7),
)
def test_arrays_come_back_padded(padded, start, stop):
    jagged = Jagged.of(padded, padded >= 0)
    np.testing.assert_array_equal(np.asarray(jagged), padded)
    assert (jagged.shape, jagged.dtype) == (padded.shape, padded.dtype)
    np.testing.assert_array_equal(jagged[start:stop], padded[start:stop])
    np.testing.assert_array_equal(jagged[::2], padded[::2])
    samples = np.asarray(jagged.samples(start, max(start, stop)))
    count = len(padded[start:stop])
    np.testing.assert_array_equal(samples[:count], padded[start:stop])
    assert (samples[count:] == -1).all()


def batch_of(ids, weights=None):
    if weights is None:
        weights = np.ones(np.shape(ids), np.float32)
    samples = len(ids)
    return Batch(
        np.zeros((samples, 0)),
        {"past": ids, "t": np.zeros((samples, 1), int)},
        np.zeros(samples),
        {"past": weights},
        "line {}".format,
    )


def checker(on_bad_id="error", rows=10):
    return BatchChecker(FEATURES, {"t": rows}, on_bad_id=on_bad_id)


@pytest.mark.parametrize("on_bad_id", ["drop", "hash"])
@pytest.mark.parametrize("packs_weights", [False, True])
def test_a_checked_batch_is_that_of_padded_arrays(on_bad_id, packs_weights):
    padded = np.where(PADDED == 6, 17, PADDED)
    weights = np.arange(20, dtype=np.float32).reshape(5, LONGEST)
    expected = checker(on_bad_id)(batch_of(padded, weights))
    jagged = Jagged.of(padded, padded != -1)
    if packs_weights:
        packed = jagged.pick(weights)
        weights = dataclasses.replace(jagged, values=packed, fill=0)
    check = checker(on_bad_id)
    checked = check(batch_of(jagged, weights))
    for kind in ("ids", "weights"):
        column = getattr(checked, kind)["past"]
        assert isinstance(column, Jagged)
        assert column.dtype.itemsize == 4
        np.testing.assert_array_equal(column, getattr(expected, kind)["past"])
    np.testing.assert_array_equal(checked.weights["past"][0], [0, 1, 2, 0])
    assert check.bad_ids == {"past": 1, "t": 0}


def jagged(values=(4, 5, 6), length=(1, 0, 2), **spans):
    spans = {name: np.array(counts) for name, counts in spans.items()}
    return Jagged(np.array(values), np.array(length), longest=LONGEST, **spans)


REFUSED = {
    "negative length": (jagged(length=(1, -1, 3)), r"line 1: ids.*length is -1, must"),
    "beyond the longest": (
        jagged(range(6), (1, 0, 5)),
        r"line 2: ids.*is 5, must be f",
    ),
    "negative begin": (jagged(begin=(0, 0, -1)), r"line 2: ids .*begin is -1, must be"),
    "ends too late": (jagged(begin=(0, 0, 3)), r"line 2: ids .*end is 5, must be from"),
    "too few values": (jagged((4, 5)), r"values are of shape \(2,\), must be of shape"),
    "floats": (jagged((4.0, 5, 6)), r"dtype is float64, must be an integer type"),
    "lengths of others": (jagged(length=(1, 2)), r"lengths .*must be .*shape \(3,\)"),
    "no whole lengths": (jagged(length=(1.0, 0, 2)), r"lengths are float64"),
    "no row": (
        jagged((4, 5, 10)),
        r"line 2: ids of feature 'past', column 1: value is",
    ),
    "below": (jagged((-2, 5, 6)), r"line 0: ids of feature 'past', column 0: value is"),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_bad_spans_and_ids_are_refused(problem):
    ids, message = REFUSED[problem]
    batch = batch_of(ids, np.ones((3, LONGEST), np.float32))
    batch = dataclasses.replace(
        batch, ids={"past": ids, "t": np.zeros((3, 1), int)}, labels=np.zeros(3)
    )
    batch = dataclasses.replace(batch, dense=np.zeros((3, 0)))
    with pytest.raises(DataError, match=message):
        checker()(batch)


def test_jagged_bags_are_arrays_and_weights_lie_as_their_ids():
    past = jagged()
    with pytest.raises(
        DataError, match="weights of feature 'past': lengths or begins are not"
    ):
        checker()(batch_of(past, jagged(length=(2, 0, 1))))
    pooled = [FeatureSpec("past", "t", LONGEST, "mean")]
    batch = dataclasses.replace(batch_of(past), ids={"past": past}, weights={})
    checked = BatchChecker(pooled, {"t": 100})(batch)
    np.testing.assert_array_equal(checked.ids["past"], np.asarray(past))
