"""The key index against a Python dict."""

import functools

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.cache import directory, key_index
from embark_jax.cache.key_index import KeyIndex, Resolved
from embark_jax.embedding.keys import keys_of, words_of
from tests.compiled import check_index_in_place

BATCH = 16


def batch_of(keys):
    """``[BATCH, 2]`` uint32 of keys, and which of them are there."""
    padded = np.zeros(BATCH, np.int64)
    padded[: len(keys)] = keys
    return words_of(padded), np.arange(BATCH) < len(keys)


@functools.partial(jax.jit, static_argnames="evict")
def resolve(index, keys, present, evict="lru") -> Resolved:
    return key_index.resolve(index, keys, present, evict)


find, undo = jax.jit(key_index.find), jax.jit(key_index.undo)


def contents(index: KeyIndex) -> dict[int, int]:
    """Key to slot, as ``find`` says, of the keys that slots hold."""
    held = np.arange(index.slots) < int(index.taken[0])
    slots = np.asarray(find(index, index.slot_keys))
    keys = keys_of(np.asarray(index.slot_keys)[held]).tolist()
    assert (np.asarray(index.directory.slots) >= 0).sum() == len(keys)
    return dict(zip(keys, slots[held].tolist(), strict=True))


class Slots:
    """The oracle: a dict, and the least that leaves."""

    def __init__(self, slots):
        self.slots, self.key_of = slots, {}

    def follow(self, keys, resolved: Resolved):
        """Checks a step and makes its moves."""
        slot_of = {key: slot for slot, key in self.key_of.items()}
        count = int(resolved.demand.moves.count[0])
        moves = [np.asarray(each)[:count] for each in resolved.demand.moves[:3]]
        incoming, outgoing = (keys_of(each).tolist() for each in moves[1:])
        assert sorted(incoming) == sorted(set(keys) - set(slot_of))
        vacant = count - int(resolved.demand.moves.leaves.sum())
        if vacant < count:
            held = len(self.key_of) + vacant
            assert held == self.slots, "evicted before all were full"
        for i, (slot, leaves) in enumerate(zip(moves[0], outgoing, strict=True)):
            assert (int(slot) in self.key_of) == (i >= vacant)
            assert i < vacant or self.key_of[int(slot)] == leaves
            assert i < vacant or leaves not in keys
        for slot, comes in zip(moves[0], incoming, strict=True):
            self.key_of[int(slot)] = comes
        found = np.asarray(resolved.slot)
        assert [self.key_of[slot] for slot in found[: len(keys)]] == list(keys)
        assert (found[len(keys) :] == self.slots).all()
        assert {k: s for s, k in self.key_of.items()} == contents(resolved.index)


streams = st.lists(
    st.lists(st.integers(0, 60), min_size=0, max_size=BATCH),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(("slots", "evict"), [(16, "lru"), (16, "lfu")])
@hypothesis.given(streams)
@hypothesis.settings(max_examples=15)
def test_it_holds_what_a_dict_would(slots, evict, stream):
    index, oracle = key_index.empty_index(slots), Slots(slots)
    for keys in stream:
        # Half of them differ in the upper word alone.
        keys = [key if key % 2 else -2 - (key << 32) for key in keys]
        resolved = resolve(index, *batch_of(keys), evict)
        assert int(resolved.demand.counts.unplaced[0]) == 0
        oracle.follow(keys, resolved)
        undone, unplaced = undo(resolved.index, resolved.demand)
        assert int(unplaced[0]) == 0
        assert_alike(undone, index)
        index = resolved.index


def assert_alike(found: KeyIndex, expected: KeyIndex) -> None:
    """All keys, and what decides who leaves."""
    assert contents(found) == contents(expected)
    held = int(expected.taken[0])
    for name in ("used_at", "times_used", "batches", "taken", "hand"):
        each, wanted = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(each[:held], wanted[:held])


@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_the_least_recent_or_least_frequent_leave(evict):
    index = key_index.empty_index(16)
    for keys in (range(1, 17), [1, 2], [2, 1], range(3, 17), [17]):
        resolved = resolve(index, *batch_of(keys), evict)
        index = resolved.index
    # 1 and 2 were asked for longest ago, all others fewer times; 1 and 3 are in the
    # first of their slots.
    assert (
        keys_of(np.asarray(resolved.demand.moves.outgoing))[0]
        == {"lru": 1, "lfu": 3}[evict]
    )


def test_a_batch_that_needs_more_slots_changes_nothing():
    index = resolve(key_index.empty_index(10), *batch_of(range(9))).index
    refused = resolve(index, *batch_of(range(5, 16)))
    assert int(refused.demand.counts.needed[0]) == 11
    assert int(refused.demand.moves.count[0]) == 0
    undone, _ = undo(refused.index, refused.demand)
    assert_alike(undone, index)


def test_keys_without_room_find_it_in_a_larger_directory():
    index = key_index.empty_index(64, buckets=2)
    unplaced = 0
    for first in range(0, 64, BATCH):
        resolved = resolve(index, *batch_of(range(first, first + BATCH)))
        index = resolved.index
        unplaced += int(resolved.demand.counts.unplaced[0])
    assert unplaced == 64 - 2 * directory.WAYS
    larger, unplaced = key_index.rehash(index, 100, directory.default_buckets(100))
    assert int(unplaced[0]) == 0
    assert contents(larger) == {key: key for key in range(64)}
    after = resolve(larger, *batch_of(range(60, 76)))
    assert int(after.demand.moves.count[0]) == 12
    assert (np.asarray(after.demand.moves.slot)[:12] == range(64, 76)).all()


def test_all_slots_fill_before_anything_leaves():
    """Of 5,000 slots, asked for by the thousand; no key is without room."""
    slots, n = 5_000, 1_000
    index = key_index.empty_index(slots)
    keys = np.random.default_rng(0).permutation(2**40 - np.arange(6 * n) * 7919)
    step = jax.jit(key_index.resolve)
    for batch in words_of(keys).reshape(-1, n, 2):
        filled = int(index.taken[0])
        resolved = step(index, batch, np.ones(n, bool))
        leaving = int(resolved.demand.moves.leaves.sum())
        assert leaving == max(0, filled + n - slots)
        assert int(resolved.demand.counts.unplaced[0]) == 0
        index = resolved.index


def test_an_index_is_changed_in_place():
    check_index_in_place(jax.devices()[0])
