"""update_rows, sum_groups and sum_and_update against a float64 oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import (
    FTRL,
    SGD,
    LazyAdam,
    RowwiseAdagrad,
    _segments_kernel,
    _update_kernel,
    _xla,
    group_rows,
    group_targets,
    init_states,
    oracle,
    sum_and_update,
    sum_groups,
    update,
    update_rows,
)
from embark_kernels.optimizers import ROW_OPTIMIZERS

from experiments.gpu import check_cases
from tests.kernels.implementations import (
    assert_sums_close,
    each_implementation,
    run,
    run_gpu_programs,
)
from tests.thorough import thorough

ROWS, STEP = 9, 3
HALVED = {"schedule": lambda steps: 0.5**steps}
OPTIMIZERS = [
    *(rule(0.1) for rule in ROW_OPTIMIZERS.values()),
    LazyAdam(0.1, **HALVED, weight_decay=0.3),
    RowwiseAdagrad(0.1, weight_decay=0.3),
    FTRL(0.1, l1=1.0, l2=0.5, **HALVED, weight_decay=0.3),
]
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Rows of a test are more than a program updates, and reads at once."""
    monkeypatch.setattr(_update_kernel, "update_blocks", lambda *_: (3, 2))


def problem(optimizer, width, dtype="float32"):
    rng = np.random.default_rng(width)
    table = jnp.asarray(rng.normal(size=(ROWS, width)), dtype)
    states = {name: 0.5 + each for name, each in init_states(optimizer, table).items()}
    return rng, table, states


def as_float64(array):
    return np.asarray(jnp.asarray(array, jnp.float32), np.float64)


def expected_update(optimizer, table, states, gradients, mean_square=None):
    """Updates the rows of ``gradients``, ``{row: [width]}``, by the textbook."""
    if not gradients:
        return as_float64(table), states
    listed = list(gradients), list(gradients.values())
    return oracle.update(optimizer, table, states, *listed, STEP, mean_square)


def assert_updated(actual, expected):
    np.testing.assert_allclose(as_float64(actual[0]), expected[0], **TOLERANCE)
    assert actual[1].keys() == expected[1].keys()
    for name, state in expected[1].items():
        np.testing.assert_allclose(actual[1][name], state, **TOLERANCE)


def run_update_rows(implementation, optimizer, *args, **options):
    return run(
        implementation,
        lambda table, states, rows, gradients: update_rows(
            table,
            states,
            rows,
            gradients,
            optimizer,
            step=STEP,
            implementation=implementation,
            **options,
        ),
        *args,
    )


@each_implementation
@pytest.mark.parametrize("width", thorough([8, 128], [8]))
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=check_cases.name_of)
def test_listed_rows_are_updated(implementation, optimizer, width):
    rng, table, states = problem(optimizer, width)
    rows = np.array([4, ROWS, 0, ROWS - 1, -1, 2, ROWS + 5], np.int32)
    gradients = rng.normal(size=(len(rows), width)).astype(np.float32)
    gradients[(rows < 0) | (rows >= ROWS)] = np.nan  # may be anything
    actual = run_update_rows(implementation, optimizer, table, states, rows, gradients)
    wanted = {
        row: as_float64(gradient)
        for row, gradient in zip(rows, gradients, strict=True)
        if 0 <= row < ROWS
    }
    assert_updated(actual, expected_update(optimizer, table, states, wanted))


@each_implementation
@pytest.mark.parametrize("kind", ROW_OPTIMIZERS)
def test_a_rate_of_0_moves_no_row_and_leaves_finite_states(implementation, kind):
    optimizer = ROW_OPTIMIZERS[kind](0.1, schedule=lambda steps: 0.0 * steps)
    rng, table, states = problem(optimizer, 8)
    table = table.at[2, 1].set(0)
    rows, gradients = np.array([2, 5], np.int32), rng.normal(size=(2, 8))
    arguments = table, states, rows, gradients.astype(np.float32)
    actual, new_states = run_update_rows(implementation, optimizer, *arguments)
    np.testing.assert_array_equal(actual, table)
    assert all(np.isfinite(state).all() for state in new_states.values())


def test_a_schedule_may_stand_for_the_rate_as_in_optax():
    gradients = np.ones((1, 8), np.float32)
    for rate in (lambda steps: 0.1 * 0.5**steps, 0.1):
        schedule = {} if callable(rate) else HALVED
        optimizer = FTRL(rate, **schedule)
        _, table, states = problem(optimizer, 8)
        arguments = table, states, np.array([3], np.int32), gradients
        actual = run_update_rows("xla", optimizer, *arguments)
        expected = oracle.update(
            FTRL(0.1, **HALVED), table, states, [3], gradients, STEP
        )
        assert_updated(actual, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(float("nan")), "SGD: learning_rate is nan, must be a finite n"),
        (lambda: SGD(-1), "learning_rate is -1, must be a finite number > 0"),
        (lambda: SGD("0.1"), "learning_rate is '0.1', must be a finite number > 0"),
        (lambda: LazyAdam(0.1, beta1=1), "beta1 is 1, must be .* >= 0 and < 1"),
        (lambda: RowwiseAdagrad(0.1, eps=0), "eps is 0, must be a finite number > 0"),
        (lambda: SGD(0.1, weight_decay=np.inf), "weight_decay is inf, must be a fin"),
        (lambda: SGD(lambda n: n, **HALVED), "learning_rate and schedule are both"),
    ],
)
def test_parameters_are_what_their_annotations_say(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@each_implementation
def test_a_table_in_bfloat16_is_rounded_once(implementation):
    optimizer = SGD(0.1)
    rng, table, states = problem(optimizer, 128, "bfloat16")
    gradient = rng.normal(size=(1, 128)).astype(np.float32)
    rows = np.array([3], np.int32)
    actual, _ = run_update_rows(
        implementation, optimizer, table, states, rows, gradient
    )
    exact = np.float32(table[3].astype(jnp.float32)) - np.float32(0.1) * gradient[0]
    # Half a unit in the last place of 8 bits, and as much again where the kernel's
    # fused multiply-add falls on the other side.
    np.testing.assert_allclose(as_float64(actual[3]), exact, rtol=2**-8)
    assert actual.dtype == jnp.bfloat16


@each_implementation
def test_rows_that_go_on_elsewhere_take_their_whole_mean_square(implementation):
    optimizer = RowwiseAdagrad(0.1)
    rng, table, states = problem(optimizer, 8)
    rows = np.array([6, 1], np.int32)
    gradients = rng.normal(size=(2, 8)).astype(np.float32)
    mean_square = np.array([2.0, 0.25], np.float32)
    actual = run_update_rows(
        implementation,
        optimizer,
        table,
        states,
        rows,
        gradients,
        mean_square=jnp.asarray(mean_square),
    )
    expected = expected_update(
        optimizer,
        table,
        states,
        dict(zip(rows, as_float64(gradients), strict=True)),
        mean_square,
    )
    assert_updated(actual, expected)


GROUPS = {
    "duplicates only": [4] * 9,
    "long and short segments": [8, 0, 0, -1, 0, 8, 0, ROWS, 0],
    "all padding": [-1] * 9,
}


@each_implementation
def test_groups_are_summed(implementation, monkeypatch):
    monkeypatch.setattr(_segments_kernel, "IDS_PER_PROGRAM", 2)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 8)).astype(np.float32)
    source = rng.integers(0, 4, 9).astype(np.int32)
    weights = rng.normal(size=9).astype(np.float32)
    options = {"implementation": implementation}

    def function(rows, values, source, weights):
        groups = group_rows(rows, ROWS, **options)
        return groups.row, sum_groups(values, groups, source, weights, **options)

    for rows in GROUPS.values():  # which are compiled for once
        given = np.array(rows, np.int32), values, source, weights
        for row, summed in zip(*run(implementation, function, *given), strict=True):
            ids = [i for i, other in enumerate(rows) if other == row < ROWS]
            if ids:
                terms = as_float64(weights)[ids, None] * values[source[ids]]
                magnitude = np.abs(terms).sum(0)
                assert_sums_close(summed, terms.sum(0), magnitude, len(ids))


@each_implementation
@pytest.mark.parametrize(
    ("optimizer", "width"),
    thorough(
        [*((optimizer, 8) for optimizer in OPTIMIZERS), (RowwiseAdagrad(0.1), 128)],
        [(OPTIMIZERS[-1], 8), (RowwiseAdagrad(0.1), 128)],
        unpack=True,
    ),
    ids=lambda each: str(each) if isinstance(each, int) else check_cases.name_of(each),
)
def test_rows_are_updated_by_the_sums_of_their_gradients(
    implementation, optimizer, width, monkeypatch
):
    """Rows that end with a block, go on over several, and are only padding; by one
    program, which may be told to change none."""
    monkeypatch.setattr(_segments_kernel, "IDS_PER_PROGRAM", 4)
    rng, table, states = problem(optimizer, width)
    rows = np.array([5] * 11 + [2, 2, 0, 7, -1, ROWS, 2], np.int32)
    rows = rng.permutation(rows)
    values = rng.normal(size=(6, width)).astype(np.float32)
    source = rng.integers(-1, 7, len(rows)).astype(np.int32)
    weights = rng.normal(size=len(rows)).astype(np.float32)
    options = {"implementation": implementation}

    @jax.jit
    def function(table, states, rows, values, source, weights, apply):
        groups = group_rows(rows, ROWS, **options)
        return sum_and_update(
            table,
            states,
            groups,
            values,
            source,
            optimizer,
            weights,
            apply=apply,
            step=STEP,
            **options,
        )

    given = table, states, rows, values, source, weights
    wanted = {}
    for row, place, weight in zip(rows, source, weights, strict=True):
        if 0 <= row < ROWS:
            added = weight * as_float64(values[place]) if 0 <= place < 6 else 0.0
            wanted[row] = wanted.get(row, np.zeros(width)) + added
    for apply, gradients in ((True, wanted), (False, {})):
        actual = run(implementation, function, *given, np.bool_(apply))
        assert_updated(actual, expected_update(optimizer, table, states, gradients))


@each_implementation
def test_sums_go_into_an_array(implementation):
    target = np.array([3, -1, 0, 3, 5, 9], np.int32)
    values = np.arange(1.0, 7.0, dtype=np.float32)[:, None].repeat(8, 1)
    options = {"implementation": implementation}
    actual = run(
        implementation,
        lambda values, target: sum_groups(
            values, group_targets(target, 6, **options), jnp.arange(6), **options
        ),
        values,
        target,
    )
    np.testing.assert_array_equal(actual[:, 0], [3, 0, 0, 5, 0, 5])


def test_groups_of_another_implementation_are_refused():
    groups = group_rows(jnp.array([0, 1]), 2, implementation="xla")
    operands = jnp.zeros((2, 8)), groups, jnp.arange(2)
    with pytest.raises(ValueError, match="the groups were made for xla"):
        sum_groups(*operands, implementation="mosaic_gpu")


@pytest.mark.parametrize("gpu_programs", [False, True])
def test_many_blocks_are_summed_as_one(gpu_programs, monkeypatch):
    """Plain XLA: a very hot row, and the turns of its loops on CPU meet nowhere."""
    if gpu_programs:
        run_gpu_programs(monkeypatch)
    monkeypatch.setattr(_xla, "TERMS_AT_ONCE", 16)
    monkeypatch.setattr(update, "UPDATED_AT_ONCE", 16)
    rng = np.random.default_rng(4)
    ids = rng.integers(-1, 60, 45).astype(np.int32)
    ids[rng.random(45) < 0.3] = 17
    gradient = rng.integers(-3, 3, (45, 8)).astype(np.float32)
    table = jnp.zeros((60, 8))
    options = {"implementation": "xla"}

    @jax.jit
    def function(table, ids, gradient):
        groups = group_rows(ids, 60, **options)
        given = table, {}, groups, gradient, jnp.arange(45), SGD(1.0)
        return sum_and_update(*given, **options)

    actual, _ = function(table, ids, gradient)
    expected = np.zeros((60, 8))
    np.add.at(expected, ids[ids >= 0], -gradient[ids >= 0])
    np.testing.assert_array_equal(actual, expected)


def murmur3_finalizer(number):
    """https://en.wikipedia.org/wiki/MurmurHash, in Python's integers."""
    for shift, factor in (16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1):
        number = ((number ^ (number >> shift)) * factor) % 2**32
    return number


@each_implementation
@pytest.mark.parametrize("fused", [False, True])
def test_rows_of_16_bits_become_one_of_their_neighbours(implementation, fused):
    """The upper one with the share of their distance that lies below, in magnitude."""
    width, rows, options = 16, np.array([4, 0, 7]), {"implementation": implementation}
    rng, table, _ = problem(SGD(0.25), width, jnp.bfloat16)
    # Float32 holds the sums and the new rows exactly.
    gradients = rng.integers(-9, 10, (3, width)).astype(np.float32) / 2**11
    noise = rng.integers(0, 2**32, ROWS, np.uint32)

    def updated(table, gradients, noise):
        if not fused:
            listed = noise[rows]
            given = table, {}, jnp.asarray(rows), gradients, SGD(0.25)
            return update_rows(*given, noise=listed, **options)[0]
        entries = np.concatenate([rows, rows])  # each row twice, with half of it
        groups = group_rows(jnp.asarray(entries, jnp.int32), ROWS, **options)
        given = table, {}, groups, gradients / 2, jnp.asarray([0, 1, 2] * 2), SGD(0.25)
        listed = noise.at[groups.row].get(mode="clip")
        return sum_and_update(*given, noise=listed, **options)[0]

    found = as_float64(run(implementation, updated, table, gradients, noise))
    expected = as_float64(table)
    for row, gradient in zip(rows, gradients, strict=True):
        for column, value in enumerate(expected[row] - 0.25 * gradient):
            below = np.float32(value).view(np.uint32) >> 16 << 16
            low, high = np.uint32([below, below + 2**16]).view(np.float32)
            share = (value - low) / (float(high) - float(low))
            bits = murmur3_finalizer(int(noise[row]) + column * 0x9E3779B9 & 0xFFFFFFFF)
            expected[row, column] = high if share + (bits >> 16) / 2**16 >= 1 else low
    np.testing.assert_array_equal(found, expected)
