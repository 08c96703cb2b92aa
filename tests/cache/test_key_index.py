"""The key index against a Python dict."""

import functools

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.cache import directory, key_index
from embark_jax.cache.key_index import KeyIndex, Resolved
from embark_jax.cache.leaving import ANY_ROW, SlotRules

BATCH = 16


def words_of(keys, words):
    """``[BATCH, words]`` uint32 of integer keys, and which of them are there."""
    found = np.zeros((BATCH, words), np.uint32)
    for i, key in enumerate(keys):
        found[i] = [(key >> 32 * w) & 0xFFFFFFFF for w in range(words)]
    return found, np.arange(BATCH) < len(keys)


def numbers_of(keys):
    return [sum(int(word) << 32 * w for w, word in enumerate(key)) for key in keys]


@functools.partial(jax.jit, static_argnames="rules")
def resolve(index, keys, present, rules=ANY_ROW) -> Resolved:
    return key_index.resolve(index, keys, present, rules)


find, undo = jax.jit(key_index.find), jax.jit(key_index.undo)


def contents(index: KeyIndex) -> dict[int, int]:
    """Key to slot, as ``find`` says, of the keys that slots hold."""
    held = np.arange(index.slots) < int(index.filled[0])
    slots = np.asarray(find(index, index.slot_keys))
    keys = numbers_of(np.asarray(index.slot_keys)[held])
    assert (np.asarray(index.way_slots) >= 0).sum() == len(keys)
    return dict(zip(keys, slots[held].tolist(), strict=True))


class Slots:
    """The oracle: a dict, and the least that leaves."""

    def __init__(self, slots):
        self.slots, self.key_of = slots, {}

    def follow(self, keys, resolved: Resolved):
        """Checks a step and makes its moves."""
        slot_of = {key: slot for slot, key in self.key_of.items()}
        count = int(resolved.moves.count[0])
        moves = [np.asarray(each)[:count] for each in resolved.moves[:3]]
        incoming, outgoing = numbers_of(moves[1]), numbers_of(moves[2])
        assert sorted(incoming) == sorted(set(keys) - set(slot_of))
        vacant = count - int(resolved.moves.leaves.sum())
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


@pytest.mark.parametrize(("slots", "words", "evict"), [(16, 1, "lru"), (20, 2, "lfu")])
@hypothesis.given(streams)
@hypothesis.settings(max_examples=15)
def test_it_holds_what_a_dict_would(slots, words, evict, stream):
    index, oracle = key_index.empty_index(slots, words), Slots(slots)
    for keys in stream:
        # Keys of two words differ in the upper one alone; the last ones are all bits.
        keys = [2 ** (32 * words) - 1 - (key << 32 * (words - 1)) for key in keys]
        resolved = resolve(index, *words_of(keys, words), SlotRules(evict))
        assert int(resolved.homeless[0]) == 0
        oracle.follow(keys, resolved)
        undone, homeless = undo(resolved.index, resolved.moves, resolved.before)
        assert int(homeless[0]) == 0
        assert_alike(undone, index)
        index = resolved.index


def assert_alike(found: KeyIndex, expected: KeyIndex) -> None:
    """All keys, and what decides who leaves."""
    assert contents(found) == contents(expected)
    held = int(expected.filled[0])
    for name in ("used_at", "times_used", "turn", "filled", "hand"):
        each, wanted = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(each[:held], wanted[:held])


@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_who_leaves(evict):
    index = key_index.empty_index(4, 1)
    for keys in ([1, 2, 3, 4], [1, 2], [2, 1], [3], [4], [5]):
        resolved = resolve(index, *words_of(keys, 1), SlotRules(evict))
        index = resolved.index
    # 1 was asked for longest ago; 3 and 4 the fewest times, and 3 is in the first slot.
    assert numbers_of(resolved.moves.outgoing)[0] == {"lru": 1, "lfu": 3}[evict]


def test_a_batch_that_needs_more_slots_changes_nothing():
    index = resolve(key_index.empty_index(10, 1), *words_of(range(9), 1)).index
    refused = resolve(index, *words_of(range(5, 16), 1))
    assert int(refused.needed[0]) == 11
    assert int(refused.moves.count[0]) == 0
    undone, _ = undo(refused.index, refused.moves, refused.before)
    assert_alike(undone, index)


def test_keys_without_room_find_it_in_a_larger_directory():
    index = key_index.empty_index(64, 2, buckets=2)
    homeless = 0
    for first in range(0, 64, BATCH):
        resolved = resolve(index, *words_of(range(first, first + BATCH), 2))
        index, homeless = resolved.index, homeless + int(resolved.homeless[0])
    assert homeless == 64 - 2 * directory.WAYS
    larger, homeless = key_index.rehash(index, 100, directory.default_buckets(100))
    assert int(homeless[0]) == 0
    assert contents(larger) == {key: key for key in range(64)}
    after = resolve(larger, *words_of(range(60, 76), 2))
    assert int(after.moves.count[0]) == 12
    assert (np.asarray(after.moves.slot)[:12] == range(64, 76)).all()


def test_all_slots_fill_before_anything_leaves():
    """Of 5,000 slots, asked for by the thousand; no key is without room."""
    slots, n = 5_000, 1_000
    index = key_index.empty_index(slots, 1)
    keys = np.random.default_rng(0).permutation(2**31 - 1 - np.arange(6 * n) * 7919)
    step = jax.jit(key_index.resolve)
    for batch in keys.astype(np.uint32).reshape(-1, n, 1):
        filled = int(index.filled[0])
        resolved = step(index, batch, np.ones(n, bool))
        leaving = int(resolved.moves.leaves.sum())
        assert leaving == max(0, filled + n - slots)
        assert int(resolved.homeless[0]) == 0
        index = resolved.index


def test_an_index_is_changed_in_place():
    slots = 2**16
    index = key_index.empty_index(slots, 2)
    keys, present = np.zeros((BATCH, 2), np.uint32), np.ones(BATCH, bool)
    donating = jax.jit(key_index.resolve, donate_argnums=0)
    memory = donating.lower(index, keys, present).compile().memory_analysis()
    assert memory.temp_size_in_bytes < slots  # a quarter of its smallest array
