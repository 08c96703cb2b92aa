"""The check of the kernels passes right ones, finds wrong ones, and decides what None
takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import (
    _attention_kernel,
    _implementation,
    _update_kernel,
    check,
    choose,
    pooled_lookup,
    why_plain_attention,
    why_plain_xla,
)
from embark_kernels._mosaic import interpreted
from embark_kernels.check import largest_error


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Nothing is checked yet, and the interpreter has small programs to run."""
    checks = check.problem, check.attention_problem
    for each in checks:
        each.cache_clear()
    small = {"PROGRAMS": ((8, "float32"),), "ROWS": 11, "IDS": 20, "BAGS": 5}
    small |= {"ATTENTION_PROGRAMS": (("silu", 16), ("softmax", 32)), "HEADS": 1}
    for name, value in small.items():
        monkeypatch.setattr(check, name, value)
    yield
    for each in checks:
        each.cache_clear()


@pytest.fixture
def hopper(monkeypatch):
    """The kernels can run here."""
    monkeypatch.setattr(_implementation, "_why_not_mosaic_gpu", lambda _: "")


def problem():
    with interpreted():
        return check.problem()


@pytest.mark.slow
def test_a_kernel_that_forgets_rows_is_found(monkeypatch):
    right = check.update_rows

    def forgets(table, states, rows, *args, **options):
        return right(table, states, rows.at[:3].set(-1), *args, **options)

    monkeypatch.setattr(check, "update_rows", forgets)
    assert problem() == (
        "the GPU kernels failed their check with float32 rows of width 8: update_rows "
        "differs from the textbook"
    )


@pytest.mark.slow
def test_a_kernel_of_little_precision_is_found(monkeypatch):
    right = _update_kernel.sqrt
    monkeypatch.setattr(_update_kernel, "sqrt", lambda x: right(x) * (1 + 1e-4))
    assert "update_rows differs from the textbook" in problem()


def test_a_kernel_that_adds_in_another_order_each_time_is_found():
    _, _, expected = check.make_program(32, "float32")
    first = {name: value for name, (value, _, _) in expected.items()}
    assert check.differences(first, first, expected) == []
    jittered = {**first, "sum_bags": first["sum_bags"] * (1 + 1e-9)}
    assert check.differences(first, jittered, expected) == [
        "sum_bags differs from one call to the next"
    ]


def test_errors_are_relative_to_magnitudes():
    zero, one = np.zeros(2), np.ones(2)
    assert largest_error(np.array([0.0, 1.5]), one, np.array([2.0, 1.0])) == 0.5
    assert largest_error(zero, zero, zero) == 0
    assert largest_error(np.array([0, 1e-30]), zero, zero) == np.inf
    assert largest_error(np.array([0, np.nan]), zero, one) == np.inf
    assert largest_error(np.zeros(3), zero, one) == np.inf


@pytest.mark.slow
@pytest.mark.usefixtures("hopper")
def test_a_passed_check_decides_what_none_takes():
    with interpreted():
        # Also where a program of the caller's is being traced.
        table, ids = jnp.ones((9, 8)), jnp.zeros((2, 1), jnp.int32)
        np.testing.assert_array_equal(jax.jit(pooled_lookup)(table, ids), 1.0)
    assert why_plain_xla() == ""
    assert choose(None) == "mosaic_gpu"
    assert choose(None, width=7) == "xla"


@pytest.mark.usefixtures("hopper")
def test_kernels_that_do_not_compile_are_not_taken():
    # They do not on CPU, outside of the interpreter.
    assert choose(None) == "xla"
    assert why_plain_xla().startswith(
        "the GPU kernels failed their check with float32 rows of width 8: "
    )
    assert choose("mosaic_gpu") == "mosaic_gpu"


@pytest.mark.slow
@pytest.mark.usefixtures("hopper", "compiled_once")
def test_attention_has_a_check_of_its_own(monkeypatch):
    with interpreted():
        assert check.attention_problem() == ""
    assert why_plain_attention(64, jnp.bfloat16) == ""
    right = _attention_kernel._blocks_of_tiles

    def forgets(spans, block):
        low, steps = right(spans, block)
        return low, jnp.maximum(steps - 1, 0)

    monkeypatch.setattr(_attention_kernel, "_blocks_of_tiles", forgets)
    check.attention_problem.cache_clear()
    with interpreted():
        assert check.attention_problem() == (
            "the GPU kernels failed their check with silu attention of 16 dims: "
            "attention differs from the textbook, query gradient differs from the "
            "textbook, key gradient differs from the textbook, value gradient differs "
            "from the textbook"
        )


def test_without_a_gpu_nothing_is_checked():
    assert choose(None) == "xla"
    assert why_plain_xla() == "mosaic_gpu needs a GPU; JAX runs on cpu here"
