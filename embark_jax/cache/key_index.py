"""The key index of a device's block says in which slot the row of a key lies.

Slots are given out in order until all are filled. From then on, if rows may leave, each
new key takes the slot of a *victim*: among the next slots around the ring, one with the
lowest score, but none that the batch asks for. All work is sorting, without atomics:
equal inputs give equal indexes.

Keys are one or two 32-bit words, of any value. All functions are pure, and local to a
device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import RowGroups, group_rows
from jax import lax

from embark_jax.cache.directory import (
    EMPTY,
    NO_SLOT,
    WAYS,
    default_buckets,
    insert,
    locate,
    most_of_few,
    replace,
)
from embark_jax.cache.leaving import ANY_ROW, SlotRules, find_victims
from embark_jax.embedding.keys import number_keys

NOWHERE = 2**31 - 1
"""Slot where nothing moves or changes: no block has as many, nor will."""


class KeyIndex(NamedTuple):
    """The keys of a block's slots, and the directory that finds them.

    Attributes:
      way_keys: ``[buckets, WAYS, words]`` uint32 key of each way; ``EMPTY`` of empty
        ones.
      way_slots: ``[buckets, WAYS]`` int32 slot of each way; ``NO_SLOT`` of empty ones.
      slot_keys: ``[slots, words]`` uint32 key of each slot.
      used_at: ``[slots]`` int32 turn in which a slot's key was last asked for.
      times_used: ``[slots]`` int32 turns in which it was.
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
      slot: ``[n]`` int32 slots, each once; ``NOWHERE`` where nothing moves. Those where
        something moves come first.
      incoming: ``[n, words]`` uint32 keys of the rows that come.
      outgoing: ``[n, words]`` uint32 keys of the rows that leave.
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
        ``NOWHERE`` elsewhere.
      used_at, times_used: ``[2 n]`` int32 what the index said of these slots.
      filled, hand: as in ``KeyIndex``.
    """

    slot: jax.Array
    used_at: jax.Array
    times_used: jax.Array
    filled: jax.Array
    hand: jax.Array


class Resolved(NamedTuple):
    """The result of ``resolve``.

    Attributes:
      index: index with all keys that were asked for.
      before: what it was before, for ``undo``.
      slot: ``[n]`` int32 slot of each key; ``slots`` where there is none.
      touched: the keys grouped by their slots.
      moves: moves that bring the rows to where ``index`` says.
      needed: ``[1]`` int32 slots that the batch needs; where no row may leave, with
        those of all other keys. If there are fewer, nothing was done but to count the
        turn.
      unique_keys: ``[1]`` int32 different keys that the batch asks for.
      missing: ``[1]`` int32 of them that had no slot.
      homeless: ``[1]`` int32 keys that have a slot, but found no room in the directory;
        ``rehash`` finds it for them.
    """

    index: KeyIndex
    before: Before
    slot: jax.Array
    touched: RowGroups
    moves: Moves
    needed: jax.Array
    unique_keys: jax.Array
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
        jnp.full((buckets, WAYS, words), EMPTY),
        jnp.full((buckets, WAYS), NO_SLOT, jnp.int32),
        jnp.zeros((slots, words), jnp.uint32),
        jnp.zeros(slots, jnp.int32),
        jnp.zeros(slots, jnp.int32),
        turn=jnp.zeros(1, jnp.int32),
        filled=jnp.zeros(1, jnp.int32),
        hand=jnp.zeros(1, jnp.int32),
    )


def find(index: KeyIndex, keys: jax.Array) -> jax.Array:
    """Returns ``[n]`` int32 slots of ``[n, words]`` keys; ``slots`` for absent ones."""
    bucket, way, present = locate(index.way_keys, index.way_slots, keys)
    return jnp.where(present, index.way_slots[bucket, way], index.slots)


def resolve(
    index: KeyIndex,
    keys: jax.Array,
    present: jax.Array,
    rules: SlotRules = ANY_ROW,
    group: Callable[[jax.Array, int], RowGroups] = group_rows,
) -> Resolved:
    """Finds the slots of a batch's keys, and gives slots to those that have none.

    Args:
      index: index before the batch.
      keys: ``[n, words]`` uint32 keys; one may occur several times.
      present: ``[n]`` bool: which keys count; the others mean nothing.
      rules: rules of the slots.
      group: groups ``[n]`` int32 numbers below a bound, as ``group_rows`` does.
    """
    slots, filled, hand = index.slots, index.filled, index.hand
    groups, keys = _group_keys(index, keys, present, group)
    n, row = len(keys), groups.row
    slot = jnp.where(row < slots, row, slots)
    present = row < slots + len(groups.group)
    missing = present & (row >= slots)
    unique_keys, misses = (f.sum(dtype=jnp.int32)[None] for f in (present, missing))
    needed = unique_keys if rules.may_evict else index.filled + misses
    fits = needed <= slots
    # All arrays are read before they are written, or else XLA copies them.
    used_slot = jnp.where(fits & (slot < slots), slot, NOWHERE)
    used_at, times_used = use_of(index, used_slot)
    used_slot = jnp.where(used_at < 0, NOWHERE, used_slot)  # never
    turn = index.turn + 1
    index = index._replace(
        used_at=index.used_at.at[used_slot].set(turn[0], mode="drop"),
        times_used=index.times_used.at[used_slot].set(times_used + 1, mode="drop"),
        turn=turn,
    )
    missing &= fits

    def move(carried):
        _, index, slot, *_ = carried
        return False, *_give_slots(index, keys, slot, missing, rules)

    none = jnp.zeros_like(keys)
    nowhere = jnp.full(n, NOWHERE, jnp.int32)
    moves = Moves(nowhere, none, none, misses * 0, jnp.zeros(n, bool))
    use = nowhere, nowhere
    # Many batches of a table whose rows all have slots move nothing. This is a loop of
    # one turn or none, since XLA copies all of the index for a conditional.
    moving = missing.any(), index, slot, moves, use, misses * 0
    _, index, slot, moves, use, homeless = lax.while_loop(
        lambda carried: carried[0], move, moving
    )
    unused = slots + jnp.arange(n, dtype=jnp.int32)
    moved_used_at, moved_times_used = use
    before = Before(
        jnp.concatenate([used_slot, moves.slot]),
        jnp.concatenate([used_at, moved_used_at]),
        jnp.concatenate([times_used, moved_times_used]),
        filled,
        hand,
    )
    return Resolved(
        index,
        before,
        slot.at[groups.group].get(mode="fill", fill_value=slots),
        groups.with_rows(jnp.where(present, slot, unused)),
        moves,
        needed,
        unique_keys,
        misses,
        homeless,
    )


def _group_keys(
    index: KeyIndex,
    keys: jax.Array,
    present: jax.Array,
    group: Callable[[jax.Array, int], RowGroups],
) -> tuple[RowGroups, jax.Array]:
    """Groups a batch's keys by their slots; those without one, by numbers from
    ``slots`` on. Returns the keys of the groups, too, ``[groups, words]``."""
    n, slots = len(keys), index.slots
    row = jnp.where(present, find(index, keys), slots + n)
    missing, few = row == slots, most_of_few(n)

    def numbered(room: int) -> Callable[[], jax.Array]:
        def number() -> jax.Array:
            rank = jnp.cumsum(missing, dtype=jnp.int32) - 1
            index = (
                jnp.full(room, n)
                .at[jnp.where(missing, rank, room)]
                .set(jnp.arange(n, dtype=jnp.int32), mode="drop")
            )
            numbers = number_keys(keys.at[index].get(mode="clip"), index < n)
            return row.at[index].set(slots + numbers, mode="drop")

        return number

    # Many batches of a table whose rows all have slots have none that is missing.
    row = lax.switch(
        jnp.where(missing.any(), jnp.where(missing.sum() > few, 2, 1), 0),
        (lambda: row, numbered(few), numbered(n)),
    )
    groups = group(row, slots + n)
    number = groups.group
    some_of_group = jnp.zeros(len(groups.row), jnp.int32)
    some_of_group = some_of_group.at[number].set(
        jnp.arange(n, dtype=jnp.int32), mode="drop"
    )
    return groups, keys[some_of_group]


def _give_slots(
    index: KeyIndex,
    keys: jax.Array,
    slot: jax.Array,
    missing: jax.Array,
    rules: SlotRules,
) -> tuple[KeyIndex, jax.Array, Moves, tuple[jax.Array, jax.Array], jax.Array]:
    """Gives slots to the keys of a batch that have none.

    Args:
      index: index that has counted the batch.
      keys, rules: as in ``resolve``.
      slot: ``[n]`` int32 slot of each key; ``slots`` where there is none.
      missing: ``[n]`` bool: which keys need a slot.

    Returns:
      The index, the slots, the moves, what ``use_of`` said of their slots, and the
      number of keys that found no room in the directory.
    """
    n, slots = len(keys), index.slots
    count = missing.sum(dtype=jnp.int32)[None]
    # The r-th key that moves is key ``moving_key[r]``, and takes slot ``taken[r]``.
    index_in_batch = jnp.arange(n, dtype=jnp.int32)
    moves = index_in_batch < count
    rank = jnp.where(missing, jnp.cumsum(missing, dtype=jnp.int32) - 1, n)
    moving_key = jnp.zeros(n, jnp.int32).at[rank].set(index_in_batch, mode="drop")
    fresh = index.filled + index_in_batch
    any_leaves = index.filled[0] + count[0] > slots
    victims, hand = find_victims(index, n, rules, any_leaves)
    victim = victims.at[jnp.maximum(fresh - slots, 0)].get(mode="clip")
    taken = jnp.where(fresh < slots, fresh, victim)
    taken = jnp.where(moves, taken, NOWHERE)
    leaves = moves & (fresh >= slots)

    incoming = jnp.where(moves[:, None], keys[moving_key], 0)
    outgoing = index.slot_keys.at[taken].get(mode="clip")
    way_keys, way_slots, homeless = replace(
        index.way_keys,
        index.way_slots,
        outgoing,
        leaves,
        incoming,
        moves,
        taken,
        count,
    )
    use = use_of(index, taken)
    # Never less than none: this makes all that is written depend on all that is read.
    never = (homeless < 0) & (use[0] < 0) & (use[1] < 0)
    taken = jnp.where(never & leaves, NOWHERE, taken)
    index = index._replace(
        way_keys=way_keys,
        way_slots=way_slots,
        slot_keys=index.slot_keys.at[taken].set(incoming, mode="drop"),
        used_at=index.used_at.at[taken].set(index.turn[0], mode="drop"),
        times_used=index.times_used.at[taken].set(1, mode="drop"),
        filled=jnp.minimum(index.filled + count, slots),
        hand=jnp.where(any_leaves, hand, index.hand),
    )
    slot = slot.at[jnp.where(moves, moving_key, n)].set(taken, mode="drop")
    return index, slot, Moves(taken, incoming, outgoing, count, leaves), use, homeless


def use_of(index: KeyIndex, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ``used_at`` and ``times_used`` of slots."""
    used_at = index.used_at.at[slot].get(mode="clip")
    return used_at, index.times_used.at[slot].get(mode="clip")


def undo(index: KeyIndex, moves: Moves, before: Before) -> tuple[KeyIndex, jax.Array]:
    """Takes back what ``resolve`` did for the last batch; since then the index may have
    got a larger directory, or more slots.

    Returns:
      The index, and the ``[1]`` int32 number of keys that found no room in its
      directory.
    """
    everything = jnp.ones(len(moves.slot), bool)
    way_keys, way_slots, homeless = replace(
        index.way_keys,
        index.way_slots,
        moves.incoming,
        everything,
        moves.outgoing,
        moves.leaves,
        moves.slot,
        moves.count,
    )
    slot, used_at, times_used, filled, hand = before
    return KeyIndex(
        way_keys,
        way_slots,
        index.slot_keys.at[moves.slot].set(moves.outgoing, mode="drop"),
        index.used_at.at[slot].set(used_at, mode="drop"),
        index.times_used.at[slot].set(times_used, mode="drop"),
        index.turn - 1,
        filled,
        hand,
    ), homeless


def rehash(index: KeyIndex, slots: int, buckets: int) -> tuple[KeyIndex, jax.Array]:
    """Makes a new directory; keys keep their slots, of which there may be more.

    Returns:
      The index, and the ``[1]`` int32 number of keys that found no room in it.
    """
    larger = empty_index(slots, index.slot_keys.shape[1], buckets)
    slot_keys = larger.slot_keys.at[: index.slots].set(index.slot_keys)
    slot = jnp.arange(slots, dtype=jnp.int32)
    way_keys, way_slots, homeless = insert(
        larger.way_keys, larger.way_slots, slot_keys, slot, slot < index.filled
    )
    return index._replace(
        way_keys=way_keys,
        way_slots=way_slots,
        slot_keys=slot_keys,
        used_at=larger.used_at.at[: index.slots].set(index.used_at),
        times_used=larger.times_used.at[: index.slots].set(index.times_used),
    ), homeless
