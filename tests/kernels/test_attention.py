"""Attention: blocks, memory, packed samples, and the kernel in the interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import (
    _attention_blocks,
    _attention_kernel,
    attention,
    oracle,
    why_plain_attention,
)
from embark_kernels.attention import Heads, attend, attend_packed
from embark_kernels.check import ATTENTION_LIMIT, largest_error

from embark_jax.models.kept_values import products
from tests.kernels.implementations import FLOAT32_EPS, run
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
    position = jnp.broadcast_to(jnp.arange(11)[None], valid.shape)

    def outputs(function, *places):
        def loss(query, key, value, bias):
            summed = function(query, key, value, *places, weights, bias)
            summed = jnp.where(valid[:, :, None, None], summed, 0)
            return jnp.sum(jnp.sin(summed)), summed

        gradient = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)
        return jax.jit(gradient)(query, key, value, bias)

    results = outputs(attend), outputs(whole, position, valid)
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("weights", ["silu", "softmax"])
def test_no_array_of_all_scores_is_in_memory(weights, is_packed):
    batch, length, heads, dim = 2, 2048, 2, 16
    shapes = [jax.ShapeDtypeStruct((batch, length, heads, dim), jnp.float32)] * 3
    lengths = jnp.full(batch, length)

    def attended(arrays):
        if not is_packed:
            return attend(*arrays, weights)
        arrays = (x.reshape(-1, heads, dim) for x in arrays)
        first = lengths.cumsum() - lengths
        return attend_packed(*arrays, first, lengths, length, weights)

    def gradient(*arrays):
        return jax.grad(lambda arrays: attended(arrays).sum())(arrays)

    memory = jax.jit(gradient).lower(*shapes).compile().memory_analysis()
    assert memory
    all_scores_bytes = 4 * batch * heads * length**2
    assert memory.temp_size_in_bytes < all_scores_bytes


@pytest.mark.parametrize("weights", ["silu", "softmax"])
@pytest.mark.parametrize("block", thorough([0, 1, 3, 4, 16], [0, 4]))
@pytest.mark.parametrize("groups", thorough([1, 3, 16], [3]))
def test_packed_samples_are_those_of_padded_ones(weights, block, groups, monkeypatch):
    """Empty samples, one of the largest length, and rows after the last event; as they
    are, or in blocks."""
    if block:
        sizes = {"BLOCKS_FROM": 1, "SMALLEST_BLOCK": block, "LARGEST_BLOCK": block}
        for name, size in sizes.items():
            monkeypatch.setattr(attention, name, size)
        monkeypatch.setattr(_attention_blocks, "GROUPS", groups)
    length = np.array([0, 3, 11, 0, 1, 5], np.int32)
    first = np.cumsum(length, dtype=np.int32) - length
    events, longest = 24, 11
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = [jax.random.normal(key, (events, 2, 4)) for key in keys[:3]]
    bias = jax.random.normal(keys[3], (6,))

    def packed(query, key, value, bias):
        places = jnp.asarray(first), jnp.asarray(length)
        arrays = query, key, value
        return attend_packed(*arrays, *places, longest, weights, bias)

    place = np.broadcast_to(np.arange(longest), (len(length), longest))
    valid = place < length[:, None]
    event = np.where(valid, first[:, None] + place, events)

    def padded(query, key, value, bias):
        arrays = (
            x.at[event].get(mode="fill", fill_value=0) for x in (query, key, value)
        )
        sums = whole(*arrays, place, valid, weights, bias)
        return jnp.zeros((events, 2, 4)).at[event].set(sums, mode="drop")

    def results(function):
        def loss(*arrays):
            total = function(*arrays)
            return jnp.sum(jnp.sin(total)), total

        gradient = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)
        return jax.jit(gradient)(*arrays, bias)

    found, expected = map(jax.tree.leaves, (results(packed), results(padded)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_loops_that_end_by_the_lengths_say_how_often_they_run():
    """In the traced program, whose products a planner prices, and in the compiled one,
    whose bytes are counted."""
    query = jax.ShapeDtypeStruct((1024, 2, 8), jnp.float32)
    spans = [jax.ShapeDtypeStruct((2,), jnp.int32)] * 2

    def attended(query, first, length):
        arrays = query, query, query
        return attend_packed(*arrays, first, length, 512, "silu", implementation="xla")

    # A sample has 512 events on average, and half a block of 64 more: a block meets
    # (8.5 + 1) / 2 of them. 17 blocks go in pairs, with two heads.
    turns, pairs = 5, 9
    batch = pairs * turns * 2 * 2
    assert products(attended, query, *spans) == [
        (batch, 64, 64, 8),
        (batch, 64, 8, 64),
    ]
    text = jax.jit(attended).lower(query, *spans).compile().as_text() or ""
    loops = [line for line in text.splitlines() if " while(" in line]
    assert max(map(attention.declared_turns, loops)) == turns


@pytest.fixture
def small_tiles(monkeypatch, compiled_once):
    """Samples of a test go through several tiles and blocks."""
    sizes = {"ROWS": 16, "TILE_ROWS": 32, "COLUMNS": 32, "GRADIENT_COLUMNS": 16}
    for name, size in sizes.items():
        monkeypatch.setattr(_attention_kernel, name, size)


def kernel_errors(lengths, room, heads, dim, weights, dtype):
    """Largest errors, relative to magnitudes, of sums and gradients; the rows after the
    last event, which no event may see, are large. All heads lie in one array."""
    rng = np.random.default_rng(0)
    length = np.array(lengths, np.int32)
    first = np.cumsum(length, dtype=np.int32) - length
    arrays = rng.normal(size=(4, room, heads, dim))
    arrays[:, length.sum() :] = 1e6
    arrays = [jnp.asarray(array, dtype) for array in arrays]
    longest = max(1, *lengths)

    def results(*arrays):
        def attend(joined):
            places = jnp.asarray(first), jnp.asarray(length)
            read = [Heads(joined, i * heads, heads) for i in range(3)]
            given = *read, *places, longest, weights
            return attend_packed(*given, implementation="mosaic_gpu")

        total, pull = jax.vjp(attend, jnp.concatenate(arrays[:3], axis=1))
        return total, *jnp.split(*pull(arrays[3]), 3, axis=1)

    found = run("mosaic_gpu", results, *arrays)
    expected = oracle.attention(*arrays, first, length, weights, longest)
    return [
        largest_error(np.asarray(actual), *values)
        for actual, values in zip(found, expected, strict=True)
    ]


@pytest.mark.parametrize("firsts", [(0, 2, 4), (4, 0, 2), (0, 1, 2), (0, 0, 0)])
def test_heads_of_one_array_are_those_that_are_cut_out(firsts):
    """Other heads lie between and behind them; some may be read twice."""
    length = jnp.array([3, 0, 5])
    array = jax.random.normal(jax.random.key(0), (10, 7, 4))
    first = jnp.cumsum(length) - length

    def attended(parts):
        return attend_packed(*parts, first, length, 5, "silu", implementation="xla")

    def read(array):
        return attended([Heads(array, each, 2) for each in firsts])

    def cut(array):
        return attended([array[:, each : each + 2] for each in firsts])

    assert read(array).shape == (10, 2, 4)
    for function in (lambda f: f(array), lambda f: jax.vjp(f, array)[1](cut(array))[0]):
        found, expected = function(read), function(cut)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("weights", ["silu", "softmax"])
@pytest.mark.parametrize(
    ("lengths", "room", "heads"),
    thorough(
        [
            ((0, 1, 40, 0, 3, 17, 20), 100, 1),  # no multiple of a tile
            ((70,), 70, 2),  # as long as the room
            ((0, 0), 32, 1),
            ((16, 16, 32, 1), 128, 1),  # ends where a tile does; tiles without events
        ],
        [((0, 1, 40, 0, 3, 17, 20), 100, 1)],
        unpack=True,
    ),
)
def test_the_kernel_is_exact(lengths, room, heads, weights, monkeypatch):
    """In float32, which the interpreter multiplies and a GPU does not: whatever is not
    rounding is found."""
    monkeypatch.setattr(attention, "why_unsupported", lambda *_: "")
    dim = 16
    limit = (max(lengths) + dim + 8) * FLOAT32_EPS
    errors = kernel_errors(lengths, room, heads, dim, weights, "float32")
    assert max(errors) <= limit


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("weights", ["silu", "softmax"])
def test_the_kernel_rounds_where_it_may(weights):
    """In bfloat16, with the tiles that a GPU has."""
    errors = kernel_errors((70, 0, 1, 130, 17), 250, 2, 64, weights, "bfloat16")
    assert max(errors) <= ATTENTION_LIMIT


def test_what_the_kernel_cannot_take_is_said():
    def attend(dim=64, dtype=jnp.bfloat16, value_dim=None, **options):
        query = jnp.zeros((8, 1, dim), dtype)
        value = jnp.zeros((8, 1, value_dim or dim), dtype)
        places = jnp.array([0], jnp.int32), jnp.array([8], jnp.int32)
        return attend_packed(query, query, value, *places, 8, "silu", **options)

    kernel = {"implementation": "mosaic_gpu"}
    with pytest.raises(ValueError, match="are float32, float32, float32, must be bf"):
        attend(dtype=jnp.float32, **kernel)
    with pytest.raises(ValueError, match="heads have 24 dims, must have a multiple of"):
        attend(dim=24, **kernel)
    with pytest.raises(ValueError, match="144 dims, must have a multiple of 16 up to"):
        attend(dim=144, **kernel)
    with pytest.raises(ValueError, match=r"are \(8, 1, 64\), values \(8, 1, 32\)"):
        attend(value_dim=32, **kernel)
    with pytest.raises(ValueError, match="has a bias, which the kernel cannot add"):
        attend(bias=jnp.zeros(3), **kernel)
    with pytest.raises(ValueError, match="implementation is 'triton', must be"):
        attend(implementation="triton")
    assert not attend().any()
    here = "mosaic_gpu needs a GPU; JAX runs on cpu here"
    assert why_plain_attention(64, jnp.bfloat16) == here
    assert why_plain_attention(64, jnp.float32).endswith("must be bfloat16")
    assert why_plain_attention(64, jnp.bfloat16, biased=True).startswith(
        "attention has"
    )
