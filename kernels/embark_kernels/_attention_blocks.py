"""Attention in plain XLA, by blocks of events.

A block of queries meets the blocks of keys of its sample one after the other, from its
own back to the first. Blocks that meet about as many go together, and the lengths of
the samples decide how many these are: nothing is computed for longer ones.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

GROUPS = 16
"""Groups of blocks, if there are as many: with 8, 16 and 32 they meet 1.51, 1.39 and
1.33 times as many pairs of events as there are in 16 of DLRMv4's samples, and larger
groups take fewer kernels."""
MOST_SCORES = 2**25
"""Scores of a group at a time, at most, beyond which there are more groups: 64 MiB in
bfloat16."""
DECLARED = re.compile(r"about (\d+) turns")
UNSEEN = float(jnp.finfo(jnp.float32).min)
"""Score of a pair whose key the query does not see, which has no share."""
TINY = float(jnp.finfo(jnp.float32).tiny)
"""Sum of the shares of a block without events, by which zeros are divided."""


class Rule(NamedTuple):
    """What makes shares of scores.

    Attributes:
      weights: SiLU over a divisor, or softmax.
      divisor: that of SiLU.
      scale: factor of the scores.
    """

    weights: Literal["silu", "softmax"]
    divisor: int
    scale: float


def declared_turns(name: str) -> int:
    """Returns how often a loop runs on average, which says so in its name; else 1."""
    found = DECLARED.search(name)
    return int(found[1]) if found else 1


def attend_blocks(
    rule: Rule,
    expected_turns: int,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    turns: jax.Array,
) -> jax.Array:
    """Returns each place's sum of values, ``[blocks, heads, size, dim]``.

    Args:
      rule: what makes shares of scores.
      expected_turns: what ``turns`` is on average, which loops say in their names.
      query, key, value: ``[blocks, heads, size, dim]``; the dims of values may differ.
      bias: as in ``attention.attend``.
      turns: ``[blocks]`` int32 number of blocks that hold a sample up to this one,
        which follow each other; 0 of a block without events.
    """
    return _attend(rule, expected_turns, query, key, value, bias, turns)


def _attend_alone(*arguments) -> jax.Array:
    return _forward(*arguments)[0]


def _forward(rule, expected_turns, queries, keys, values, bias, turns):
    loop = partial(_loop, expected_turns, turns)

    def attend_group(results, group):
        query = _take(queries, group)

        def score_and_values(turn):
            at = _earlier(group, turn, turns)
            product = jnp.einsum("nhqd,nhkd->nhqk", query, _take(keys, at))
            return _score(rule, product, bias, turn, at < len(turns)), _take(values, at)

        def add_silu(turn, total):
            score, value = score_and_values(turn)
            return total + _sum("nhqk,nhkd->nhqd", _silu(rule, score), value)

        def add_softmax(turn, state):
            largest, whole, total = state
            score, value = score_and_values(turn)
            new = jnp.maximum(largest, score.max(axis=-1))
            share, factor = jnp.exp(score - new[..., None]), jnp.exp(largest - new)
            total *= factor[..., None]
            total += _sum("nhqk,nhkd->nhqd", share, value)
            return new, whole * factor + share.sum(axis=-1), total

        totals, log_wholes = results
        zeros = jnp.zeros((*query.shape[:3], values.shape[-1]), jnp.float32)
        if rule.weights == "silu":
            total = loop(group, add_silu, zeros)
        else:
            state = zeros[..., 0] + UNSEEN, zeros[..., 0] + TINY, zeros
            largest, whole, total = loop(group, add_softmax, state)
            total /= whole[..., None]
            log_wholes = _put(log_wholes, group, largest + jnp.log(whole))
        return (_put(totals, group, total), log_wholes), None

    results = jnp.zeros_like(values), jnp.zeros(values.shape[:3], jnp.float32)
    groups = groups_of(turns, queries.shape)
    (totals, log_wholes), _ = lax.scan(attend_group, results, groups)
    return totals, (queries, keys, values, bias, turns, totals, log_wholes)


def _backward(rule, expected_turns, kept, gradients):
    queries, keys, values, bias, turns, totals, log_wholes = kept
    loop, is_softmax = partial(_loop, expected_turns, turns), rule.weights == "softmax"

    def pull_group(state, group):
        query, gradient = _take(queries, group), _take(gradients, group)
        log_whole, common = None, jnp.float32(0)
        if is_softmax:
            log_whole = _take(log_wholes, group)
            # Shares add up to one: what all of them gain, each loses.
            common = gradient.astype(jnp.float32) * _take(totals, group)
            common = common.sum(axis=-1, keepdims=True)

        def pull(turn, state):
            query_gradient, key_gradients, value_gradients, bias_gradient = state
            at = _earlier(group, turn, turns)
            key, value = _take(keys, at), _take(values, at)
            share_of = partial(_share, rule, turn, at < len(turns), log_whole)
            product = jnp.einsum("nhqd,nhkd->nhqk", query, key)
            share, pull_share = jax.vjp(share_of, product, bias)
            share_gradient = jnp.einsum("nhqd,nhkd->nhqk", gradient, value)
            share_gradient = share_gradient.astype(jnp.float32) - common
            product_gradient, more = pull_share(share_gradient)
            query_gradient += _sum("nhqk,nhkd->nhqd", product_gradient, key)
            key_gradient = jnp.einsum("nhqk,nhqd->nhkd", product_gradient, query)
            share = share.astype(gradient.dtype)
            value_gradient = jnp.einsum("nhqk,nhqd->nhkd", share, gradient)
            return (
                query_gradient,
                _add(key_gradients, at, key_gradient),
                _add(value_gradients, at, value_gradient),
                jax.tree.map(jnp.add, bias_gradient, more),
            )

        query_gradients, *others = state
        start = jnp.zeros(query.shape, jnp.float32), *others
        query_gradient, *others = loop(group, pull, start)
        return (_put(query_gradients, group, query_gradient), *others), None

    zeros = (jnp.zeros(x.shape, jnp.float32) for x in (keys, values))
    state = jnp.zeros_like(queries), *zeros, jax.tree.map(jnp.zeros_like, bias)
    groups = groups_of(turns, queries.shape)
    (of_queries, of_keys, of_values, of_bias), _ = lax.scan(pull_group, state, groups)
    of_keys, of_values = of_keys.astype(keys.dtype), of_values.astype(values.dtype)
    return of_queries, of_keys, of_values, of_bias, None


_attend = jax.custom_vjp(_attend_alone, nondiff_argnums=(0, 1))
_attend.defvjp(_forward, _backward)


def groups_of(turns: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns ``[groups, blocks]`` int32 blocks that go together, which meet about as
    many others; their number for none.

    Args:
      turns: as in ``attend_blocks``.
      shape: that of queries.
    """
    count, heads, size, _ = shape
    groups = max(GROUPS, -(-count * heads * size**2 // MOST_SCORES))
    together = -(-count // groups)
    order = jnp.argsort(turns, descending=True).astype(jnp.int32)
    missing = -count % together
    return jnp.pad(order, (0, missing), constant_values=count).reshape(-1, together)


def _loop(expected_turns: int, turns: jax.Array, group: jax.Array, body, state):
    """Goes through the blocks of keys that a group meets."""
    with jax.named_scope(f"about {expected_turns} turns"):
        return lax.fori_loop(0, turns[group[0]], body, state)


def _earlier(group: jax.Array, turn: jax.Array, turns: jax.Array) -> jax.Array:
    """Returns the blocks of keys that a group meets; their number for none."""
    meets = turn < turns.at[group].get(mode="fill", fill_value=0)
    return jnp.where(meets, group - turn, len(turns))


def _take(blocks: jax.Array, index: jax.Array) -> jax.Array:
    return blocks.at[index].get(mode="fill", fill_value=0)


def _put(blocks: jax.Array, index: jax.Array, some: jax.Array) -> jax.Array:
    return blocks.at[index].set(some.astype(blocks.dtype), mode="drop")


def _add(blocks: jax.Array, index: jax.Array, some: jax.Array) -> jax.Array:
    """Adds to blocks, none of which comes twice."""
    return blocks.at[index].add(some, mode="drop", unique_indices=True)


def _score(
    rule: Rule,
    product: jax.Array,
    bias: jax.Array | None,
    turn: jax.Array,
    meets: jax.Array,
) -> jax.Array:
    """Returns the scores of pairs, ``[blocks, heads, queries, keys]``.

    Args:
      rule: as in ``attend_blocks``.
      product: products of queries and keys.
      bias: as in ``attend_blocks``.
      turn: number of blocks between them.
      meets: ``[blocks]`` bool, whether they are of one sample.
    """
    size = product.shape[-1]
    score = product.astype(jnp.float32) * rule.scale
    if bias is not None:
        score += bias_of_pairs(bias, turn * size, size, size)[None, None]
    place = jnp.arange(size)
    seen = (turn > 0) | (place[:, None] >= place[None])
    seen = seen[None, None] & meets[:, None, None, None]
    return jnp.where(seen, score, UNSEEN)


def _share(rule, turn, meets, log_whole, product, bias) -> jax.Array:
    """Returns the shares of pairs, of softmax by the sums of all."""
    score = _score(rule, product, bias, turn, meets)
    if rule.weights == "silu":
        return _silu(rule, score)
    return jnp.exp(score - log_whole[..., None])


def _silu(rule: Rule, score: jax.Array) -> jax.Array:
    return jax.nn.silu(score) / rule.divisor


def _sum(axes: str, share: jax.Array, x: jax.Array) -> jax.Array:
    share = share.astype(x.dtype)
    return jnp.einsum(axes, share, x, preferred_element_type=jnp.float32)


def bias_of_pairs(
    bias: jax.Array, first: jax.typing.ArrayLike, queries: int, keys: int
) -> jax.Array:
    """Returns ``[queries, keys]`` bias by the distance of two places, of queries from
    place ``first`` on. It is made of slices, whose gradient is a sum of rows; that of
    an index would be added pair by pair, on GPUs in any order."""
    distances = queries + keys - 1
    padded = jnp.pad(bias, (keys, distances), mode="edge")
    of_pairs = lax.dynamic_slice_in_dim(padded, first + 1, distances)
    # Rows are read one value shorter than they are, so that each begins one earlier.
    rows = jnp.broadcast_to(jnp.pad(of_pairs, (0, 1)), (keys, distances + 1))
    rows = lax.slice_in_dim(rows.reshape(-1), keys - 1, keys - 1 + keys * distances)
    return rows.reshape(keys, distances)[:, :queries].T
