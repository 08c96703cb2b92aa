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
      may_evict: whether rows may leave.
    """

    evict: Evict = "lru"
    may_evict: bool = True


ANY_ROW = SlotRules()


def find_victims(
    index: KeyIndex, n: int, rules: SlotRules, any_leaves: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns slots, those whose rows leave first in front, and the next hand.

    They come from the next range of the ring, which has enough of them for any batch of
    n keys that the slots can hold: at most n of its slots are asked for, or about to be
    taken. If none leaves, they are any slots.
    """
    slots = index.slots
    if not rules.may_evict:
        return jnp.full(1, slots, jnp.int32), index.hand
    offset = jnp.arange(min(slots, WINDOW_PER_KEY * n), dtype=jnp.int32)
    slot = (index.hand + offset) % slots
    used_at = index.used_at[slot]
    stays = (used_at == index.turn) | (slot >= index.filled)
    last = jnp.uint32(2**31)
    score = used_at if rules.evict == "lru" else index.times_used[slot]
    score = score.astype(jnp.uint32)
    order = lax.cond(
        any_leaves,
        lambda: sort_positions(jnp.where(stays, last, score), 2**31 + 1)[1],
        lambda: offset,
    )
    return slot[order], (index.hand + len(offset)) % slots
