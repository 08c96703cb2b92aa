"""The key index of a device's block says in which slot the row of a key lies.

A *directory* of buckets leads from keys to slots. A key has two buckets, by two hashes,
and lies in one of their ways, so that ``find`` gathers two buckets and compares. The
directory has twice as many ways as there are slots; a key goes to the emptier of its
buckets, and so finds room unless it is very unlucky: then ``rehash`` enlarges the
directory.

Slots are given out in order until all are filled. From then on, if rows may leave, each
new key takes the slot of a *victim*: among the next slots around the ring, one with the
lowest score, but none that the batch asks for. All work is sorting, without atomics:
equal inputs give equal indexes.

Keys are one or two 32-bit words, of any value. All functions are pure, and local to a
device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import sort_positions
from jax import lax

from embark_jax.embedding.keys import hash_words
from embark_jax.plans.options import Evict

WAYS = 8
CHOICES = 2
WAYS_PER_SLOT = 2
NO_SLOT = -1
"""Slot of a way that holds no key."""
WINDOW_PER_KEY = 2
"""Slots that are searched for victims, for each key that a batch may ask for."""


class KeyIndex(NamedTuple):
    """The keys of a block's slots, and the directory that finds them.

    Attributes:
      way_keys: ``[buckets, WAYS, words]`` uint32 key of each way.
      way_slots: ``[buckets, WAYS]`` int32 slot of each way; ``NO_SLOT`` of empty ones.
      slot_keys: ``[slots, words]`` uint32 key of each slot.
      used_at: ``[slots]`` int32 turn in which a slot's key was last asked for.
      times_used: ``[slots]`` int32 turns in which it was, since it came.
      turn: ``[1]`` int32 turn of the last batch.
      filled: ``[1]`` int32 slots that hold a key; they are the first ones, and what
        ``slot_keys`` says of others means nothing.
      hand: ``[1]`` int32 slot of the ring at which the search for victims begins.
    """

    way_keys: jax.Array
    way_slots: jax.Array
    slot_keys: jax.Array
    used_at: jax.Array
    times_used: jax.Array
    turn: jax.Array
    filled: jax.Array
    hand: jax.Array

    @property
    def slots(self) -> int:
        return self.slot_keys.shape[0]


class Moves(NamedTuple):
    """Rows that come into slots, and the rows that leave them.

    Attributes:
      slot: ``[n]`` int32 slots, each once; ``slots`` where nothing moves. Those where
        something moves come first.
      incoming: ``[n, words]`` uint32 keys of the rows that come.
      outgoing: ``[n, words]`` uint32 keys of the rows that leave.
      count: ``[1]`` int32 number of rows that come.
      vacant: ``[1]`` int32 number of those whose slots were empty: the first ones. For
        each of the others a row leaves.
    """

    slot: jax.Array
    incoming: jax.Array
    outgoing: jax.Array
    count: jax.Array
    vacant: jax.Array


class Resolved(NamedTuple):
    """The result of ``resolve``.

    Attributes:
      index: index with all keys that were asked for.
      slot: ``[n]`` int32 slot of each key; ``slots`` where there is none.
      moves: moves that bring the rows to where ``index`` says.
      needed: ``[1]`` int32 slots that the batch needs; where no row may leave, with
        those of all other keys. If there are fewer, nothing was done but to count the
        turn.
      missing: ``[1]`` int32 keys that had no slot.
      homeless: ``[1]`` int32 keys that have a slot, but found no room in the directory;
        ``rehash`` finds it for them.
    """

    index: KeyIndex
    slot: jax.Array
    moves: Moves
    needed: jax.Array
    missing: jax.Array
    homeless: jax.Array


def empty_index(slots: int, words: int, buckets: int | None = None) -> KeyIndex:
    """Returns an index without keys.

    Args:
      slots: number of slots of the block.
      words: number of words of a key.
      buckets: buckets of the directory; None takes twice as many ways as slots.
    """
    if buckets is None:
        buckets = default_buckets(slots)
    return KeyIndex(
        jnp.zeros((buckets, WAYS, words), jnp.uint32),
        jnp.full((buckets, WAYS), NO_SLOT),
        jnp.zeros((slots, words), jnp.uint32),
        jnp.zeros(slots, jnp.int32),
        jnp.zeros(slots, jnp.int32),
        *(jnp.zeros(1, jnp.int32) for _ in range(3)),
    )


def default_buckets(slots: int) -> int:
    """Returns the number of buckets of a directory for these slots."""
    return max(2, -(-WAYS_PER_SLOT * slots // WAYS))


def find(index: KeyIndex, keys: jax.Array) -> jax.Array:
    """Returns ``[n]`` int32 slots of ``[n, words]`` keys; ``slots`` for absent ones."""
    bucket, way, present = _locate(index, keys)
    return jnp.where(present, index.way_slots[bucket, way], index.slots)


def resolve(
    index: KeyIndex,
    keys: jax.Array,
    present: jax.Array,
    evict: Evict = "lru",
    may_evict: bool = True,
    again: jax.Array | bool = False,
) -> Resolved:
    """Finds the slots of a batch's keys, and gives slots to those that have none.

    Args:
      index: index before the batch.
      keys: ``[n, words]`` uint32 keys, each once.
      present: ``[n]`` bool: which keys count; the others mean nothing.
      evict: which rows leave first: those that were asked for longest ago, or the
        fewest times.
      may_evict: whether rows may leave; else the block needs a slot for every key.
      again: ``[]`` bool: whether the batch was here last, too, and is counted.
    """
    n, slots = keys.shape[0], index.slots
    turn = index.turn + jnp.where(again, 0, 1)
    slot = jnp.where(present, find(index, keys), slots)
    missing = present & (slot == slots)
    needed, misses = (flags.sum(dtype=jnp.int32)[None] for flags in (present, missing))
    if not may_evict:
        needed = index.filled + misses
    fits = needed <= slots
    count = jnp.where(fits, misses, 0)
    used_slot = jnp.where(fits, slot, slots)
    counted = index.used_at.at[used_slot].get(mode="clip") == turn
    used_at = index.used_at.at[used_slot].set(turn[0], mode="drop")
    times_used = index.times_used.at[used_slot].add(
        jnp.where(counted, 0, 1), mode="drop"
    )

    # The r-th missing key is key ``missing_key[r]``, and takes slot ``taken[r]``.
    index_in_batch = jnp.arange(n, dtype=jnp.int32)
    moves = index_in_batch < count
    rank = jnp.where(missing, jnp.cumsum(missing, dtype=jnp.int32) - 1, n)
    missing_key = jnp.zeros(n, jnp.int32).at[rank].set(index_in_batch, mode="drop")
    fresh = index.filled + index_in_batch
    taken, hand = fresh, index.hand
    if may_evict:
        score = used_at if evict == "lru" else times_used
        victims = _victims(index, score, used_at == turn, n)
        victim = victims.at[jnp.maximum(fresh - slots, 0)].get(mode="clip")
        taken = jnp.where(fresh < slots, fresh, victim)
        hand = jnp.where(index.filled + count > slots, hand + len(victims), hand)
    taken = jnp.where(moves, taken, slots)
    vacant = jnp.minimum(count, slots - index.filled)

    incoming = jnp.where(moves[:, None], keys[missing_key], 0)
    outgoing = index.slot_keys.at[taken].get(mode="clip")
    bucket, way, held = _locate(index, outgoing)
    held &= moves & (index_in_batch >= vacant)
    bucket = jnp.where(held, bucket, index.way_keys.shape[0])
    way_slots = index.way_slots.at[bucket, way].set(NO_SLOT, mode="drop")
    way_keys, way_slots, homeless = _insert(
        index.way_keys, way_slots, incoming, taken, moves
    )
    index = KeyIndex(
        way_keys,
        way_slots,
        index.slot_keys.at[taken].set(incoming, mode="drop"),
        used_at.at[taken].set(turn[0], mode="drop"),
        times_used.at[taken].set(1, mode="drop"),
        turn,
        jnp.minimum(index.filled + count, slots),
        hand % slots,
    )
    slot = slot.at[jnp.where(moves, missing_key, n)].set(taken, mode="drop")
    move = Moves(taken, incoming, outgoing, count, vacant)
    return Resolved(index, slot, move, needed, misses, homeless)


def rehash(index: KeyIndex, slots: int, buckets: int) -> tuple[KeyIndex, jax.Array]:
    """Makes a new directory; keys keep their slots, of which there may be more.

    Returns:
      The index, and the ``[1]`` int32 number of keys that found no room in it.
    """
    larger = empty_index(slots, index.slot_keys.shape[1], buckets)
    slot_keys = larger.slot_keys.at[: index.slots].set(index.slot_keys)
    slot = jnp.arange(slots, dtype=jnp.int32)
    way_keys, way_slots, homeless = _insert(
        larger.way_keys, larger.way_slots, slot_keys, slot, slot < index.filled
    )
    return index._replace(
        way_keys=way_keys,
        way_slots=way_slots,
        slot_keys=slot_keys,
        used_at=larger.used_at.at[: index.slots].set(index.used_at),
        times_used=larger.times_used.at[: index.slots].set(index.times_used),
    ), homeless


def _victims(index: KeyIndex, score: jax.Array, in_use: jax.Array, n: int) -> jax.Array:
    """Returns slots of the next range of the ring, those that may leave first in front.

    The range has enough of them for any batch of n keys that the slots can hold: at
    most n of its slots are asked for, or about to be taken.
    """
    slots = index.slots
    offset = jnp.arange(min(slots, WINDOW_PER_KEY * n), dtype=jnp.int32)
    slot = (index.hand + offset) % slots
    stays = in_use[slot] | (slot >= index.filled)
    last = jnp.uint32(2**31)
    score = jnp.where(stays, last, score[slot].astype(jnp.uint32))
    _, order = sort_positions(score, 2**31 + 1)
    return slot[order]


def _insert(
    way_keys: jax.Array,
    way_slots: jax.Array,
    keys: jax.Array,
    slot: jax.Array,
    wanted: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Puts new keys into the directory, each into the emptier of its buckets; those
    that come too late there go into what is left in the next round.

    Returns:
      The directory, and the ``[1]`` int32 number of keys that found no room.
    """
    buckets, choices = way_keys.shape[0], _buckets(keys, way_keys.shape[0])

    def insert_some(carried):
        way_keys, way_slots, left, _ = carried
        free = way_slots[choices] == NO_SLOT  # [n, CHOICES, WAYS]
        choice = jnp.argmax(free.sum(axis=-1), axis=1)[:, None]
        bucket = jnp.take_along_axis(choices, choice, axis=1)[:, 0]
        free = jnp.take_along_axis(free, choice[:, :, None], axis=1)[:, 0]
        rank = _rank_in_bucket(jnp.where(left, bucket, buckets), buckets)
        # The r-th key of a bucket takes its r-th free way.
        way_of_key = free & (jnp.cumsum(free, axis=1) - 1 == rank[:, None])
        placed = left & way_of_key.any(axis=1)
        bucket, way = jnp.where(placed, bucket, buckets), jnp.argmax(way_of_key, axis=1)
        way_keys = way_keys.at[bucket, way].set(keys, mode="drop")
        way_slots = way_slots.at[bucket, way].set(slot, mode="drop")
        return way_keys, way_slots, left & ~placed, placed.any()

    carried = way_keys, way_slots, wanted, jnp.array(True)
    way_keys, way_slots, left, _ = lax.while_loop(
        lambda carried: carried[2].any() & carried[3], insert_some, carried
    )
    return way_keys, way_slots, left.sum(dtype=jnp.int32)[None]


def _rank_in_bucket(bucket: jax.Array, buckets: int) -> jax.Array:
    """Returns ``[n]``: how many before each element have its bucket."""
    sorted_bucket, order = sort_positions(bucket.astype(jnp.uint32), buckets + 1)
    index_in_order = jnp.arange(len(bucket), dtype=jnp.int32)
    is_first = jnp.concatenate(
        [jnp.ones(1, bool), sorted_bucket[1:] != sorted_bucket[:-1]]
    )
    rank = index_in_order - lax.cummax(jnp.where(is_first, index_in_order, 0))
    return jnp.zeros_like(rank).at[order].set(rank, unique_indices=True)


def _locate(index: KeyIndex, keys: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns ``(bucket, way, whether it is there)`` of keys."""
    choices = _buckets(keys, index.way_keys.shape[0])
    equal = (index.way_keys[choices] == keys[:, None, None]).all(axis=-1)
    equal &= index.way_slots[choices] != NO_SLOT
    equal = equal.reshape(len(keys), -1)
    first = jnp.argmax(equal, axis=1)
    choice, way = jnp.divmod(first, WAYS)
    bucket = jnp.take_along_axis(choices, choice[:, None], axis=1)[:, 0]
    return bucket, way, equal.any(axis=1)


def _buckets(keys: jax.Array, buckets: int) -> jax.Array:
    """Returns the different buckets of each key, ``[n, CHOICES]`` int32."""
    first, step = (hash_words(keys, seed) for seed in (0x9E3779B9, 0x85EBCA6B))
    first = first % np.uint32(buckets)
    second = (first + 1 + step % np.uint32(buckets - 1)) % np.uint32(buckets)
    return jnp.stack([first, second], axis=1).astype(jnp.int32)
