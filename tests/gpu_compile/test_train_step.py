"""The whole train step compiles for H100s, with no GPU present."""

import re

import pytest

import embark_jax as ej
from embark_jax.embedding.collection import index_of
from tests.compiled import bytes_per_device, compile_step, h100_mesh
from tests.thorough import thorough

BATCH_PER_DEVICE = 512
UNIQUE_KERNEL = "number_segments_kernel"


def moved_bytes(planned) -> int:
    """Rows and partial sums that a device may exchange in a step, in float32."""
    total = 0
    for storage in planned.storages:
        if not storage.replicated:
            (block,) = index_of(planned, storage).blocks
            places = (
                planned.capacities[storage.name]
                + block.partial_sums.ranks * BATCH_PER_DEVICE
            )
            total += planned.devices * places * storage.width * 4
    return total


def placement_of(table: ej.TableSpec, devices: int) -> ej.ForcedPlacement:
    """By size alone, so that what is compiled does not change with the planner."""
    if table.rows < 2_000:
        return ej.ForcedPlacement("dp")
    shards = devices if table.rows > 1_000_000 else 1
    return ej.ForcedPlacement("rb", shards, hot_rows=0)


@pytest.mark.parametrize(
    ("nodes", "implementation"),
    thorough(
        [(nodes, name) for nodes in (1, 16) for name in ("xla", "mosaic_gpu")],
        [(1, "mosaic_gpu"), (16, "xla")],
        unpack=True,
    ),
)
def test_mlperf_dlrm_dcnv2_compiles(nodes, implementation):
    """97 GiB of tables in all three clusters, one with column shards."""
    tables, features = ej.load_table_list("dlrm_dcnv2").specs()
    planned = ej.plan(
        tables,
        features,
        ej.fleets.dgx_h100(nodes),
        BATCH_PER_DEVICE * 8 * nodes,
        forced={t.name: placement_of(t, 8 * nodes) for t in tables}
        | {
            "t0": ej.ForcedPlacement("ub", 8, hot_rows=0),
            "t9": ej.ForcedPlacement("rb", 4, 2, hot_rows=0),
        },
        zipf_exponent=1.1,
    )
    clusters = {storage.kind.cluster for storage in planned.storages}
    assert clusters == {"dp", "rb", "ub"}
    compiled, state = compile_step(
        planned,
        h100_mesh(nodes),
        ej.RowwiseAdagrad(0.01),
        bottom=(512, 256, 128),
        top=(1024, 1024, 512, 256, 1),
        rank=512,
        implementation=implementation,
    )
    memory = compiled.memory_analysis()
    tables_bytes = bytes_per_device(state.storages)
    updated = tables_bytes + bytes_per_device(state.embedding_state)
    assert memory.alias_size_in_bytes >= updated
    assert memory.argument_size_in_bytes < ej.fleets.dgx_h100().device.memory_bytes
    # Temporaries follow what the batch moves, not the size of the tables.
    assert memory.temp_size_in_bytes < 3 * moved_bytes(planned) < tables_bytes
    hlo = compiled.as_text()
    exchanges = re.findall(r"= \S+ all-to-all(?:-start)?\(|all-to-all-start\(", hlo)
    assert exchanges, "nothing is exchanged"
    kernels = hlo.count('custom_call_target="mosaic_gpu')
    # A lookup, sums and an update at least of each storage.
    least = 3 * len(planned.storages) if implementation == "mosaic_gpu" else 0
    assert kernels >= least
    assert bool(kernels) == (implementation == "mosaic_gpu")
    assert (UNIQUE_KERNEL in hlo) == (implementation == "mosaic_gpu")


def test_ids_are_made_unique_by_a_kernel_on_one_gpu():
    table = ej.TableSpec("t0", 10_000_000, 64)
    planned = ej.plan(
        [table],
        [ej.FeatureSpec("f0", "t0", 20)],
        ej.fleets.dgx_h100(1, 1),
        BATCH_PER_DEVICE,
        forced={"t0": ej.ForcedPlacement("ub", 1)},
    )
    compiled, _ = compile_step(
        planned,
        h100_mesh(1, 1),
        ej.RowwiseAdagrad(0.01),
        bottom=(64,),
        top=(64, 1),
        rank=16,
        implementation="mosaic_gpu",
    )
    lines = compiled.as_text().splitlines()
    # For what is sent, and for the groups that a route keeps of what is received.
    assert sum(" custom-call(" in each and UNIQUE_KERNEL in each for each in lines) == 2
