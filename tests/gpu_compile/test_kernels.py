"""Every Mosaic GPU kernel compiles for an H100, with no GPU present."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import (
    begins_segment,
    check,
    group_rows,
    init_states,
    number_segments,
    pooled_lookup,
    sum_and_update,
    update_rows,
)
from embark_kernels.optimizers import ROW_OPTIMIZERS
from jax.sharding import SingleDeviceSharding

import embark_jax as ej
from experiments.gpu import check_cases
from experiments.step_bytes.hlo import Program
from tests.compiled import h100_mesh
from tests.thorough import thorough

ROWS, BATCH, HOTNESS = 20_000_000, 1024, 10
WIDTHS = [8, 24, 96, 128, 200, 256, 1024]
KERNEL = 'custom_call_target="mosaic_gpu'


@pytest.fixture(scope="module")
def on_h100():
    """Shapes on a GPU that is not there."""
    device = h100_mesh(1, 1).devices.item()
    sharding = SingleDeviceSharding(device)
    return lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def update_from_bags(table, states, ids, gradient, optimizer, weights=None):
    """Updates rows from the gradient of one bag a sample."""
    options = {"implementation": "mosaic_gpu"}
    bag = jnp.arange(ids.size, dtype=jnp.int32) // ids.shape[1]
    weights = None if weights is None else weights.reshape(-1)
    groups = group_rows(ids.reshape(-1), len(table), **options)
    given = table, states, groups, gradient, bag, optimizer, weights
    return sum_and_update(*given, **options)


def compile_for(function, *shapes, donate=()):
    compiled = jax.jit(function, donate_argnums=donate).lower(*shapes).compile()
    return compiled, compiled.as_text().count(KERNEL)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_pooled_lookup_compiles(on_h100, width, dtype):
    """Weighted, from a table above 4 GiB where wide."""
    compiled, kernels = compile_for(
        lambda *args: pooled_lookup(*args, hotness=(3, 7), implementation="mosaic_gpu"),
        on_h100((ROWS, width), dtype),
        on_h100((BATCH, HOTNESS), jnp.int32),
        on_h100((BATCH, HOTNESS), jnp.float32),
    )
    assert kernels == 1
    assert compiled.memory_analysis().temp_size_in_bytes < 2**20


@pytest.mark.parametrize("width", thorough([None, 16, 96, 128], [None, 16, 128]))
def test_cases_of_the_emulator_compile(on_h100, width):
    """Without a width, and with one of each layout of rows."""
    for case in check_cases.cases(width):
        shapes = jax.tree.map(
            lambda x: on_h100(np.shape(x), np.asarray(x).dtype), case.arguments
        )
        donate = tuple(range(case.updated))
        _, kernels = compile_for(case.function, *shapes, donate=donate)
        assert kernels >= 1, case.fields


@pytest.mark.parametrize(("width", "dtype"), check.PROGRAMS)
def test_the_check_at_the_start_compiles(on_h100, width, dtype):
    program, arguments, _ = check.make_program(width, dtype)
    shapes = [on_h100(each.shape, each.dtype) for each in arguments]
    _, kernels = compile_for(program, *shapes)
    assert kernels == 8  # some operations take two


def test_plain_xla_writes_no_gathered_rows(on_h100):
    """Of a storage whose bags are of several lengths, some of them long."""
    width, hotness = 128, (100,) * 25 + (50,) * 20 + (3,) * 30
    compiled, kernels = compile_for(
        lambda *args: pooled_lookup(*args, hotness=hotness, implementation="xla"),
        on_h100((ROWS, width), jnp.float32),
        on_h100((BATCH, sum(hotness)), jnp.int32),
    )
    assert kernels == 0
    pooled_bytes = BATCH * len(hotness) * width * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * pooled_bytes


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "optimizer",
    [
        *(rule(0.1) for rule in ROW_OPTIMIZERS.values()),
        ej.LazyAdam(0.1, weight_decay=0.3),
    ],
    ids=check_cases.name_of,
)
def test_update_rows_is_in_place(on_h100, optimizer, width):
    dtype = jnp.bfloat16 if width == 256 else jnp.float32
    table = on_h100((ROWS, width), dtype)
    states = jax.eval_shape(lambda: init_states(optimizer, table))
    states = {name: on_h100(each.shape, each.dtype) for name, each in states.items()}
    compiled, kernels = compile_for(
        lambda *args: update_rows(*args, optimizer, implementation="mosaic_gpu"),
        table,
        states,
        on_h100((BATCH,), jnp.int32),
        on_h100((BATCH, width), jnp.float32),
        donate=(0, 1),
    )
    assert kernels == 1
    updated = sum(
        np.prod(each.shape) * each.dtype.itemsize for each in (table, *states.values())
    )
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == updated
    assert memory.temp_size_in_bytes < 2**20


@pytest.mark.parametrize("width", [32, 128])
def test_rows_of_16_bits_are_rounded_where_they_are_written(on_h100, width):
    optimizer, options = ej.RowwiseAdagrad(0.1), {"implementation": "mosaic_gpu"}

    def update(table, states, rows, gradients, noise):
        groups = group_rows(rows, ROWS, **options)
        summed = table, states, groups, gradients, jnp.arange(BATCH), optimizer
        return sum_and_update(*summed, noise=noise, **options)

    compiled, kernels = compile_for(
        update,
        on_h100((ROWS, width), jnp.bfloat16),
        {"accumulator": on_h100((ROWS, 1), jnp.float32)},
        on_h100((BATCH,), jnp.int32),
        on_h100((BATCH, width), jnp.float32),
        on_h100((BATCH,), jnp.uint32),
        donate=(0, 1),
    )
    assert kernels == 3  # segments are numbered, to find their rows' noise
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == ROWS * (2 * width + 4)
    assert memory.temp_size_in_bytes < 2**20


def test_unique_moves_at_most_four_times_the_ids_beside_the_sort(on_h100):
    ids = 2**22
    compiled, kernels = compile_for(
        lambda key: number_segments(
            begins_segment(key), ids, implementation="mosaic_gpu"
        ),
        on_h100((ids,), jnp.uint32),
    )
    assert kernels == 1
    moved = sum(each.bytes for each in Program(compiled.as_text()).moved())
    assert moved <= 4 * 4 * ids


def test_the_whole_update_uses_no_atomics(on_h100):
    width, optimizer = 128, ej.RowwiseAdagrad(0.1)
    ids = BATCH * HOTNESS
    compiled, kernels = compile_for(
        lambda table, states, ids, gradient: update_from_bags(
            table, states, ids, gradient, optimizer
        ),
        on_h100((ROWS, width), jnp.float32),
        {"accumulator": on_h100((ROWS, 1), jnp.float32)},
        on_h100((BATCH, HOTNESS), jnp.int32),
        on_h100((BATCH, width), jnp.float32),
        donate=(0, 1),
    )
    assert kernels == 2  # of segments that go on in other blocks, and of all
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == ROWS * (width + 1) * 4
    # Integers; the summed gradients are nowhere.
    assert memory.temp_size_in_bytes < ids * width * 4 / 2
    assert "f32[" not in "".join(
        line for line in compiled.as_text().splitlines() if " scatter(" in line
    )


def test_programs_of_narrow_rows_wait_for_no_other(on_h100, monkeypatch, capfd):
    """Each is a warp. The only barrier of a whole block is before their first jump."""
    width, options = 40, {"implementation": "mosaic_gpu"}
    table = on_h100((ROWS, width), jnp.bfloat16)
    ids = on_h100((BATCH, HOTNESS), jnp.int32)
    weights = on_h100((BATCH, HOTNESS), jnp.float32)
    gradient = on_h100((BATCH, width), jnp.float32)
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTX", "1")
    compile_for(lambda *args: pooled_lookup(*args, **options), table, ids, weights)
    for rule in ej.RowwiseAdagrad(0.1), ej.LazyAdam(0.1):
        states = {
            name: on_h100((ROWS, state_width), jnp.float32)
            for name, state_width in rule.state_widths(width).items()
        }

        def update_all(table, states, ids, gradient, weights, noise, rule=rule):
            bags = table, states, ids, gradient, rule, weights
            table, states = update_from_bags(*bags)
            listed = table, states, ids[:, 0], gradient, rule
            return update_rows(*listed, noise=noise, **options)

        noise = on_h100((BATCH,), jnp.uint32)
        compile_for(update_all, table, states, ids, gradient, weights, noise)
    kernels = capfd.readouterr().out.split(".entry ")[1:]
    read_only = "sum_bags", "sum_begun_before"
    assert all(any(code.startswith(name) for code in kernels) for name in read_only)
    for code in kernels:
        _, after_jump = re.split(r"\bbra\b", code, maxsplit=1)
        assert not re.findall(r"\bbar(?:rier)?\.(?!warp)", after_jump)
        # Those that write what they have read wait for their own reads.
        assert ("bar.warp.sync" in code) != code.startswith(read_only)


def test_offsets_of_rows_have_64_bits(on_h100, monkeypatch, capfd):
    """A table may have more than 2**31 values. A row's offset is its number times the
    width, in values or bytes; the code has no such product of 32 bits."""
    # So few ids that no segment goes on in another block: numbers of blocks are small.
    width, batch = 1024, 16
    table, rule = on_h100((ROWS, width), jnp.float32), ej.SGD(0.1)
    ids = on_h100((batch, HOTNESS), jnp.int32)
    gradient = on_h100((batch, width), jnp.float32)
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTX", "1")
    options = {"implementation": "mosaic_gpu"}
    compile_for(lambda *args: pooled_lookup(*args, **options), table, ids)
    compile_for(
        lambda table, ids, gradient: update_from_bags(table, {}, ids, gradient, rule),
        table,
        ids,
        gradient,
    )
    kernels = capfd.readouterr().out.split(".entry ")[1:]
    lookup, _, update = kernels  # and sums of what began in other blocks: nothing
    for code in (lookup, update):
        # The compiler knows the largest number of a block.
        block = re.findall(r"mov.u32\s+(%r\d+), %ctaid.x", code)
        factor = rf"{width}|{4 * width}"
        products = re.findall(rf"\bmul(\S*)\s.*, (%\w+), (?:{factor});", code)
        products += re.findall(r"\bshl(\S*)\s.*, (%\w+), (?:10|12);", code)
        assert products
        narrow = [of for form, of in products if not re.search("wide|64", form)]
        assert set(narrow) <= set(block)
