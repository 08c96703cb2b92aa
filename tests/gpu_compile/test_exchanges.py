"""What travels how in steps that are compiled for H100s, and what is done meanwhile."""

import functools
from collections import Counter

import jax
import pytest

import embark_jax as ej
from embark_jax.plans.options import ExchangeName
from tests.collectives import collectives
from tests.compiled import compile_step, h100_mesh

GPUS_PER_NODE, BATCH_PER_DEVICE, WIDTH = 8, 1024, 128
FEATURES = (
    ej.FeatureSpec("reduced", hotness=3),
    ej.FeatureSpec("unique", hotness=2),
    ej.FeatureSpec("replicated", hotness=2),
)


@functools.cache
def planned(nodes: int, exchange: ExchangeName) -> ej.Plan:
    """A table of each cluster, two of them with a row shard a device."""
    machines = ej.fleets.dgx_h100(nodes)
    devices = machines.devices
    return ej.plan(
        [
            ej.TableSpec("reduced", 3_000_000, WIDTH),
            ej.TableSpec("unique", 1_000_000, WIDTH),
            ej.TableSpec("replicated", 100, WIDTH),
        ],
        FEATURES,
        machines,
        BATCH_PER_DEVICE * devices,
        forced={
            "reduced": ej.ForcedPlacement("rb", devices, exchange=exchange),
            "unique": ej.ForcedPlacement("ub", devices, exchange=exchange),
            "replicated": ej.ForcedPlacement("dp"),
        },
    )


@functools.cache
def compiled(nodes: int, exchange: ExchangeName = "flat"):
    """A step of that plan."""
    return compile_step(
        planned(nodes, exchange),
        h100_mesh(nodes),
        ej.RowwiseAdagrad(0.1),
        bottom=(512, 256, 128),
        top=(1024, 512, 1),
        rank=64,
    )[0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_exchanges_and_dense_layers_overlap(nodes):
    """In the schedule: while rows travel, the bottom layers, or on two nodes sorts of
    the next batch, and the lookups of replicated tables; then all gradients that every
    device has are summed at once; and while row gradients travel, the dense layers are
    updated and checked."""
    found = collectives(compiled(nodes).as_text())
    large = [each for each in found if each.buffer_bytes > 2**20]
    kinds = [each.kind for each in large]
    assert kinds == [*2 * ["all-to-all"], "all-reduce", *2 * ["all-to-all"]]
    exchanges = [each for each in large if each.kind == "all-to-all"]
    assert all(each.between for each in exchanges)
    of_rows, of_gradients = (
        {name.removeprefix("jit(train_step)/") for each in two for name in each.between}
        for two in (exchanges[:2], exchanges[2:])
    )
    beside = {1: "jvp(dense)/dot_general", 2: "sort/route/"}[nodes]
    assert any(name.startswith(beside) for name in of_rows)
    assert any(name.startswith("lookup/") for name in of_rows)
    assert any(name.startswith("checks") for name in of_gradients)


@pytest.mark.parametrize("dense", ["replicated", "zero1"])
def test_dense_gradients_travel_in_half_the_bytes(dense):
    """All of them, with zero1 in shares where these are equal; with them the loss, in
    three numbers of each device, and whether rows are finite. In float32 stay the
    gradients of the replicated table, whose format the collection has."""
    sent = {}
    for wire in ("float32", "bfloat16"):
        step, state = compile_step(
            planned(1, "flat"),
            h100_mesh(1),
            ej.RowwiseAdagrad(0.1),
            bottom=(512, 256, 128),
            top=(1024, 512, 1),
            rank=64,
            dense=dense,
            dense_wire=wire,
        )
        sent[wire] = Counter()
        for each in collectives(step.as_text()):
            if each.kind in ("all-reduce", "reduce-scatter"):
                (dtype,) = each.types
                scattered = GPUS_PER_NODE if each.kind == "reduce-scatter" else 1
                sent[wire][dtype] += scattered * each.buffer_bytes
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert sent["bfloat16"]["bf16"] == 2 * (parameters + 3 * GPUS_PER_NODE + 1)
    assert sent["float32"]["bf16"] == 0
    assert sent["bfloat16"]["f32"] == 4 * 100 * WIDTH
    assert sent["float32"]["f32"] == 4 * (parameters + 1 + 1 + 100 * WIDTH)


def test_what_the_next_batch_needs_travels_before_the_sums():
    """Its ids and its capacities; the latter beside the backward pass."""
    found = collectives(compiled(1).as_text())
    sums = [each.buffer_bytes > 2**20 for each in found if each.kind == "all-reduce"]
    assert sums == [False, True]
    capacities, gradients = (each for each in found if each.kind == "all-reduce")
    small = [each for each in found if each.buffer_bytes < 2**20]
    assert len(small) == 3
    assert all(found.index(each) < found.index(gradients) for each in small)
    assert any("transpose(jvp(dense))" in name for name in capacities.between)


def test_a_hierarchical_exchange_sends_fewer_bytes_between_nodes():
    """Of partial sums and their gradients, with a row shard on each GPU, an eighth; ids
    and unique rows take as many as flat."""
    nodes, sent = 2, {}
    everyone = tuple(range(nodes * GPUS_PER_NODE))
    for exchange, groups in (
        ("flat", [everyone]),
        ("hierarchical", [everyone[:GPUS_PER_NODE], (0, GPUS_PER_NODE)]),
    ):
        found = collectives(compiled(nodes, exchange).as_text())
        exchanged = [each for each in found if each.kind == "all-to-all"]
        # Ids, rows and gradients of both tables.
        assert Counter(each.group for each in exchanged) == dict.fromkeys(groups, 6)
        between = [each.node_bytes(GPUS_PER_NODE)[1] for each in exchanged]
        sent[exchange] = Counter(each for each in between if each)
    sums_bytes = BATCH_PER_DEVICE * GPUS_PER_NODE * (nodes - 1) * WIDTH * 4
    assert sent["flat"] - sent["hierarchical"] == {sums_bytes: 2}
    assert sent["hierarchical"] - sent["flat"] == {sums_bytes / GPUS_PER_NODE: 2}
