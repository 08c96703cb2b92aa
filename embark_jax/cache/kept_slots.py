"""The slots of dynamic tables in a checkpoint: which rows had one, and their scores.

Where evicted rows are discarded, a run that resumes must evict what the run before
would have evicted. So a checkpoint has three more numbers beside each row's key: the
row's slot, counted around the ring of the key index from the slot at which it would
next search for victims, the turns since it was asked for, and in how many it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from embark_jax.cache.key_index import KeyIndex
from embark_jax.cache.key_numbers import UNKNOWN

KEY = "key"
SLOT = "slot"
SLOT_VALUES = (SLOT, "age", "times_used")
"""Names beside the states of a dynamic table's rows in a checkpoint."""
SIGHTS = "sights"
"""Name of the sketches of a table that does not admit keys at once; the last row of
each has the number of keys that were counted."""
NO_SLOT, NO_ROW = -1, -2
"""Values in place of a slot: of a row without one, and of room for a row."""


class Kept(NamedTuple):
    """The rows of a block that have a slot, from the first slot on.

    Attributes:
      keys: ``[n]`` int64 keys of the rows.
      age, times_used: ``[n]`` int32: turns since each was asked for, and turns in which
        it was, as in ``KeyIndex``.
    """

    keys: np.ndarray
    age: np.ndarray
    times_used: np.ndarray


def keys_of(words: np.ndarray) -> np.ndarray:
    """Returns ``[n]`` int64 keys of ``[n, 2]`` uint32 low and high words."""
    return np.ascontiguousarray(words, "<u4").view("<i8")[:, 0]


def saved_slots(
    index: KeyIndex, numbers: np.ndarray, rows: int, room: int
) -> dict[str, np.ndarray]:
    """Returns the values of ``SLOT_VALUES`` for the rows of a block, ``[room, 1]``
    int32.

    Args:
      index: the block's index, in NumPy.
      numbers: ``[filled]`` numbers of the rows in its slots; ``UNKNOWN`` of guests.
      rows, room: number of rows, and of what is saved.
    """
    saved = {name: np.full((room, 1), NO_ROW, np.int32) for name in SLOT_VALUES}
    filled = len(numbers)
    values = {
        SLOT: (np.arange(filled) - index.hand[0]) % max(filled, 1),
        "age": index.turn[0] - index.used_at[:filled],
        "times_used": index.times_used[:filled],
    }
    for name, slot_values in values.items():
        saved[name][:rows] = NO_SLOT
        stored = numbers != UNKNOWN
        saved[name][numbers[stored], 0] = slot_values[stored]
    return saved


def kept(keys: np.ndarray, values: Mapping[str, np.ndarray], limit: int) -> Kept:
    """Returns what ``saved_slots`` gave for ``[n]`` rows, of a block or of several: the
    first ones, if there are more than the limit."""
    slot = values[SLOT]
    held = np.flatnonzero(slot >= 0)
    held = held[np.argsort(slot[held], kind="stable")][:limit]
    return Kept(keys[held], *(values[name][held] for name in SLOT_VALUES[1:]))


def index_of(kept: Kept, slots: int) -> dict[str, np.ndarray]:
    """Returns the fields of a block's ``KeyIndex`` in NumPy, but for the directory."""
    count = len(kept.keys)
    words = np.zeros((slots, 2), np.uint32)
    words[:count] = np.ascontiguousarray(kept.keys, "<i8").view("<u4").reshape(-1, 2)
    turn = kept.age.max(initial=0)
    return {
        "slot_keys": words,
        "used_at": np.pad(turn - kept.age, (0, slots - count)),
        "times_used": np.pad(kept.times_used, (0, slots - count)),
        "turn": np.full(1, turn, np.int32),
        "filled": np.full(1, count, np.int32),
        "hand": np.zeros(1, np.int32),
    }
