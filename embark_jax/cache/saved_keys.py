"""What a checkpoint has of the rows of a dynamic table beside their values.

Each row has its key. Where rows that leave are discarded, a run that resumes must
discard what the run before would have discarded: such a table is saved in the order of
the ring of its key index, from the slot on at which it would next search for victims,
and each row has the number by which victims are chosen. Other tables begin a run with
empty slots.
"""

from __future__ import annotations

import numpy as np

from embark_jax.plans.options import Evict

KEY = "key"
USED = "used"
"""Names of these numbers beside the states of the rows: ``used`` is the turn in which a
key was last asked for (LRU), or in how many turns it was (LFU); 0 if nothing is
discarded."""
NO_ROW = -1
"""``used`` where there is only room for a row."""
SCORES: dict[Evict, str] = {"lru": "used_at", "lfu": "times_used"}
"""Field of the key index that has the numbers by which rows leave."""


def keys_of(words: np.ndarray) -> np.ndarray:
    """Returns ``[n]`` int64 keys of ``[n, 2]`` uint32 low and high words."""
    return np.ascontiguousarray(words, "<u4").view("<i8")[:, 0]


def words_of(keys: np.ndarray) -> np.ndarray:
    """Returns ``[n, 2]`` uint32 low and high words of ``[n]`` int64 keys."""
    return np.ascontiguousarray(keys, "<i8").view("<u4").reshape(-1, 2)


def ring_order(filled: int, hand: int) -> np.ndarray:
    """Returns ``[filled]``: the slots of a block that have a row, from the one on at
    which the search for victims goes on."""
    return (hand + np.arange(filled)) % max(filled, 1)


def index_fields(
    keys: np.ndarray, used: np.ndarray, slots: int, evict: Evict
) -> dict[str, np.ndarray]:
    """Returns fields of a block's ``KeyIndex`` in NumPy, all but the directory, with
    ``[n]`` keys in the first slots."""
    count, room = len(keys), slots - len(keys)
    fields = dict.fromkeys(SCORES.values(), np.zeros(slots, np.int32))
    return fields | {
        "slot_keys": np.pad(words_of(keys), ((0, room), (0, 0))),
        SCORES[evict]: np.pad(used, (0, room)),
        "turn": np.full(1, used.max(initial=0), np.int32),
        "filled": np.full(1, count, np.int32),
        "hand": np.zeros(1, np.int32),
    }
