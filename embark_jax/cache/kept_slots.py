"""The slots of dynamic tables in a checkpoint: which rows had one, and their scores.

Where evicted rows are discarded, a run that resumes must evict what the run before
would have evicted. So a checkpoint has three more numbers beside each row's key: the
row's slot, counted around the ring of the key index from the slot at which it would
next search for victims, and the row's scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from embark_jax.cache.key_index import EMPTY, KeyIndex

SLOT_VALUES = ("slot", "used_at", "times_used")
"""Names beside the states of a dynamic table's rows in a checkpoint."""
NO_SLOT = -1


class Kept(NamedTuple):
    """The rows of a block that have a slot, from the first slot on.

    Attributes:
      numbers: ``[n]`` int32 numbers of the rows in the block.
      used_at, times_used: ``[n]`` int32 scores, as in ``KeyIndex``.
    """

    numbers: np.ndarray
    used_at: np.ndarray
    times_used: np.ndarray


NONE_KEPT = Kept(*(np.empty(0, np.int32) for _ in Kept._fields))


def saved_slots(index: KeyIndex | None, rows: int) -> dict[str, np.ndarray]:
    """Returns the values of ``SLOT_VALUES`` for the ``rows`` of a block, ``[rows, 1]``
    int32.

    Args:
      index: the block's index, in NumPy; None if no row has a slot.
      rows: number of rows.
    """
    saved = {name: np.full((rows, 1), NO_SLOT, np.int32) for name in SLOT_VALUES}
    if index is None:
        return saved
    filled = int(index.filled[0])
    values = {
        "slot": (np.arange(filled) - index.hand[0]) % max(filled, 1),
        "used_at": index.used_at[:filled],
        "times_used": index.times_used[:filled],
    }
    for name, slot_values in values.items():
        saved[name][index.slot_keys[:filled, 0], 0] = slot_values
    return saved


def kept(values: Mapping[str, np.ndarray], slots: int) -> Kept:
    """Returns what ``saved_slots`` gave for a block, or for rows of several: the first
    ones, if there are more than slots."""
    slot, *scores = (values[name][:, 0] for name in SLOT_VALUES)
    held = np.flatnonzero(slot >= 0)
    held = held[np.argsort(slot[held], kind="stable")][:slots]
    return Kept(held.astype(np.int32), *(score[held] for score in scores))


def index_of(kept: Kept, slots: int) -> dict[str, np.ndarray]:
    """Returns the fields of a block's ``KeyIndex`` in NumPy, but for the directory."""
    count = len(kept.numbers)

    def of_slots(values: np.ndarray, rest: int) -> np.ndarray:
        return np.pad(values, (0, slots - count), constant_values=rest)

    return {
        "slot_keys": of_slots(kept.numbers.astype(np.uint32), int(EMPTY))[:, None],
        "used_at": of_slots(kept.used_at, 0),
        "times_used": of_slots(kept.times_used, 0),
        "turn": np.full(1, kept.used_at.max(initial=0), np.int32),
        "filled": np.full(1, count, np.int32),
        "hand": np.zeros(1, np.int32),
    }
