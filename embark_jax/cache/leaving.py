"""Which rows leave their slots, to make room for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import sort_positions
from jax import lax

from embark_jax.plans.options import Evict

if TYPE_CHECKING:
    from embark_jax.cache.key_index import KeyIndex

WINDOW_PER_KEY = 2
"""Slots that are searched for victims, for each key that a batch may ask for."""


class SlotRules(NamedTuple):
    """The rules by which rows come into slots and leave them.

    Attributes:
      evict: which rows leave first: those that were asked for longest ago, or the
        fewest times.
      may_evict: whether any row may leave; else only guests and expired rows.
      admit_after: batches that ask for a key before it is admitted.
      expire_after: turns after which a row that is not asked for expires: it is among
        the first to leave; as a ``[]`` int32, where it is not the same in each turn.
      forgets: whether an expired row that is asked for begins anew.
    """

    evict: Evict = "lru"
    may_evict: bool = True
    admit_after: int = 1
    expire_after: int | jax.Array | None = None
    forgets: bool = False

    @property
    def reclaims(self) -> bool:
        """Whether there are rows that leave before others."""
        return self.admit_after > 1 or self.expire_after is not None


ANY_ROW = SlotRules()


def find_first_to_leave(
    index: KeyIndex, turn: jax.Array, rules: SlotRules
) -> tuple[jax.Array, jax.Array]:
    """Returns ``[slots]`` bool: which rows are expired; and those and guests'."""
    filled = jnp.arange(index.slots, dtype=jnp.int32) < index.filled
    expired = jnp.zeros(index.slots, bool)
    if rules.expire_after is not None:
        expired = filled & (turn - index.used_at > rules.expire_after)
    if rules.admit_after == 1:
        return expired, expired
    return expired, expired | filled & (index.times_used == 0)


def find_victims(
    index: KeyIndex,
    first_to_leave: jax.Array,
    n: int,
    rules: SlotRules,
    any_leaves: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns slots, those that may leave first in front, and the next hand.

    They come from the next range of the ring, which has enough of them for any batch of
    n keys that the slots can hold: at most n of its slots are asked for, or about to be
    taken. Where only guests and expired rows may leave, they come from all slots. If
    none leaves, they are any slots.
    """
    slots = index.slots
    if not (rules.may_evict or rules.reclaims):
        return jnp.full(1, slots, jnp.int32), index.hand
    if not rules.may_evict:
        slot = jnp.arange(slots, dtype=jnp.int32)
        rank = jnp.cumsum(first_to_leave, dtype=jnp.int32) - 1
        rank = jnp.where(first_to_leave, rank, slots)
        victims = jnp.full(min(n, slots), slots, jnp.int32)
        return victims.at[rank].set(slot, mode="drop"), index.hand
    offset = jnp.arange(min(slots, WINDOW_PER_KEY * n), dtype=jnp.int32)
    slot = (index.hand + offset) % slots
    used_at = index.used_at[slot]
    stays = (used_at == index.turn) | (slot >= index.filled)
    last = jnp.uint32(2**31)
    score = used_at if rules.evict == "lru" else index.times_used[slot]
    score = score.astype(jnp.uint32)
    if rules.reclaims:
        score = jnp.where(first_to_leave[slot], 0, score + 1)
    order = lax.cond(
        any_leaves,
        lambda: sort_positions(jnp.where(stays, last, score), 2**31 + 1)[1],
        lambda: offset,
    )
    return slot[order], (index.hand + len(offset)) % slots
