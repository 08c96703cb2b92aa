"""The ragged exchange: what is there travels, and nothing changes by it.

Only GPUs have the collective; here an emulation stands in for it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import LazyAdam
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from embark_jax.embedding import clusters
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32, Wire
from tests.builders import make_plan
from tests.embedding import problems
from tests.embedding.problems import Problem, check
from tests.thorough import thorough

POISON = 77
"""What a receiver gets where it expects more than was sent."""


def emulated(
    operand,
    output,
    input_offsets,
    send_sizes,
    output_offsets,
    recv_sizes,
    *,
    axis_name,
):
    """What ``lax.ragged_all_to_all`` is documented to do, with a slice a device
    (https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_all_to_all.html)."""
    me, row = lax.axis_index(axis_name), jnp.arange(len(operand))[None]

    def of_all(values):
        return lax.all_gather(values, axis_name)

    # [devices, 1], of the slices for this device.
    first, size, place = (
        of_all(each)[:, me, None]
        for each in (input_offsets, send_sizes, output_offsets)
    )
    source = jnp.arange(len(first))[:, None]
    sent = of_all(operand).at[source, first + row].get(mode="clip")
    there = (row < size).reshape(*sent.shape[:2], *[1] * (operand.ndim - 1))
    sent = jnp.where(there, sent, jnp.asarray(POISON, sent.dtype))
    target = jnp.where(row < recv_sizes[:, None], place + row, len(output))
    return output.at[target].set(sent, mode="drop")


@pytest.fixture
def calls(monkeypatch):
    """Buffers that went through the emulation."""
    seen = []

    def record(operand, *rest, **options):
        seen.append((operand.shape, operand.dtype.name))
        return emulated(operand, *rest, **options)

    monkeypatch.setattr(lax, "ragged_all_to_all", record)
    monkeypatch.setattr(clusters, "has_gpus", lambda mesh: True)
    return seen


@pytest.mark.slow
def test_the_emulation_does_as_documented():
    """The example of JAX's documentation."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    found = jax.shard_map(
        lambda *args: emulated(*args, axis_name="x"),
        mesh=mesh,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec("x"),
    )(
        jnp.array([1, 2, 2, 3, 4, 0]),
        jnp.zeros(8, int),
        jnp.array([0, 1, 0, 1]),
        jnp.array([1, 2, 1, 1]),
        jnp.array([0, 0, 1, 2]),
        jnp.array([1, 1, 2, 1]),
    )
    np.testing.assert_array_equal(found, [1, 3, 0, 0, 2, 2, 4, 0])


def make_problem(mesh, wire=FLOAT32, exchange="ragged") -> Problem:
    """Row shards in nodes and across, twice on a device, weights and a sequence; beside
    a hierarchical exchange, which stays padded. The optimizer would move rows that
    nobody asked for."""
    tables = [TableSpec("flat", 29, 4), TableSpec("hierarchical", 7, 4)]
    features = [
        FeatureSpec("bag", "flat", 4, "mean", weighted=True),
        FeatureSpec("sequence", "flat", 3, "none"),
        FeatureSpec("hierarchical", hotness=2),
    ]
    placed = [
        Placement(tables[0], "ub", 4, 1, (7, 0, 7, 2), exchange),
        Placement(tables[1], "ub", 2, 1, (1, 6), "hierarchical"),
    ]
    planned = make_plan(features, placed, *mesh, 16)
    return Problem(planned, LazyAdam(0.1, eps=1.0), 3, wire)


@pytest.mark.parametrize("mesh", thorough([(1, 8), (2, 4), (4, 2), (8, 1)], [(2, 4)]))
def test_it_equals_the_reference(mesh, calls):
    problem = make_problem(mesh)
    check(problem)
    places = 8 * problem.plan.capacities["ub_4_ragged"]
    ids, rows = ((places,), "int32"), ((places, 4), "float32")
    assert calls == [ids, rows, rows]


def test_it_is_padded_where_the_collective_is_missing(calls, monkeypatch):
    monkeypatch.undo()
    check(make_problem((2, 4)))
    assert not calls


@pytest.mark.slow
def test_no_bit_of_compressed_rows_differs_from_padded(calls):
    wire = Wire("bfloat16", "float8_e4m3")
    found = problems.solve(make_problem((2, 4), wire))
    assert [dtype for _, dtype in calls] == ["int32", "uint16", "uint8"]
    calls.clear()
    expected = problems.solve(make_problem((2, 4), wire, exchange="flat"))
    assert not calls
    jax.tree.map(np.testing.assert_array_equal, found, expected)
