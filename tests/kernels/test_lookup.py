"""pooled_lookup and sum_bags against a float64 oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import LookupConfig, bag_offsets, pooled_lookup, sum_bags

from tests.kernels.implementations import (
    assert_sums_close,
    each_implementation,
    run,
)

SMALL = LookupConfig(bags_per_block=3, rows_in_flight=2)
ROWS = 11


def make_table(width, dtype=jnp.float32):
    values = np.random.default_rng(width).normal(size=(ROWS, width))
    return jnp.asarray(values, dtype)


def expected_sums(table, rows, offsets, weights=None):
    """Sums and sums of magnitudes, ``[bags, width]`` float64 each."""
    table = np.asarray(table.astype(jnp.float32), np.float64)
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights, float)
    sums = np.zeros((2, len(offsets) - 1, table.shape[1]))
    for bag in range(len(offsets) - 1):
        for entry in range(offsets[bag], offsets[bag + 1]):
            if 0 <= rows[entry] < len(table):
                value = weights[entry] * table[rows[entry]]
                sums[0, bag] += value
                sums[1, bag] += np.abs(value)
    return sums


def check_sum_bags(implementation, table, rows, offsets, weights=None, config=SMALL):
    rows, offsets = np.array(rows, np.int32), np.array(offsets, np.int32)
    actual = run(
        implementation,
        lambda *args: sum_bags(*args, implementation=implementation, config=config),
        *(table, rows, offsets, weights),
    )
    sums, magnitude = expected_sums(table, rows, offsets, weights)
    assert actual.dtype == jnp.float32
    assert_sums_close(actual, sums, magnitude, len(rows))


@each_implementation
@pytest.mark.parametrize(
    ("width", "dtype"), [(8, "float32"), (24, "bfloat16"), (128, "bfloat16")]
)
def test_random_bags(implementation, width, dtype):
    rng = np.random.default_rng(0)
    rows = rng.integers(-2, ROWS + 2, 17)
    weights = jnp.asarray(rng.normal(size=17), jnp.float32)
    table = make_table(width, dtype)
    check_sum_bags(implementation, table, rows, [1, 1, 4, 4, 11, 12, 12, 15], weights)


@each_implementation
@pytest.mark.parametrize(
    ("rows", "offsets"),
    [
        pytest.param([-1] * 6, [0, 2, 6], id="all padding"),
        pytest.param([3], [0, 1], id="one row"),
        pytest.param([4] * 9, [0, 5, 9], id="duplicates only"),
        pytest.param([1, 2], [0, 0, 0, 2, 2, 2, 2, 2], id="empty bags"),
        pytest.param([7, 8], [0] * 5, id="all bags empty"),
        pytest.param([ROWS - 1, -1, ROWS - 1], [0, 1, 3], id="last row"),
        pytest.param([ROWS, 2**31 - 1, -(2**31)], [0, 2, 3], id="beyond the table"),
    ],
)
def test_edges_of_bags(implementation, rows, offsets):
    check_sum_bags(implementation, make_table(128), rows, offsets)


@each_implementation
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_several_bags_a_line(implementation, pooling, weighted):
    rng = np.random.default_rng(1)
    hotness, batch = (2, 3), 3
    table = make_table(24)
    ids = rng.integers(-1, ROWS, (batch, 5)).astype(np.int32)
    ids[1, :2] = -1  # an empty bag
    weights = rng.uniform(0.5, 2, (batch, 5)).astype(np.float32) if weighted else None
    actual = run(
        implementation,
        lambda *args: pooled_lookup(
            *args,
            hotness=hotness,
            pooling=pooling,
            implementation=implementation,
            config=SMALL,
        ),
        *(table, ids, weights),
    )
    factors = np.where(ids >= 0, 1.0 if weights is None else weights, 0.0)
    if pooling == "mean":
        for bag in (slice(0, 2), slice(2, 5)):
            total = factors[:, bag].sum(1, keepdims=True)
            factors[:, bag] /= np.where(total == 0, 1, total)
    starts = np.arange(batch)[:, None] * 5 + np.array([0, 2])
    offsets = [*starts.reshape(-1), ids.size]
    sums, magnitude = expected_sums(table, ids.ravel(), offsets, factors.ravel())
    assert actual.shape == (batch, 2, 24)
    assert_sums_close(actual.reshape(-1, 24), sums, magnitude, 5)


@each_implementation
def test_padding_never_meets_a_broken_row(implementation):
    """Kernels read row 0 in place of padding: what stands there must not matter."""
    table = make_table(128).at[0].set(jnp.nan)
    check_sum_bags(implementation, table, [-1, 5, -1, 6], [0, 1, 3, 4])


@each_implementation
def test_output_in_bfloat16(implementation):
    table = make_table(128)
    ids = np.array([[1, 2, 2]], np.int32)
    actual, exact = (
        run(
            implementation,
            lambda *args, dtype=dtype: pooled_lookup(
                *args, out_dtype=dtype, implementation=implementation, config=SMALL
            ),
            *(table, ids),
        )
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_array_equal(actual, exact.astype(jnp.bfloat16))


def test_long_bags_are_summed_in_a_loop():
    table = make_table(8)
    ids = np.random.default_rng(2).integers(-1, ROWS, (4, 100)).astype(np.int32)
    actual = pooled_lookup(table, jnp.asarray(ids), implementation="xla")
    sums, magnitude = expected_sums(table, ids.ravel(), np.arange(5) * 100)
    assert_sums_close(actual, sums, magnitude, 100)


@each_implementation
def test_gradients(implementation):
    """Of pooled_lookup and of sum_bags, by table and by weights."""
    rng = np.random.default_rng(3)
    ids = np.array([[2, 2, -1], [ROWS - 1, 2, 0]], np.int32)
    table = make_table(8)
    weights = jnp.asarray(rng.normal(size=ids.shape), jnp.float32)
    upstream = jnp.asarray(rng.normal(size=(2, 8)), jnp.float32)

    def loss(table, weights, flat):
        options = {"implementation": implementation, "config": SMALL}
        if flat:
            offsets = jnp.array([0, 3, 6], jnp.int32)
            out = sum_bags(
                table, ids.reshape(-1), offsets, weights.reshape(-1), **options
            )
        else:
            out = pooled_lookup(table, ids, weights, **options)
        return (out * upstream).sum()

    by_table = np.zeros((ROWS, 8))
    by_weights = np.zeros(ids.shape)
    for bag, entry in np.argwhere(ids >= 0):
        row = ids[bag, entry]
        by_table[row] += float(weights[bag, entry]) * np.asarray(upstream[bag], float)
        by_weights[bag, entry] = np.asarray(table[row], float) @ np.asarray(
            upstream[bag], float
        )
    for flat in (False, True):
        actual = run(
            implementation,
            lambda *args, flat=flat: jax.grad(loss, argnums=(0, 1))(*args, flat),
            *(table, weights),
        )
        np.testing.assert_allclose(actual[0], by_table, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(actual[1], by_weights, rtol=1e-5, atol=1e-6)


def test_offsets_of_ascending_bags():
    bag = jnp.array([0, 0, 2, 2, 2, 5, 7], jnp.int32)
    np.testing.assert_array_equal(bag_offsets(bag, 5), [0, 2, 2, 5, 5, 5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hotness": (1, 1)}, r"hotness \(1, 1\) does not split 3 columns"),
        ({"hotness": (3, 0)}, r"hotness \(3, 0\) does not split 3 columns"),
        ({"pooling": "max"}, "pooling is 'max', must be 'sum' or 'mean'"),
        ({"weights": jnp.ones((2, 2))}, r"weights are \(2, 2\), ids are \(2, 3\)"),
        ({"implementation": "triton"}, "implementation is 'triton', must be 'xla'"),
    ],
)
def test_mistakes_are_named(change, message):
    ids = jnp.zeros((2, 3), jnp.int32)
    with pytest.raises(ValueError, match=message):
        pooled_lookup(make_table(8), ids, **change)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (jnp.zeros((2, 12)), "table is 12 wide, must be a multiple of 8 from 8"),
        (jnp.zeros((2, 8), jnp.float16), "table is float16, must be float32 or"),
    ],
)
def test_an_explicit_kernel_never_falls_back(table, message):
    with pytest.raises(ValueError, match=message):
        pooled_lookup(table, jnp.zeros((1, 1), jnp.int32), implementation="mosaic_gpu")


def test_config_is_validated():
    with pytest.raises(ValueError, match="rows_in_flight is 0, must be at least 1"):
        LookupConfig(bags_per_block=1, rows_in_flight=0)
