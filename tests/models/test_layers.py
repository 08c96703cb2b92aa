"""Initial weights, and the matrix product inside shard_map."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from embark_jax.models import DLRMDCNv2, float8
from embark_jax.models.layers import (
    MLP,
    Linear,
    LowRankCross,
    held,
    made_once,
    matmul,
)


def test_linear_starts_like_torch_linear():
    layer = Linear(400, 300, compute_dtype=jnp.float32, rngs=nnx.Rngs(0))
    bound = 400**-0.5
    for leaf in (layer.w[...], layer.b[...]):
        assert np.abs(leaf).max() <= bound
        # Uniform in ±bound: the mean of 300 draws has a deviation of bound / 30.
        assert abs(leaf.mean()) < 5 * bound / 30
        np.testing.assert_allclose(leaf.std(), bound / 3**0.5, rtol=0.2)


def test_cross_starts_with_xavier_normal_and_no_bias():
    layer = LowRankCross(300, 100, compute_dtype=jnp.float32, rngs=nnx.Rngs(0))
    std = (2 / 400) ** 0.5
    for leaf in (layer.v[...], layer.w[...]):
        np.testing.assert_allclose(leaf.std(), std, rtol=0.02)
        assert np.abs(leaf).max() > 2.5 * std  # not truncated at two deviations
    np.testing.assert_array_equal(layer.b[...], np.zeros(300))
    assert not np.array_equal(layer.v[...], layer.w[...].T)


def test_batch_norm_uses_the_batch_in_training_and_the_past_in_evaluation():
    rngs, options = nnx.Rngs(0), {"compute_dtype": jnp.float32, "batch_norm": True}
    mlp = MLP(3, (4, 1), last_relu=False, **options, rngs=rngs)
    x = np.random.default_rng(0).normal(2, 3, (64, 3)).astype(np.float32)
    w, b, w_last, b_last = (
        np.asarray(each[...], np.float64)
        for layer in mlp.layers
        for each in (layer.w, layer.b)
    )
    hidden = x @ w + b
    mean, variance = hidden.mean(axis=0), hidden.var(axis=0)

    def rest(mean, variance):
        normal = np.maximum((hidden - mean) / np.sqrt(variance + 1e-5), 0)
        return normal @ w_last + b_last

    mlp.train()
    np.testing.assert_allclose(mlp(x), rest(mean, variance), rtol=1e-4, atol=1e-4)
    mlp.eval()
    running = 0.1 * mean, 0.9 + 0.1 * variance  # from mean 0 and variance 1
    np.testing.assert_allclose(mlp(x), rest(*running), rtol=1e-4, atol=1e-4)
    assert not len(MLP(3, (1,), last_relu=False, **options, rngs=rngs).norms)


def test_dropout_keeps_the_mean_and_is_off_in_evaluation():
    options = {"compute_dtype": jnp.float32, "dropout": 0.25}
    mlp = MLP(3, (2000,), last_relu=True, **options, rngs=nnx.Rngs(0))
    x = jnp.ones((4, 3))
    mlp.eval()
    whole = np.asarray(mlp(x))
    mlp.train()
    first, second = np.asarray(mlp(x)), np.asarray(mlp(x))
    kept = first != 0
    np.testing.assert_allclose(first[kept], whole[kept] / 0.75, rtol=1e-6)
    share = kept[whole > 0].mean()  # of some 4,000 draws: a deviation of 0.007
    assert abs(share - 0.75) < 0.035
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("hold", [held, made_once])
def test_a_held_array_and_its_gradient_are_rounded_in_compiled_code_too(hold, dtype):
    rng = np.random.default_rng(0)
    x, gradient = rng.standard_normal((2, 4, 3), np.float32)

    @jax.jit
    def both(x, gradient):
        y, backward = jax.vjp(lambda x: hold(2 * x, jnp.dtype(dtype)), x)
        return y, backward(gradient)[0]

    for found, exact in zip(both(x, gradient), (2 * x, gradient), strict=True):
        expected = exact.astype(dtype).astype(np.float32)
        expected = 2 * expected if exact is gradient else expected
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matmul_gradient_in_shard_map_is_the_device_s_part(dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 4), np.float32)
    w = rng.standard_normal((4, 3), np.float32)
    mesh = jax.make_mesh((8,), ("gpu",), axis_types=(AxisType.Auto,))

    def gradient(x, w):
        return jax.grad(lambda w: jnp.sum(matmul(x, w, dtype) ** 2))(w)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec("gpu"), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    def sharded(x, w):
        return jax.lax.psum(gradient(x, w), "gpu")

    # Equal terms, added in another order.
    np.testing.assert_allclose(sharded(x, w), gradient(x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e30])
def test_products_in_8_bits_are_those_of_scaled_and_rounded_operands(scale):
    """NumPy with ml_dtypes rounds and multiplies what the formats can hold."""
    rng = np.random.default_rng(0)
    x = (rng.normal(0, scale, (32, 48)) * rng.lognormal(0, 2, (32, 48))).astype("f4")
    w = rng.normal(0, 0.1, (48, 16)).astype("f4")
    gradient = rng.normal(0, 1e-3, (32, 16)).astype("f4")

    def rounded(array, dtype, largest):
        most = np.abs(array).max()
        factor = np.float32(most / largest) if most else np.float32(1)
        return (array / factor).astype(dtype).astype("f8") * factor

    x8 = rounded(x, jnp.float8_e4m3fn, 448)
    w8 = rounded(w, jnp.float8_e4m3fn, 448)
    gradient8 = rounded(gradient, jnp.float8_e5m2, 57344)
    product, backward = jax.vjp(float8.matmul, x, w)
    x_gradient, w_gradient = backward(gradient)
    for ours, exact in (
        (product, x8 @ w8),
        (x_gradient, gradient8 @ w8.T),
        (w_gradient, x8.T @ gradient8),
    ):
        np.testing.assert_allclose(
            ours, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max()
        )


def test_float8_rounds_cross_and_hidden_top_layers_alone():
    """So a model whose hidden layers have 8 bits differs little, but differs."""
    shapes = {"a": (16,), "b": (16,)}
    options = {"bottom": (16,), "top": (16, 1), "cross_layers": 1, "cross_rank": 16}
    plain, rounded = (
        DLRMDCNv2(shapes, 4, **options, float8=float8, rngs=nnx.Rngs(0))
        for float8 in (False, True)
    )
    rng = np.random.default_rng(1)
    dense = jnp.array(rng.normal(size=(64, 4)), jnp.float32)
    rows = {n: jnp.array(rng.normal(size=(64, 16)), jnp.float32) for n in shapes}
    difference = np.abs(plain(dense, rows) - rounded(dense, rows)).max()
    assert 0 < difference < 0.1 * np.abs(plain(dense, rows)).max()
    np.testing.assert_array_equal(plain.bottom(dense), rounded.bottom(dense))
