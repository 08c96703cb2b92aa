"""Batches are brought into one form, or refused."""

import dataclasses

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

from embark_jax.data import Batch, BatchChecker, DataError, feature_statistics
from embark_jax.data.layout import Layout
from embark_jax.plans.tables import DYNAMIC_KEYS, FeatureSpec

FEATURES = [
    FeatureSpec("user"),
    FeatureSpec("tags", table="tag", hotness=3, weighted=True),
    FeatureSpec("site"),
]
ROWS = {"user": 100, "tag": 10, "site": 5_000_000_000}


def good_batch(**changes):
    parts = {
        "dense": np.array([[0.5, -1.0], [2.0, 3.0]], np.float32),
        "ids": {
            "user": np.array([[7], [99]]),
            "tags": np.array([[1, 2, -1], [9, -1, -1]]),
            "site": np.array([[4_999_999_999], [0]]),
        },
        "labels": np.array([0.0, 1.0], np.float32),
        "weights": {"tags": np.array([[1.0, 2.0, 3.0], [0.5, 1.0, 1.0]], np.float32)},
        "locate": "clicks.tsv, line {}".format,
    }
    return Batch(**parts | changes)


def with_ids(name, values, dtype=np.int64):
    batch = good_batch()
    ids = dict(batch.ids) | {name: np.array(values, dtype)}
    return dataclasses.replace(batch, ids=ids)


def checker(on_bad_id="error"):
    return BatchChecker(FEATURES, ROWS, dense_features=2, on_bad_id=on_bad_id)


def test_a_good_batch_passes_in_its_final_form():
    batch = good_batch(dense=[[0.5, -1.0], [2.0, 3.0]], labels=np.array([0, 1]))
    check = checker()
    checked = check(batch)
    for name, dtype in (("user", np.int32), ("tags", np.int32), ("site", np.int64)):
        np.testing.assert_array_equal(checked.ids[name], batch.ids[name])
        assert checked.ids[name].dtype == dtype
    np.testing.assert_array_equal(checked.dense, batch.dense)
    np.testing.assert_array_equal(checked.labels, batch.labels)
    assert checked.dense.dtype == checked.labels.dtype == np.float32
    np.testing.assert_array_equal(checked.weights["tags"], [[1, 2, 0], [0.5, 0, 0]])
    assert checked.locate is batch.locate
    assert check.bad_ids == {"user": 0, "tags": 0, "site": 0}


def test_narrow_bags_are_padded_and_wide_padding_is_cut():
    weights = {"tags": np.ones((2, 2), np.float32)}
    batch = with_ids("tags", [[1, 2], [3, -1]])
    checked = checker()(dataclasses.replace(batch, weights=weights))
    np.testing.assert_array_equal(checked.ids["tags"], [[1, 2, -1], [3, -1, -1]])
    np.testing.assert_array_equal(checked.weights["tags"], [[1, 1, 0], [1, 0, 0]])

    weights = {"tags": np.ones((2, 5), np.float32)}
    batch = with_ids("tags", [[1, 2, 4, -1, -1], [3, -1, -1, -1, -1]])
    checked = checker()(dataclasses.replace(batch, weights=weights))
    np.testing.assert_array_equal(checked.ids["tags"], [[1, 2, 4], [3, -1, -1]])
    np.testing.assert_array_equal(checked.weights["tags"], [[1, 1, 1], [1, 0, 0]])


NAN_WEIGHT = np.array([[1, 1, 1], [np.nan, 1, 1]], np.float32)
MASKED = np.ma.array([[7], [99]], mask=[[False], [True]])
WEIGHTS = good_batch().weights["tags"]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            with_ids("user", [[7], [100]]),
            r"clicks.tsv, line 1: ids of feature 'user', column 0: value is 100, must "
            r'be from 0 to 99 .*, or -1 for padding; .* "drop" or "hash" \(1 such v',
        ),
        (
            with_ids("site", [[5 * 10**9], [0]]),
            "value is 5000000000, must be from 0 to",
        ),
        (with_ids("user", [[1], [2**64 - 1]], np.uint64), "18446744073709551615"),
        (with_ids("user", [[True], [True]], bool), "dtype is bool, must be an integer"),
        (
            good_batch(ids=good_batch().ids | {"user": MASKED}),
            "ids of feature 'user': is a masked array, must be whole: write -1",
        ),
        (
            with_ids("user", [[7, -1], [99, 5]]),
            "line 1: ids of feature 'user', column 1: value is 5, a bag has more ids "
            "than the declared hotness, 1",
        ),
        (good_batch(dense=np.array([[0, np.inf], [0, 1]])), "line 0: dense, column 1"),
        (
            good_batch(dense=np.array([[0, 0], [1e300, 1]])),
            "value is 1e\\+300, must be f",
        ),
        (good_batch(dense=np.array([["a", "b"]] * 2)), "dense: dtype is <U1"),
        (good_batch(labels=np.array([-1, 0.0])), "line 0: labels: value is -1.0, must"),
        (good_batch(weights={}), "weights of features tags: missing"),
        (
            good_batch(weights={"tags": WEIGHTS[:, :2]}),
            r"weights of .*shape is \(2, 2\)",
        ),
        (
            good_batch(weights={"tags": NAN_WEIGHT}),
            "line 1: weights of feature 'tags', column 0: value is nan",
        ),
        (
            good_batch(sample_weights=np.array([1.0, -2.0])),
            "line 1: sample weights: value is -2.0, must be 0 or more",
        ),
        (good_batch(sample_weights=np.ones(3)), r"sample weights: shape is \(3,\)"),
        (
            good_batch(ids={**good_batch().ids, "tags": [np.arange(2), np.arange(3)]}),
            "ids of feature 'tags': rows have different lengths, must have one",
        ),
        (good_batch(weights={"tags": [[1], [1, 2]]}), "'tags': rows have different"),
        (good_batch(dense=[[1.0], [1.0, 2.0]]), "dense: rows have different"),
        (good_batch(labels=[[1], [0, 1]]), "labels: rows have different"),
    ],
)
def test_a_bad_batch_is_refused_by_sample_value_and_rule(batch, message):
    """Beside the mistakes of ``tests/bad_input/cases.yaml``."""
    with pytest.raises(DataError, match=message):
        checker()(batch)


# Ids around every edge, in every integer type.
@st.composite
def bags(draw):
    dtype = draw(st.sampled_from([np.int8, np.int32, np.int64, np.uint8, np.uint64]))
    info = np.iinfo(dtype)
    rows = draw(st.sampled_from([1, 10, 200, 2**31 - 1, 2**31, 5_000_000_000]))
    edges = [-2, -1, 0, rows - 1, rows, info.min, info.max]
    edges = st.sampled_from([e for e in edges if info.min <= e <= info.max])
    elements = edges | st.integers(info.min, info.max)
    shape = draw(st.tuples(st.integers(0, 4), st.integers(0, 3)))
    return rows, draw(hnp.arrays(dtype, shape, elements=elements))


@hypothesis.given(bags(), st.sampled_from(["error", "drop", "hash"]))
def test_any_ids_end_in_range_or_are_refused(rows_and_ids, on_bad_id):
    rows, ids = rows_and_ids
    before = ids.copy()
    batch = Batch(np.zeros((len(ids), 1)), {"x": ids}, np.zeros(len(ids)))
    check = BatchChecker([FeatureSpec("x", hotness=3)], {"x": rows}, 1, on_bad_id)

    # The rule once more, an id at a time, in Python's unbounded integers.
    bags = [[int(id_) for id_ in bag] for bag in ids]
    good = [[-1 <= id_ < rows for id_ in bag] for bag in bags]
    bad = sum(not g for bag in good for g in bag)
    if bad and on_bad_id == "error":
        with pytest.raises(DataError, match=rf"\({bad} such values"):
            check(batch)
    else:
        checked = check(batch).ids["x"]
        assert checked.shape == (len(ids), 3)
        assert checked.dtype == (np.int32 if rows < 2**31 else np.int64)
        for bag, is_good, out in zip(bags, good, checked.tolist(), strict=True):
            assert out[len(bag) :] == [-1] * (3 - len(bag))
            for id_, ok, result in zip(bag, is_good, out, strict=False):
                if ok:
                    assert result == id_
                elif on_bad_id == "drop":
                    assert result == -1
                else:
                    assert 0 <= result < rows
        assert check.bad_ids == {"x": bad}
    np.testing.assert_array_equal(ids, before)


def test_dropped_ids_have_no_weight():
    checked = checker("drop")(with_ids("tags", [[1, 77, -1], [9, -1, -1]]))
    np.testing.assert_array_equal(checked.ids["tags"], [[1, -1, -1], [9, -1, -1]])
    np.testing.assert_array_equal(checked.weights["tags"], [[1, 0, 0], [0.5, 0, 0]])


def test_statistics_name_the_column_with_the_nan():
    dense = np.array([[1, np.nan], [3, np.inf]], np.float32)
    ids = {"user": np.array([[7, -1], [7, 9]]), "empty": np.full((2, 1), -1)}
    batch = Batch(dense, ids, np.array([0, 1], np.float32), {"user": np.ones((2, 2))})
    assert feature_statistics(batch) == [
        "labels: min 0, max 1, mean 0.5, 0 of 2 not finite",
        "dense[0]: min 1, max 3, mean 2, 0 of 2 not finite",
        "dense[1]: 2 of 2 not finite",
        "weights of user: min 1, max 1, mean 1, 0 of 4 not finite",
        "ids of user: min 7, max 9, 2 unique of 3, 1 padding",
        "ids of empty: 2 padding",
    ]


def stored(ids, checked_rows=None) -> Batch:
    layout = Layout(dense=1, ids=(("x", 1, False),))
    matrices = layout.padding(len(ids))
    matrices["ids"][:] = ids
    return Batch.of(layout, matrices, checked_rows=checked_rows)


def check_of(rows: int, on_bad_id="error") -> BatchChecker:
    return BatchChecker([FeatureSpec("x")], {"x": rows}, 1, on_bad_id)


def test_matrices_that_were_checked_before_are_taken_as_they_are():
    batch = stored([[5], [9]], {"x": 10})
    for rows in (10, 11):
        assert check_of(rows)(batch) is batch
    assert batch.matrices() is batch.stored


def test_matrices_are_checked_where_that_says_nothing():
    known = stored([[5], [9]], {"x": 10})
    fewer = check_of(6, "drop")
    assert fewer(known).ids["x"].tolist() == [[5], [-1]]
    assert fewer.bad_ids == {"x": 1}
    with pytest.raises(
        DataError, match="sample 1: ids of feature 'x', column 0: value"
    ):
        check_of(9)(stored([[5], [9]]))
    # A batch with other arrays is another one.
    other = dataclasses.replace(known, ids={"x": np.array([[5], [12]], np.int32)})
    with pytest.raises(DataError, match="value is 12"):
        check_of(10)(other)
    wide = BatchChecker([FeatureSpec("x", hotness=2)], {"x": 10}, 1)
    assert wide(known).ids["x"].tolist() == [[5, -1], [9, -1]]


def test_matrices_hold_what_the_arrays_do():
    checked = checker()(good_batch())
    again = Batch.of(*checked.matrices())
    for mine, other in (
        (again.dense, checked.dense),
        (again.labels, checked.labels),
        *((again.ids[name], checked.ids[name]) for name in checked.ids),
        (again.weights["tags"], checked.weights["tags"]),
    ):
        np.testing.assert_array_equal(mine, other)
        assert mine.dtype == other.dtype
    wrong = dataclasses.replace(checked, labels=checked.labels[:, None])
    with pytest.raises(ValueError, match=r"labels are float32 of shape \(2, 1\), must"):
        wrong.matrices()


def test_a_key_with_the_bits_of_padding_is_refused():
    """No key of a dynamic table is dropped as padding without a word."""
    check = BatchChecker([FeatureSpec("user")], {"user": DYNAMIC_KEYS}, 0)

    def batch(keys):
        zeros = np.zeros(len(keys), np.float32)
        return Batch(zeros[:, None][:, :0], {"user": keys[:, None]}, zeros)

    most = np.array([0, 2**63, 2**64 - 2], np.uint64)
    found = check(batch(most)).ids["user"][:, 0]
    np.testing.assert_array_equal(found, most.view(np.int64))
    with pytest.raises(DataError, match=r"sample 1.*18446744073709551615.*below 2\^64"):
        check(batch(np.array([3, 2**64 - 1], np.uint64)))
