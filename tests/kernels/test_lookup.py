"""pooled_lookup and sum_bags against a float64 oracle."""

import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import (
    _lookup_kernel,
    _xla,
    bag_offsets,
    oracle,
    pooled_lookup,
    sum_bags,
)

from tests.kernels.implementations import (
    assert_sums_close,
    each_implementation,
    run,
    run_gpu_programs,
)

ROWS = 11


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Bags and rows of a test are more than a program sums, and reads at once."""
    monkeypatch.setattr(_lookup_kernel, "lookup_blocks", lambda *_: (3, 2))


def make_table(width, dtype=jnp.float32):
    values = np.random.default_rng(width).normal(size=(ROWS, width))
    return jnp.asarray(values, dtype)


def expected_sums(table, rows, offsets, weights=None):
    """Sums and sums of magnitudes, ``[bags, width]`` float64 each."""
    bags, end = len(offsets) - 1, offsets[-1]
    bag = np.repeat(np.arange(bags), np.diff(offsets))
    weights = None if weights is None else weights[:end]
    return oracle.sum_rows(table, rows[:end], bag, bags, weights)


def check_sum_bags(implementation, table, lines, weights=None):
    """Lines of bags of rows, from which padding at the end is made."""
    entries = max(sum(map(len, line)) for line in lines) + 1
    bags = len(lines[0])
    rows = np.full((len(lines), entries), ROWS - 1, np.int32)  # not to be looked at
    bag = np.full((len(lines), entries), bags, np.int32)
    for i, line in enumerate(lines):
        flat = np.concatenate([np.array(each, np.int32) for each in line])
        rows[i, : len(flat)] = flat
        bag[i, : len(flat)] = np.repeat(np.arange(bags), [len(each) for each in line])
    if weights is not None:
        weights = jnp.asarray(weights[: rows.size], jnp.float32).reshape(rows.shape)
    actual = run(
        implementation,
        lambda table, rows, bag, weights: sum_bags(
            table,
            rows,
            bag,
            bags,
            weights,
            implementation=implementation,
        ),
        table,
        rows,
        bag,
        weights,
    )
    assert actual.dtype == jnp.float32
    assert actual.shape == (len(lines), bags, table.shape[1])
    for i, line in enumerate(lines):
        offsets = np.cumsum([0] + [len(each) for each in line])
        factors = None if weights is None else weights[i]
        sums, magnitude = expected_sums(table, rows[i], offsets, factors)
        assert_sums_close(actual[i], sums, magnitude, entries)


@each_implementation
@pytest.mark.parametrize(
    ("width", "dtype"), [(8, "float32"), (24, "bfloat16"), (128, "bfloat16")]
)
def test_sums_of_random_bags_are_those_of_float64(implementation, width, dtype):
    rng = np.random.default_rng(0)
    lines = [
        [rng.integers(-2, ROWS + 2, n) for n in lengths]
        for lengths in ([0, 3, 0, 7, 1, 0, 3], [0, 0, 0, 1, 0, 0, 0])
    ]
    table = make_table(width, dtype)
    check_sum_bags(implementation, table, lines, rng.normal(size=50))


@each_implementation
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([[[3]]], id="one row"),
        pytest.param(
            [
                [[-1] * 4, [5, -1], [6], []],  # padding
                [[4] * 5, [], [4] * 4, []],
                [[], [], [], []],
                [[ROWS - 1], [-1, ROWS - 1], [ROWS, 2**31 - 1], [-(2**31)]],
            ],
            id="of many kinds",
        ),
    ],
)
def test_odd_bags_are_summed(implementation, lines):
    """Kernels read row 0 in place of padding: what stands there must not matter."""
    table = make_table(128).at[0].set(jnp.nan)
    check_sum_bags(implementation, table, lines)


@each_implementation
@pytest.mark.parametrize("weighted", [False, True])
def test_a_line_may_have_several_bags(implementation, weighted):
    rng = np.random.default_rng(1)
    hotness, batch = (0, 2, 0, 3), 3
    table = make_table(24)
    ids = rng.integers(-1, ROWS, (batch, 5)).astype(np.int32)
    ids[1, :2] = -1  # an empty bag
    weights = rng.uniform(0.5, 2, (batch, 5)).astype(np.float32) if weighted else None
    actual = run(
        implementation,
        lambda *args: pooled_lookup(
            *args, hotness=hotness, implementation=implementation
        ),
        table,
        ids,
        weights,
    )
    factors = np.where(ids >= 0, 1.0 if weights is None else weights, 0.0)
    starts = np.arange(batch)[:, None] * 5 + np.array([0, 0, 2, 2])
    offsets = [*starts.reshape(-1), ids.size]
    sums, magnitude = expected_sums(table, ids.ravel(), offsets, factors.ravel())
    assert actual.shape == (batch, 4, 24)
    assert_sums_close(actual.reshape(-1, 24), sums, magnitude, 5)


@pytest.mark.parametrize(
    ("gpu_program", "bags_alone"), [(False, 0), (False, 32), (True, 32)]
)
def test_programs_of_plain_xla_agree(monkeypatch, gpu_program, bags_alone):
    """On CPU bags may be longer than a turn of the loop adds, each alone or equal
    lengths together; the program that GPUs run is run on CPU, too."""
    if gpu_program:
        run_gpu_programs(monkeypatch)
    monkeypatch.setattr(_xla, "BAGS_ALONE", bags_alone)
    table, hotness = make_table(8), (0, 16, 3, 50, 3, 0, 16)
    rng = np.random.default_rng(4)
    ids = rng.integers(-1, ROWS, (2, 88)).astype(np.int32)
    weights = rng.normal(size=(2, 88)).astype(np.float32)
    actual = run(
        "xla",
        lambda *args: pooled_lookup(*args, hotness=hotness, implementation="xla"),
        table,
        ids,
        weights,
    )
    starts = np.arange(2)[:, None] * 88 + np.array([0, 0, 16, 19, 69, 72, 72])
    flat = [*starts.ravel(), 176]
    sums, magnitude = expected_sums(table, ids.ravel(), flat, weights.ravel())
    assert_sums_close(actual.reshape(-1, 8), sums, magnitude, 50)
    lengths = [[0, 3, 0, 7, 1, 0, 3], [0, 0, 0, 1, 0, 0, 0]]
    lines = [[rng.integers(-2, ROWS + 2, n) for n in line] for line in lengths]
    check_sum_bags("xla", table, lines, rng.normal(size=50))


def test_ascending_bags_have_offsets():
    bag = jnp.array([0, 0, 2, 2, 2, 5, 7], jnp.int32)
    np.testing.assert_array_equal(bag_offsets(bag, 5), [0, 2, 2, 5, 5, 5])
    np.testing.assert_array_equal(bag_offsets(bag, 6), [0, 2, 2, 5, 5, 5, 6])
    np.testing.assert_array_equal(bag_offsets(bag, 1), [0, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hotness": (1, 1)}, r"hotness \(1, 1\) does not split 3 columns"),
        ({"hotness": (4, -1)}, r"hotness \(4, -1\) does not split 3 columns"),
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
