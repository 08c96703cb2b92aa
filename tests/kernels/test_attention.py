"""Attention: blocks, memory, and packed samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import attention
from embark_kernels.attention import attend, attend_packed

from tests.thorough import thorough


def whole(query, key, value, position, valid, weights, bias):
    """Attention by one array of all scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    distance = position[:, :, None] - position[:, None, :]
    scores += bias[jnp.clip(distance, 0, len(bias) - 1)][:, None]
    seen = ((distance >= 0) & valid[:, None, :])[:, None]
    if weights == "silu":
        share = jnp.where(seen, jax.nn.silu(scores), 0) / query.shape[1]
    else:
        share = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
        share = jnp.where(seen.any(axis=-1, keepdims=True), share, 0)
    return jnp.einsum("bhqk,bkhd->bqhd", share, value)


@pytest.mark.parametrize("weights", ["silu", "softmax"])
@pytest.mark.parametrize("queries_at_once", thorough([1, 3, 8, 20], [3]))
def test_blocks_of_queries_are_exact(weights, queries_at_once, monkeypatch):
    monkeypatch.setattr(attention, "QUERIES_AT_ONCE", queries_at_once)
    keys = jax.random.split(jax.random.key(0), 4)
    shape = 2, 11, 2, 4
    query, key, value = (jax.random.normal(k, shape) for k in keys[:3])
    bias = jax.random.normal(keys[3], (6,))
    valid = jnp.arange(11)[None] < jnp.array([[11], [4]])
    position = jnp.cumsum(valid, axis=1) - 1

    def outputs(function):
        def loss(query, key, value, bias):
            summed = function(query, key, value, position, valid, weights, bias)
            summed = jnp.where(valid[:, :, None, None], summed, 0)
            return jnp.sum(jnp.sin(summed)), summed

        gradient = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)
        return jax.jit(gradient)(query, key, value, bias)

    results = outputs(attend), outputs(whole)
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("weights", ["silu", "softmax"])
def test_no_array_of_all_scores_is_in_memory(weights):
    batch, length, heads, dim = 2, 2048, 2, 16
    shapes = [jax.ShapeDtypeStruct((batch, length, heads, dim), jnp.float32)] * 3
    place = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    valid = jax.ShapeDtypeStruct((batch, length), bool)

    def gradient(query, key, value, position, valid):
        return jax.grad(
            lambda q, k, v: attend(q, k, v, position, valid, weights).sum(), (0, 1, 2)
        )(query, key, value)

    memory = jax.jit(gradient).lower(*shapes, place, valid).compile().memory_analysis()
    assert memory
    all_scores_bytes = 4 * batch * heads * length**2
    assert memory.temp_size_in_bytes < all_scores_bytes


@pytest.mark.parametrize("weights", ["silu", "softmax"])
def test_packed_samples_are_those_of_padded_ones(weights):
    """Empty samples, one of the largest length, and rows after the last event."""
    length = np.array([0, 3, 11, 0, 1, 5], np.int32)
    first = np.cumsum(length, dtype=np.int32) - length
    events, longest = 24, 11
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = [jax.random.normal(key, (events, 2, 4)) for key in keys[:3]]
    bias = jax.random.normal(keys[3], (6,))

    def packed(*arrays):
        places = jnp.asarray(first), jnp.asarray(length)
        return attend_packed(*arrays, *places, longest, weights, bias)

    def one_by_one(*arrays):
        total = jnp.zeros((events, 2, 4))
        for begin, count in zip(first, length, strict=True):
            part = [x[None, begin : begin + count] for x in arrays]
            place = jnp.arange(count)[None]
            seen = place >= 0
            own = whole(*part, place, seen, weights, bias)
            if weights == "silu":
                own = own * (max(int(count), 1) / longest)
            total = total.at[begin : begin + count].set(own[0])
        return total

    def results(function):
        def loss(*arrays):
            total = function(*arrays)
            return jnp.sum(jnp.sin(total)), total

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arrays)

    for one, other in zip(
        *map(jax.tree.leaves, (results(packed), results(one_by_one))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
