"""Buckets by owner, of all ids and of unique ones, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import bucket_by_owner, unique_by_owner
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.examples import few_examples, lists_of
from tests.kernels.implementations import each_implementation, run

OWNERS, SLOTS = 3, 5


buckets_in_xla = functools.partial(jax.jit, static_argnums=(1, 2))(bucket_by_owner)


@few_examples
@given(lists_of(st.integers(0, 3)), st.sampled_from([1, 4, 12]))
def test_buckets_keep_the_order(owners, capacity):
    owner = np.array(owners, np.int32)
    actual = buckets_in_xla(owner, 3, capacity)
    positions = [np.flatnonzero(owner == device) for device in range(3)]
    assert int(actual.needed) == max(map(len, positions))
    for bucket, expected in zip(actual.source, positions, strict=True):
        kept = expected[:capacity]
        padding = [len(owner)] * (capacity - len(kept))
        np.testing.assert_array_equal(bucket, [*kept, *padding])


def test_buckets_in_an_order_of_their_own():
    """Beyond 32 bits, too: owner and minor make one key."""
    owner, minor = jnp.array([1, 0, 1, 2, 1]), jnp.array([7, 2, 3, 0, 3])
    for minors in (8, 2**31 - 1):
        actual = bucket_by_owner(owner, 2, 3, minor=minor, minors=minors)
        np.testing.assert_array_equal(actual.source, [[1, 5, 5], [2, 4, 0]])
        assert int(actual.needed) == 3


@functools.partial(jax.jit, static_argnums=2)
def unique_in_xla(owner, slot, capacity):
    return unique_by_owner(owner, slot, OWNERS, SLOTS, capacity)


def owners_and_slots(keys):
    """Keys 0..14 are slots 0..4 of owners 0..2; 15 is padding."""
    padded = keys == OWNERS * SLOTS
    return (
        np.where(padded, OWNERS, keys // SLOTS).astype(np.int32),
        np.where(padded, SLOTS, keys % SLOTS).astype(np.int32),
    )


def assert_unique(buckets, owner, slot, capacity):
    wanted = [np.unique(slot[owner == d]) for d in range(OWNERS)]
    np.testing.assert_array_equal(buckets.count, list(map(len, wanted)))
    for d in range(OWNERS):
        kept = wanted[d][:capacity]
        expected = np.full(capacity, SLOTS)
        expected[: len(kept)] = kept
        np.testing.assert_array_equal(buckets.slot[d], expected)
        first = [np.flatnonzero((owner == d) & (slot == s))[0] for s in kept]
        empty = [len(owner)] * (capacity - len(kept))
        np.testing.assert_array_equal(buckets.source[d], [*first, *empty])
    offset = {
        (d, s): d * capacity + i
        for d in range(OWNERS)
        for i, s in enumerate(wanted[d][:capacity])
    }
    expected = [
        offset.get(key, OWNERS * capacity) for key in zip(owner, slot, strict=True)
    ]
    np.testing.assert_array_equal(buckets.inverse, expected)
    order, offsets, _ = buckets.sorted_ids
    np.testing.assert_array_equal(offsets, buckets.inverse[order])


@few_examples
@given(lists_of(st.integers(0, OWNERS * SLOTS)), st.sampled_from([1, 3, 8]))
def test_buckets_have_each_row_once(keys, capacity):
    owner, slot = owners_and_slots(np.array(keys))
    buckets = jax.tree.map(np.asarray, unique_in_xla(owner, slot, capacity))
    assert_unique(buckets, owner, slot, capacity)


@each_implementation
def test_many_ids_are_made_unique(implementation):
    owner, slot = owners_and_slots(np.random.default_rng(0).integers(0, 16, 1100))

    def function(owner, slot):
        return unique_by_owner(
            owner, slot, OWNERS, SLOTS, 4, implementation=implementation
        )

    buckets = jax.tree.map(np.asarray, run(implementation, function, owner, slot))
    assert_unique(buckets, owner, slot, 4)


@each_implementation
def test_more_than_2_to_31_slots_are_made_unique(implementation):
    """Owner and slot together need 64 bits, as in a table of billions of rows."""
    owner = jnp.array([1, 0, 1, 2, 1], jnp.int32)
    slot = jnp.array([2**30, 5, 2**30, 0, 7], jnp.int32)

    def function(owner, slot):
        return unique_by_owner(
            owner, slot, 2, 2**31 - 8, 3, implementation=implementation
        )

    buckets = run(implementation, function, owner, slot)
    empty = 2**31 - 8
    np.testing.assert_array_equal(buckets.slot, [[5, empty, empty], [7, 2**30, empty]])
    np.testing.assert_array_equal(buckets.inverse, [4, 0, 4, 6, 3])
