"""Sorting, unique ids, groups of rows and buckets against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import (
    bucket_by_owner,
    group_rows,
    group_targets,
    grouping,
    sort_positions,
    unique,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.implementations import run_gpu_programs

NUM_IDS = 6


def lists_of(elements):
    """Of few lengths: each is compiled for."""
    lengths = st.sampled_from([1, 12])
    return lengths.flatmap(lambda n: st.lists(elements, min_size=n, max_size=n))


ids_lists = lists_of(st.integers(-2, NUM_IDS + 1))
few_examples = settings(max_examples=40)


@few_examples
@given(lists_of(st.integers(0, NUM_IDS - 1)), st.booleans())
def test_sort_is_stable(keys, gpu_programs):
    keys = np.array(keys, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        if gpu_programs:
            run_gpu_programs(patch)
        found, order = sort_positions(jnp.asarray(keys), NUM_IDS)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(found, np.sort(keys))


@pytest.mark.parametrize("gpu_programs", [False, True])
def test_sort_of_keys_beyond_32_bits(gpu_programs, monkeypatch):
    if gpu_programs:
        run_gpu_programs(monkeypatch)
    keys = np.array([3, 2**33, 0, 2**33 + 1, 3], np.uint64)
    with jax.enable_x64(True):
        found, order = sort_positions(jnp.asarray(keys), 2**34)
    np.testing.assert_array_equal(np.asarray(found), np.sort(keys))
    np.testing.assert_array_equal(order, [2, 0, 4, 1, 3])


def test_sort_refuses_what_does_not_fit_64_bits():
    with pytest.raises(ValueError, match="need 66 bits to sort"):
        sort_positions(jnp.zeros(5, jnp.int32), 2**63)


@few_examples
@given(ids_lists, st.sampled_from([1, 3, NUM_IDS + 2]))
def test_unique(ids, capacity):
    ids = np.array(ids, np.int32)
    valid = (ids >= 0) & (ids < NUM_IDS)
    expected, counts = np.unique(ids[valid], return_counts=True)
    kept = expected[:capacity]
    actual = unique(ids, NUM_IDS, capacity)
    assert int(actual.needed) == len(expected)
    padding = np.full(capacity - len(kept), NUM_IDS)
    np.testing.assert_array_equal(actual.ids, [*kept, *padding])
    np.testing.assert_array_equal(actual.counts, [*counts[:capacity], *(padding * 0)])
    place = {each: i for i, each in enumerate(kept)}
    np.testing.assert_array_equal(
        actual.inverse, [place.get(each, capacity) for each in ids]
    )


@pytest.mark.parametrize(
    ("capacity", "lost"), [(3, 0), (2, 1)], ids=["exactly full", "overfull"]
)
def test_unique_counts_what_does_not_fit(capacity, lost):
    actual = unique(jnp.array([5, 0, 3, 3, -1], jnp.int32), NUM_IDS, capacity)
    assert int(actual.needed) - capacity == lost
    assert int((actual.inverse == capacity).sum()) == 1 + lost


def test_unique_of_ids_that_need_64_bits_to_sort():
    ids = np.random.default_rng(0).integers(0, 2**31 - 2, 1000).astype(np.int32)
    actual = unique(ids, 2**31 - 1, 1000)
    expected, inverse = np.unique(ids, return_inverse=True)
    np.testing.assert_array_equal(actual.ids[: len(expected)], expected)
    np.testing.assert_array_equal(actual.inverse, inverse)


def held_by(groups, rows):
    """{row: entries} as the groups of each entry say."""
    assert len(np.unique(groups.row)) == len(groups.row)
    held = {}
    for entry, group in enumerate(np.asarray(groups.group)):
        if group < len(groups.row):
            held.setdefault(int(groups.row[group]), []).append(entry)
        else:
            assert group == len(groups.row)
    used = {int(row) for row in groups.row if row < NUM_IDS}
    assert used == {each for each in rows if 0 <= each < NUM_IDS}
    return held


def entries_of(rows):
    return {
        row: [i for i, each in enumerate(rows) if each == row]
        for row in {each for each in rows if 0 <= each < NUM_IDS}
    }


@few_examples
@given(rows=ids_lists, marked=st.booleans())
def test_groups_for_plain_xla(rows, marked):
    """By marks on rows, and by sorting where rows are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "MARKS_PER_ENTRY", NUM_IDS if marked else 0)
        groups = group_rows(np.array(rows, np.int32), NUM_IDS, implementation="xla")
    assert groups.runs is None
    assert held_by(groups, rows) == entries_of(rows)


@few_examples
@given(rows=ids_lists, dense=st.booleans())
def test_groups_for_the_kernel(rows, dense):
    make = group_targets if dense else group_rows
    groups = make(np.array(rows, np.int32), NUM_IDS, implementation="mosaic_gpu")
    if dense:
        np.testing.assert_array_equal(groups.row, np.arange(NUM_IDS))
        valid = [row if 0 <= row < NUM_IDS else NUM_IDS for row in rows]
        np.testing.assert_array_equal(groups.group, valid)
    else:
        assert held_by(groups, rows) == entries_of(rows)
    order, group = map(np.asarray, groups.runs)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(rows)))
    np.testing.assert_array_equal(group, np.asarray(groups.group)[order])
    assert (np.diff(group) >= 0).all()


@few_examples
@given(lists_of(st.integers(0, 3)), st.sampled_from([1, 4, 12]))
def test_buckets_keep_the_order(owners, capacity):
    owner = np.array(owners, np.int32)
    actual = bucket_by_owner(jnp.asarray(owner), 3, capacity)
    entries = [np.flatnonzero(owner == each) for each in range(3)]
    assert int(actual.needed) == max(map(len, entries))
    for bucket, expected in zip(actual.entry, entries, strict=True):
        kept = expected[:capacity]
        padding = [len(owner)] * (capacity - len(kept))
        np.testing.assert_array_equal(bucket, [*kept, *padding])


def test_buckets_in_an_order_of_their_own():
    """Beyond 32 bits, too: owner and minor make one key."""
    owner, minor = jnp.array([1, 0, 1, 2, 1]), jnp.array([7, 2, 3, 0, 3])
    for minors in (8, 2**31 - 1):
        actual = bucket_by_owner(owner, 2, 3, minor=minor, minors=minors)
        np.testing.assert_array_equal(actual.entry, [[1, 5, 5], [2, 4, 0]])
        assert int(actual.needed) == 3
