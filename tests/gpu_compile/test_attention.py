"""The kernels of attention compile for an H100 with no GPU present: nothing is kept
outside of registers, and no product waits for the one before."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import attend_packed, check
from jax.sharding import SingleDeviceSharding

from experiments.gpu import check_cases
from experiments.step_bytes.hlo import Program
from tests.compiled import h100_mesh
from tests.thorough import thorough

KERNELS = "attention_sums", "attention_query_gradient", "attention_key_gradient"
SAMPLES, LONGEST, HEADS = 16, 4096, 4
EVENTS = SAMPLES * LONGEST // 2


@pytest.fixture(scope="module")
def on_h100():
    """Shapes on a GPU that is not there."""
    sharding = SingleDeviceSharding(h100_mesh(1, 1).devices.item())
    return lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def compile_gradient(on_h100, weights, dim, events=EVENTS):
    """Sums of values and their gradients."""
    array = on_h100((events, HEADS, dim), jnp.bfloat16)
    places = [on_h100((SAMPLES,), jnp.int32)] * 2

    def results(query, key, value, gradient, first, length):
        def attend(*arrays):
            given = *arrays, first, length, LONGEST, weights
            return attend_packed(*given, implementation="mosaic_gpu")

        total, pull = jax.vjp(attend, query, key, value)
        return total, pull(gradient)

    return jax.jit(results).lower(*[array] * 4, *places).compile()


@pytest.mark.parametrize("weights", ["silu", "softmax"])
@pytest.mark.parametrize("dim", thorough([16, 32, 48, 64, 80, 96, 112, 128], [64, 128]))
def test_kernels_spill_no_registers(on_h100, weights, dim, monkeypatch, capfd):
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    compile_gradient(on_h100, weights, dim)
    said = "".join(capfd.readouterr())
    assert set(re.findall(r"entry function '(\w+)_mosaic_gpu_kernel'", said)) == {
        *KERNELS
    }
    assert re.findall(r"(\d+) bytes spill", said) == ["0"] * 2 * len(KERNELS)
    assert "serialized" not in said


def test_kernels_declare_what_they_move(on_h100):
    """Each array once, as columns that several tiles read stay in the cache, and beside
    the kernels little is moved."""
    dim = 128
    compiled = compile_gradient(on_h100, "silu", dim)
    moved = Program(compiled.as_text()).moved()
    array_bytes = 2 * EVENTS * HEADS * dim
    found = [
        round(each.bytes / array_bytes, 1)
        for each in moved
        if any(name in each.purpose for name in KERNELS) and "bytes" in each.purpose
    ]
    assert sorted(found) == [4, 5, 6]
    assert sum(each.bytes for each in moved) < 15.2 * array_bytes


def test_rooms_that_are_no_multiple_of_a_tile_compile(on_h100):
    assert compile_gradient(on_h100, "softmax", 64, EVENTS + 1)


@pytest.mark.slow
def test_cases_of_the_battery_compile(on_h100):
    for case in check_cases.attention_cases():
        shapes = [on_h100(np.shape(x), x.dtype) for x in case.arguments]
        case.program.lower(*shapes).compile()


@pytest.mark.parametrize(("weights", "dim"), check.ATTENTION_PROGRAMS)
def test_the_check_at_the_start_compiles(on_h100, weights, dim):
    program, arguments, _ = check.make_attention_program(weights, dim)
    shapes = [on_h100(np.shape(each), each.dtype) for each in arguments]
    text = jax.jit(program).lower(*shapes).compile().as_text()
    assert text.count('custom_call_target="mosaic_gpu') == len(KERNELS)
