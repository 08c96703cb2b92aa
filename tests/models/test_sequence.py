"""Sequence layers: padding, blocks and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax.models import sequence
from embark_jax.models.sequence import SequenceEncoder, attend
from tests.thorough import thorough

LENGTH, DIM = 7, 8


def whole(query, key, value, position, valid, weights, bias):
    """Attention by one array of all scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    distance = position[:, :, None] - position[:, None, :]
    scores += bias[jnp.clip(distance, 0, len(bias) - 1)][:, None]
    seen = ((distance >= 0) & valid[:, None, :])[:, None]
    if weights == "silu":
        share = jnp.where(seen, nnx.silu(scores), 0) / query.shape[1]
    else:
        share = nnx.softmax(jnp.where(seen, scores, -1e30), axis=-1)
        share = jnp.where(seen.any(axis=-1, keepdims=True), share, 0)
    return jnp.einsum("bhqk,bkhd->bqhd", share, value)


@pytest.mark.parametrize("weights", ["silu", "softmax"])
@pytest.mark.parametrize("queries_at_once", thorough([1, 3, 8, 20], [3]))
def test_blocks_of_queries_are_exact(weights, queries_at_once, monkeypatch):
    monkeypatch.setattr(sequence, "QUERIES_AT_ONCE", queries_at_once)
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


@pytest.mark.parametrize("kind", thorough(["hstu", "sasrec"], ["hstu"]))
def test_whole_tiles_of_events_are_exact(kind, monkeypatch):
    """Eleven events go through layers as sixteen."""
    model = SequenceEncoder(
        kind,
        8,
        11,
        layers=2,
        heads=2,
        compute_dtype=jnp.float32,
        dropout=0.0,
        rngs=nnx.Rngs(0),
    )
    graph, params = nnx.split(model)
    events = jax.random.normal(jax.random.key(0), (2, 11, 8))
    valid = jnp.arange(11)[None] < jnp.array([[11], [4]])
    position = jnp.cumsum(valid, axis=1) - 1

    def results():
        def loss(params, events):
            seen = nnx.merge(graph, params)(events, position, valid)
            return jnp.sum(jnp.sin(seen)), seen

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, events)

    as_it_is = results()
    monkeypatch.setattr(sequence, "QUERIES_AT_ONCE", 4)
    padded = jax.make_jaxpr(lambda p: nnx.merge(graph, p)(events, position, valid))
    assert "f32[2,16,8]" in str(padded(params))
    for one, other in zip(*map(jax.tree.leaves, (results(), as_it_is)), strict=True):
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
