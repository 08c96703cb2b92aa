"""The key index of a device's block says in which slot the row of a key lies.

Slots are given out in order until all are taken. From then on, if rows may leave, each
new key takes the slot of a *victim*: among the next slots around the ring, one with the
lowest score, but none that the batch asks for. All work is sorting, without atomics:
equal inputs give equal indexes.

Keys are any 64 bits but -1, in two words. All functions are pure, and local to a
device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import RowGroups, group_rows, sort_positions
from jax import lax

from embark_jax.cache.directory import (
    Directory,
    default_buckets,
    empty_directory,
    insert,
    locate,
    most_of_few,
    replace,
)
from embark_jax.embedding.keys import WORDS, number_keys
from embark_jax.plans.options import Evict

A = TypeVar("A", bound=tuple)

NO_SLOT = 2**31 - 1
"""Slot where nothing moves or changes: beyond any block, so that writes drop it."""
WINDOW_PER_KEY = 2
"""Slots that are searched for victims, for each key that a batch may ask for."""


class KeyIndex(NamedTuple):
    """The keys of a block's slots, and the directory that finds them.

    Attributes:
      directory: leads from keys to slots.
      slot_keys: ``[slots, 2]`` uint32 key of each slot.
      used_at: ``[slots]`` int32 number of the batch that last asked for a slot's key.
      times_used: ``[slots]`` int32 batches that did.
      batches: ``[1]`` int32 number of batches so far.
      taken: ``[1]`` int32 slots that have a key; they are the first ones, and what
        ``slot_keys`` says of others means nothing.
      hand: ``[1]`` int32 slot of the ring at which the search for victims begins.
    """

    directory: Directory
    slot_keys: jax.Array
    used_at: jax.Array
    times_used: jax.Array
    batches: jax.Array
    taken: jax.Array
    hand: jax.Array

    @property
    def slots(self) -> int:
        return self.slot_keys.shape[0]


class Moves(NamedTuple):
    """Rows that come into slots, and the rows that leave them.

    Attributes:
      slot: ``[n]`` int32 slots, each once; ``NO_SLOT`` where nothing moves. Those where
        something moves come first.
      incoming: ``[n, 2]`` uint32 keys of the rows that come.
      outgoing: ``[n, 2]`` uint32 keys of the rows that leave.
      count: ``[1]`` int32 number of rows that come.
      leaves: ``[n]`` bool: whether a row leaves that slot.
    """

    slot: jax.Array
    incoming: jax.Array
    outgoing: jax.Array
    count: jax.Array
    leaves: jax.Array


class Before(NamedTuple):
    """What a batch has changed in an index, as it was before.

    Attributes:
      slot: ``[2 n]`` int32 slots of the keys that were asked for, each once;
        ``NO_SLOT`` elsewhere.
      used_at, times_used: ``[2 n]`` int32 what the index said of these slots.
      taken, hand: as in ``KeyIndex``.
    """

    slot: jax.Array
    used_at: jax.Array
    times_used: jax.Array
    taken: jax.Array
    hand: jax.Array


class Counts(NamedTuple):
    """What a batch asks for: ``[1]`` int32 of an index, or a storage's, in Python.

    Attributes:
      coming: rows that come into slots.
      needed: slots that the batch needs; where no row may leave, with those of all
        other keys. If there are fewer, the batch is only counted.
      unplaced: keys that have a slot, but found no way in the directory; ``rehash``
        finds it for them.
      asked: different keys that the batch asks for.
      missing: those of them that had no slot.
      taken: slots that have a key.
    """

    coming: Any
    needed: Any
    unplaced: Any
    asked: Any
    missing: Any
    taken: Any


class Demand(NamedTuple):
    """The demand of a batch on an index, or on one cached storage.

    Attributes:
      moves: moves that bring the rows to where the index says.
      before: what they change.
      counts: what the batch asks for; of a storage ``[6]`` int32 on the devices.
    """

    moves: Moves
    before: Before
    counts: Any

    def on_host(self) -> Counts:
        """Returns the counts of a storage; waits for them."""
        return Counts(*np.asarray(self.counts).tolist())


class Resolved(NamedTuple):
    """The result of ``resolve``.

    Attributes:
      index: index with all keys that were asked for.
      slot: ``[n]`` int32 slot of each key; ``slots`` where there is none.
      touched: the keys grouped by their slots.
      demand: the demand of the batch.
    """

    index: KeyIndex
    slot: jax.Array
    touched: RowGroups
    demand: Demand


def empty_index(slots: int, buckets: int | None = None) -> KeyIndex:
    """Returns an index without keys.

    Args:
      slots: number of slots of the block.
      buckets: buckets of the directory; None takes twice as many ways as slots.
    """
    nothing = jnp.zeros(1, jnp.int32)
    return KeyIndex(
        empty_directory(default_buckets(slots) if buckets is None else buckets),
        jnp.zeros((slots, WORDS), jnp.uint32),
        jnp.zeros(slots, jnp.int32),
        jnp.zeros(slots, jnp.int32),
        batches=nothing,
        taken=nothing,
        hand=nothing,
    )


def find(index: KeyIndex, keys: jax.Array) -> jax.Array:
    """Returns ``[n]`` int32 slots of ``[n, 2]`` keys; ``slots`` for absent ones."""
    bucket, way, present = locate(index.directory, keys)
    return jnp.where(present, index.directory.slots[bucket, way], index.slots)


def resolve(
    index: KeyIndex,
    keys: jax.Array,
    present: jax.Array,
    evict: Evict = "lru",
    may_evict: bool = True,
    group: Callable[[jax.Array, int], RowGroups] = group_rows,
) -> Resolved:
    """Finds the slots of a batch's keys, and gives slots to those that have none.

    Args:
      index: index before the batch.
      keys: ``[n, 2]`` uint32 keys; one may occur several times.
      present: ``[n]`` bool: which keys count; the others mean nothing.
      evict: which rows leave first: those that were asked for longest ago, or the
        fewest times.
      may_evict: whether rows may leave.
      group: groups ``[n]`` int32 numbers below a bound, as ``group_rows`` does.
    """
    slots, taken, hand = index.slots, index.taken, index.hand
    groups, keys = _group_keys(index, keys, present, group)
    n, row = len(keys), groups.row
    slot = jnp.where(row < slots, row, slots)
    present = row < slots + len(groups.group)
    missing = present & (row >= slots)
    asked, misses = (f.sum(dtype=jnp.int32)[None] for f in (present, missing))
    needed = asked if may_evict else taken + misses
    fits = needed <= slots
    used_slot = jnp.where(fits & (slot < slots), slot, NO_SLOT)
    used_at, times_used = _use_of(index, used_slot)
    used_slot = _after_reading(used_slot, used_at, times_used)
    batches = index.batches + 1
    index = index._replace(
        used_at=index.used_at.at[used_slot].set(batches[0], mode="drop"),
        times_used=index.times_used.at[used_slot].set(times_used + 1, mode="drop"),
        batches=batches,
    )
    missing &= fits
    none, no_slots = jnp.zeros_like(keys), jnp.full(n, NO_SLOT, jnp.int32)
    moves = Moves(no_slots, none, none, misses * 0, jnp.zeros(n, bool))
    # Many batches of a table whose rows all have slots move nothing.
    index, slot, moves, use, unplaced = _apply_if(
        missing.any(),
        lambda index, slot, *_: _give_slots(
            index, keys, slot, missing, evict, may_evict
        ),
        (index, slot, moves, (no_slots, no_slots), misses * 0),
    )
    before = Before(
        jnp.concatenate([used_slot, moves.slot]),
        jnp.concatenate([used_at, use[0]]),
        jnp.concatenate([times_used, use[1]]),
        taken,
        hand,
    )
    unused = slots + jnp.arange(n, dtype=jnp.int32)
    return Resolved(
        index,
        slot.at[groups.group].get(mode="fill", fill_value=slots),
        groups.with_rows(jnp.where(present, slot, unused)),
        Demand(
            moves,
            before,
            Counts(moves.count, needed, unplaced, asked, misses, index.taken),
        ),
    )


def _group_keys(
    index: KeyIndex,
    keys: jax.Array,
    present: jax.Array,
    group: Callable[[jax.Array, int], RowGroups],
) -> tuple[RowGroups, jax.Array]:
    """Groups a batch's keys by their slots; those without one, by numbers from
    ``slots`` on. Returns the keys of the groups, too, ``[groups, 2]``."""
    n, slots = len(keys), index.slots
    row = jnp.where(present, find(index, keys), slots + n)
    missing, few = row == slots, most_of_few(n)
    position = jnp.arange(n, dtype=jnp.int32)

    def numbered(room: int) -> Callable[[], jax.Array]:
        def number() -> jax.Array:
            rank = jnp.cumsum(missing, dtype=jnp.int32) - 1
            index = jnp.full(room, n)
            index = index.at[jnp.where(missing, rank, room)].set(position, mode="drop")
            numbers = number_keys(keys.at[index].get(mode="clip"), index < n)
            return row.at[index].set(slots + numbers, mode="drop")

        return number

    # Many batches of a table whose rows all have slots have none that is missing.
    row = lax.switch(
        jnp.where(missing.any(), jnp.where(missing.sum() > few, 2, 1), 0),
        (lambda: row, numbered(few), numbered(n)),
    )
    groups = group(row, slots + n)
    some_of_group = jnp.zeros(len(groups.row), jnp.int32)
    some_of_group = some_of_group.at[groups.group].set(position, mode="drop")
    return groups, keys[some_of_group]


def _give_slots(
    index: KeyIndex,
    keys: jax.Array,
    slot: jax.Array,
    missing: jax.Array,
    evict: Evict,
    may_evict: bool,
) -> tuple[KeyIndex, jax.Array, Moves, tuple[jax.Array, jax.Array], jax.Array]:
    """Gives slots to the keys of a batch that have none.

    Args:
      index: index that has counted the batch.
      keys, evict, may_evict: as in ``resolve``.
      slot: ``[n]`` int32 slot of each key; ``slots`` where there is none.
      missing: ``[n]`` bool: which keys need a slot.

    Returns:
      The index, the slots, the moves, what ``_use_of`` said of their slots, and the
      number of keys that found no way in the directory.
    """
    n, slots = len(keys), index.slots
    count = missing.sum(dtype=jnp.int32)[None]
    # The r-th key that moves is key ``moving_key[r]``, and gets slot ``given[r]``.
    position = jnp.arange(n, dtype=jnp.int32)
    moves = position < count
    rank = jnp.where(missing, jnp.cumsum(missing, dtype=jnp.int32) - 1, n)
    moving_key = jnp.zeros(n, jnp.int32).at[rank].set(position, mode="drop")
    fresh = index.taken + position
    any_leaves = index.taken[0] + count[0] > slots
    victims, hand = jnp.full(1, slots, jnp.int32), index.hand
    if may_evict:
        victims, hand = _find_victims(index, n, evict, any_leaves)
    victim = victims.at[jnp.maximum(fresh - slots, 0)].get(mode="clip")
    given = jnp.where(moves, jnp.where(fresh < slots, fresh, victim), NO_SLOT)
    leaves = moves & (fresh >= slots)

    incoming = jnp.where(moves[:, None], keys[moving_key], 0)
    outgoing = index.slot_keys.at[given].get(mode="clip")
    directory, unplaced = replace(
        index.directory, outgoing, leaves, incoming, moves, given, count
    )
    use = _use_of(index, given)
    written = _after_reading(given, *use, jnp.broadcast_to(unplaced, n))
    index = index._replace(
        directory=directory,
        slot_keys=index.slot_keys.at[written].set(incoming, mode="drop"),
        used_at=index.used_at.at[written].set(index.batches[0], mode="drop"),
        times_used=index.times_used.at[written].set(1, mode="drop"),
        taken=jnp.minimum(index.taken + count, slots),
        hand=jnp.where(any_leaves, hand, index.hand),
    )
    slot = slot.at[jnp.where(moves, moving_key, n)].set(given, mode="drop")
    return index, slot, Moves(given, incoming, outgoing, count, leaves), use, unplaced


def _find_victims(
    index: KeyIndex, n: int, evict: Evict, any_leaves: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns slots, those whose rows leave first in front, and the next hand.

    They come from the next range of the ring, which has enough of them for any batch of
    n keys that the slots can hold: at most n of its slots are asked for, or about to be
    taken. If none leaves, they are any slots.
    """
    slots = index.slots
    offset = jnp.arange(min(slots, WINDOW_PER_KEY * n), dtype=jnp.int32)
    slot = (index.hand + offset) % slots
    used_at = index.used_at[slot]
    stays = (used_at == index.batches) | (slot >= index.taken)
    last = jnp.uint32(2**31)
    score = used_at if evict == "lru" else index.times_used[slot]
    score = score.astype(jnp.uint32)
    order = lax.cond(
        any_leaves,
        lambda: sort_positions(jnp.where(stays, last, score), 2**31 + 1)[1],
        lambda: offset,
    )
    return slot[order], (index.hand + len(offset)) % slots


def _use_of(index: KeyIndex, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ``used_at`` and ``times_used`` of slots."""
    used_at = index.used_at.at[slot].get(mode="clip")
    times_used = index.times_used.at[slot].get(mode="clip")
    # Else XLA for GPUs would read them again where they are used, from a copy.
    return lax.optimization_barrier((used_at, times_used))


def _after_reading(slot: jax.Array, *counts: jax.Array) -> jax.Array:
    """Returns slots to write to, as they are, once counts were read from the arrays.

    XLA copies an array unless what is written depends on what is read before. It cannot
    know that no count is negative; an ``optimization_barrier`` it drops on CPU.
    """
    known = functools.reduce(jnp.minimum, counts) >= 0
    return jnp.where(known, slot, NO_SLOT)


def _apply_if(condition: jax.Array, function: Callable[..., A], arrays: A) -> A:
    """Returns ``function(*arrays)``, of the same shapes, if a condition holds, or else
    the arrays. It is a loop of one pass or none, which changes arrays in place: for
    ``lax.cond`` XLA copies them on GPUs."""
    _, arrays = lax.while_loop(
        lambda carried: carried[0],
        lambda carried: (jnp.array(False), function(*carried[1])),
        (condition, arrays),
    )
    return arrays


def undo(index: KeyIndex, demand: Demand) -> tuple[KeyIndex, jax.Array]:
    """Undoes what ``resolve`` did for the last batch, also if the directory or the
    slots have grown since.

    Returns:
      The index, and the ``[1]`` int32 number of keys that found no way in its
      directory.
    """
    moves = demand.moves
    directory, unplaced = replace(
        index.directory,
        moves.incoming,
        jnp.ones(len(moves.slot), bool),
        moves.outgoing,
        moves.leaves,
        moves.slot,
        moves.count,
    )
    slot, used_at, times_used, taken, hand = demand.before
    return KeyIndex(
        directory,
        index.slot_keys.at[moves.slot].set(moves.outgoing, mode="drop"),
        index.used_at.at[slot].set(used_at, mode="drop"),
        index.times_used.at[slot].set(times_used, mode="drop"),
        index.batches - 1,
        taken,
        hand,
    ), unplaced


def rehash(index: KeyIndex, slots: int, buckets: int) -> tuple[KeyIndex, jax.Array]:
    """Makes a new directory; keys keep their slots, of which there may be more.

    Returns:
      The index, and the ``[1]`` int32 number of keys that found no way in it.
    """
    more = slots - index.slots
    slot_keys = jnp.pad(index.slot_keys, ((0, more), (0, 0)))
    slot = jnp.arange(slots, dtype=jnp.int32)
    directory, unplaced = insert(
        empty_directory(buckets), slot_keys, slot, slot < index.taken
    )
    return index._replace(
        directory=directory,
        slot_keys=slot_keys,
        used_at=jnp.pad(index.used_at, (0, more)),
        times_used=jnp.pad(index.times_used, (0, more)),
    ), unplaced
