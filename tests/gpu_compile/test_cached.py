"""Cached tables, compiled for H100s that are not there."""

import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

import embark_jax as ej
from embark_jax.cache import directory, key_index
from tests.compiled import check_index_in_place, check_swap, compile_cached, h100_mesh
from tests.planner.published import t7_of

WIDTH, SLOTS, KEYS = 128, 1_000_000, 1 << 16


def test_to_find_keys_moves_at_most_a_quarter_of_what_a_lookup_moves():
    """At width 128. Of each key the program reads two buckets and
    a slot; all else is arrays of so many keys, each written once and read once."""
    device = SingleDeviceSharding(h100_mesh(1).devices.flat[0])
    index, keys = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=device),
        jax.eval_shape(
            lambda: (key_index.empty_index(SLOTS), jnp.zeros((KEYS, 2), jnp.uint32))
        ),
    )
    hlo = jax.jit(key_index.find).lower(index, keys).compile().as_text()
    entry = hlo[hlo.index("ENTRY") :].split("\n", 1)[1]
    between = 0
    for line in entry.splitlines():
        if "fusion(" not in line and "parameter(" not in line:
            continue  # names parts of what a fusion gives
        result = line.split(" = ")[1].split("fusion(")[0].split("parameter(")[0]
        for kind, shape in re.findall(rf"(\w+)\[({KEYS}[\d,]*)\]", result):
            item = {"pred": 1, "s32": 4, "u32": 4}[kind]
            between += 2 * item * math.prod(map(int, shape.split(",")))
    buckets = directory.CHOICES * directory.WAYS * 2 * 4
    found = between / KEYS + buckets + 4
    lookup = 4 + 2 * WIDTH * 4  # each row is read and written
    assert buckets < found <= lookup / 4
    print(f"{found:.0f} bytes to find a key, {lookup} to look its row up")


def test_an_index_is_changed_in_place():
    check_index_in_place(h100_mesh(1).devices.flat[0])


def test_a_swap_moves_rows_in_place():
    check_swap(h100_mesh(1), WIDTH, slots=8_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
def test_t7_compiles_with_more_rows_than_32_bits_number(gpus):
    """Five billion rows of one table in host memory; the plan is the planner's."""
    plan = t7_of(gpus, 2e12)
    mlp = {"bottom": (512, 256, 128), "top": (1024, 1024, 512, 256, 1), "rank": 256}
    programs = compile_cached(plan, h100_mesh(1, gpus), ej.SGD(0.1), **mlp)
    for compiled in programs:
        memory = compiled.memory_analysis()
        taken = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        assert taken < 80e9
        print(f"{taken / 1e9:.1f} GB a device")
    assert plan.prediction is not None
    print(f"{max(plan.prediction.device_bytes) / 1e9:.1f} GB by the plan")
