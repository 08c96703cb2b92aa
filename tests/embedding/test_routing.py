"""Integer routines against plain NumPy."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embark_jax.embedding import routing


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def unique_by_owner(owner, slot, devices, slots, capacity):
    return routing.unique_by_owner(owner, slot, devices, slots, capacity)


# Few sizes, each of which is compiled.
@hypothesis.given(
    hnp.arrays(np.int32, st.sampled_from([1, 7, 40]), elements=st.integers(0, 3 * 5)),
    st.sampled_from([1, 3, 8]),
)
@hypothesis.settings(max_examples=40)
def test_unique_buckets(key, capacity):
    """Keys 0..14 are slots 0..4 of owners 0..2; 15 is padding."""
    devices, slots, n = 3, 5, len(key)
    owner = np.where(key == 15, devices, key // slots).astype(np.int32)
    slot = np.where(key == 15, slots, key % slots).astype(np.int32)
    found = jax.tree.map(
        np.asarray,
        unique_by_owner(
            jnp.asarray(owner), jnp.asarray(slot), devices, slots, capacity
        ),
    )
    wanted = [np.unique(slot[owner == d]) for d in range(devices)]
    np.testing.assert_array_equal(found.count, list(map(len, wanted)))
    for d in range(devices):
        kept = wanted[d][:capacity]
        expected = np.full(capacity, slots)
        expected[: len(kept)] = kept
        np.testing.assert_array_equal(found.slot[d], expected)
        for place, of_slot in enumerate(kept):
            first = np.flatnonzero((owner == d) & (slot == of_slot))[0]
            assert found.entry[d, place] == first
    flat = np.append(found.slot.reshape(-1), -1)
    for entry in range(n):
        place = int(found.inverse[entry])
        lost = owner[entry] == devices or (
            slot[entry] not in wanted[owner[entry]][:capacity]
        )
        if lost:
            assert place == devices * capacity
        else:
            assert place // capacity == owner[entry]
            assert flat[place] == slot[entry]


def test_unique_of_more_than_2_to_31_slots():
    """Owner and slot together need 64 bits, as in a table of billions of rows."""
    owner = jnp.array([1, 0, 1, 2, 1], jnp.int32)
    slot = jnp.array([2**30, 5, 2**30, 0, 7], jnp.int32)
    found = routing.unique_by_owner(owner, slot, 2, 2**31 - 8, 3)
    empty = 2**31 - 8
    np.testing.assert_array_equal(found.slot, [[5, empty, empty], [7, 2**30, empty]])
    np.testing.assert_array_equal(found.inverse, [4, 0, 4, 6, 3])
