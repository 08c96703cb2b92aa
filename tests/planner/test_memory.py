"""The memory of a step, worked by hand; ``gpu_compile`` compares compiled programs."""

import dataclasses
import json
import re

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.planner import Workload, plan_for, price
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.dense import DenseLoad
from embark_jax.planner.request.workload import TableUse
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.solve import least_bytes
from embark_jax.plans import fleet
from embark_jax.plans.placement import Placement, StorageKind
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner import published
from tests.planner.toy import h100, one
from tests.runs import embark

DEVICE = fleet.DeviceSpec("toy", 1e9, 1e9, 1e9, 2e9, 1e9)
TOY = fleet.Fleet(DEVICE, nodes=2, gpus_per_node=4)
WORKLOAD = Workload(TOY, batch_size=80)  # 10 samples a device, row-wise Adagrad
DENSE = DenseLoad(parameters=1000, states=1, activation_bytes=600)


def changed(**changes):
    return Memory(dataclasses.replace(WORKLOAD, **changes))


def test_what_storages_take():
    memory = Memory(WORKLOAD)
    assert memory.limit_bytes == 0.9e9
    assert memory.row_bytes(16) == 4 * 17
    # A row in 16 bits, and one float32 of the optimizer.
    in_16_bits = StorageKind("rb", 16, dtype="bfloat16")
    assert memory.of_storage(in_16_bits)[0][Peak.ROWS] == 2 * 16 + 4
    # Partial sums of 16 columns for 10 samples of 8 devices, or of 2 nodes, and rows of
    # 16 columns for each of 8 devices; there and received.
    sum_bytes = 2 * 4 * 16 * 10 * 8
    in_rb, in_ub, staged = (
        memory.of_storage(StorageKind(cluster, 16, exchange=exchange))[1]
        for cluster, exchange in (
            ("rb", "flat"),
            ("ub", "flat"),
            ("rb", "hierarchical"),
        )
    )
    updated = {Peak.UPDATED: 4 * 16}
    assert in_rb == updated | {Peak.SUMS: sum_bytes}
    assert staged == in_rb | {Peak.NODE: sum_bytes / 4}
    assert in_ub == updated | {Peak.IDS: 2 * 4 * 16 * 8}


def test_what_routes_take():
    in_rb, split = StorageKind("rb", 16), StorageKind("rb", 16, split=True)
    memory = Memory(WORKLOAD)
    # Four values for each of 8 devices, of this step and of the next; a weight; how
    # squares find their way back.
    assert memory.of_storage(in_rb)[0][Peak.IDS] == 2 * 4 * 4 * 8
    assert (
        memory.of_storage(in_rb._replace(weighted=True))[0][Peak.IDS] == 2 * 5 * 4 * 8
    )
    assert memory.of_storage(split)[0][Peak.IDS] == 2 * 5 * 4 * 8
    assert changed(optimizer="sgd").of_storage(split)[0][Peak.IDS] == 2 * 4 * 4 * 8


def test_what_a_table_takes_on_every_device():
    use = TableUse(TableSpec("t", 1000, 8), rows=1000, hotness=3)
    memory = Memory(WORKLOAD)
    # 10 samples of 3 ids, of two batches, and a pooled row of 8 columns.
    sample_bytes = 2 * 4 * 3 + 4 * 8
    in_rb = memory.everywhere_bytes(one(use, WORKLOAD, "rb"))
    assert in_rb.tolist() == [[10 * sample_bytes]] * 2
    # In UB each column shard of each id has a place and a group.
    in_ub = one(use, WORKLOAD, "ub", 1, 2)
    in_ub_bytes = 10 * (sample_bytes + 2 * 2 * 4 * 3 * 2)
    assert memory.everywhere_bytes(in_ub).tolist() == [[in_ub_bytes]] * 2
    # In DP rows of 9 values; in the update also gradients with a flag of the 240 rows
    # that a batch touches.
    held = 1000 * 36 + 10 * (sample_bytes + 2 * 2 * 4 * 3)
    in_dp = memory.everywhere_bytes(one(use, WORKLOAD, "dp"))
    assert in_dp.tolist() == [[held], [held + 240 * 36]]


def test_kernels_read_gradients_of_sequences_in_one_array():
    table = TableSpec("t", 1000, 8)
    events = {"hotness": 3, "bags": 3, "sequence": True, "summed": False}
    use = TableUse(table, rows=1000, **events)

    def joined_bytes(use, cluster):
        one_table = one(use, changed(kernels="mosaic_gpu").workload, cluster)
        kernels, plain = (
            changed(kernels=name).everywhere_bytes(one_table)
            for name in ("mosaic_gpu", "xla")
        )
        return (kernels - plain).tolist()

    # 10 samples of 3 events, rows of 8 float32.
    assert joined_bytes(use, "dp") == [[0], [960]]
    assert joined_bytes(use, "rb") == [[0], [0]]  # summed by the owners
    # Sums are sent and received when it is gone: of 30 ids more, of 4 rows less.
    assert joined_bytes(use, "ub") == [[0], [0]]
    rare = TableUse(dataclasses.replace(table, rows=4), rows=4, **events)
    assert joined_bytes(rare, "ub") == [[0], [960 - 2 * 4 * 32]]


@pytest.mark.parametrize(
    ("parallelism", "held", "gradients", "a_sample"),
    [
        ("replicated", 4 * 1000 * 2, 4 * 1000, 600),
        ("zero1", 4 * 1000 * (1 + 1 / 8), 4 * 1000, 600),
        ("tensor", 4 * 250 * 2, 4 * 250, 600 * 4),
    ],
)
def test_what_dense_layers_take(parallelism, held, gradients, a_sample):
    """Parameter and state, and gradient; of the samples of a node where that is
    split."""
    dense = dataclasses.replace(DENSE, parallelism=parallelism)
    assert dense.held_bytes(TOY) == held
    assert dense.gradient_bytes(TOY) == gradients
    assert changed(dense=dense).activation_bytes == 10 * a_sample


def placed(cluster, rows, workload):
    """The bytes of one table of 8 columns, on all devices, and of their parts."""
    table, feature = TableSpec("a", rows, 8), FeatureSpec("a", hotness=3)
    placement = Placement(table, cluster, 8, devices=tuple(range(8)))
    priced = price([placement], [feature], workload)
    peaks = priced.peaks[:, 0]
    capacity, slots, updated = peaks[[Peak.IDS, Peak.ROWS, Peak.UPDATED]]
    held = priced.loads.everywhere_bytes[0] + 36 * slots + 2 * 4 * 4 * 8 * capacity
    assert updated <= min(8 * capacity, slots)
    return priced.objective.bytes(priced.loads), held, 8 * capacity, updated


@pytest.mark.parametrize("rows", [80, 8000])
def test_the_larger_of_two_times_counts(rows):
    total, held, _, updated = placed("rb", rows, WORKLOAD)
    # Gradients of updated rows; 8 row shards of a bag for 10 samples of 8 devices are
    # one sum a device, 32 bytes wide.
    update = updated * 32 + 2 * 32 * 10 * 8
    assert total == pytest.approx(held + update)
    small = dataclasses.replace(DENSE, activation_bytes=1)
    with_small = placed("rb", rows, dataclasses.replace(WORKLOAD, dense=small))[0]
    assert with_small == pytest.approx(held + update + 12_000)
    large = dataclasses.replace(DENSE, activation_bytes=10**6)
    with_large = placed("rb", rows, dataclasses.replace(WORKLOAD, dense=large))[0]
    assert with_large == pytest.approx(held + 8_000 + 10**7)


def test_rows_there_and_back_in_ub():
    total, held, places, updated = placed("ub", 8000, WORKLOAD)
    assert total == pytest.approx(held + updated * 32 + 2 * places * 32)


def test_micro_batches_cut_activations_alone():
    """Which are there beside a sum of the parameters' gradients, of 4,000 bytes."""
    large = dataclasses.replace(DENSE, activation_bytes=10**6)
    whole, cut = (
        dataclasses.replace(WORKLOAD, dense=large, micro_batches=count)
        for count in (1, 5)
    )
    saved = placed("rb", 8000, whole)[0] - placed("rb", 8000, cut)[0]
    assert saved == pytest.approx(0.8 * 10**7 - 4_000)


def test_what_does_not_fit_for_its_dense_layers_fits_in_smaller_batches():
    tables, features = [TableSpec("a", 1000, 8)], [FeatureSpec("a", hotness=3)]
    # 10 samples of 170 MB on a device of which 900 MB may be taken: 5 of them fit.
    dense = dataclasses.replace(DENSE, activation_bytes=170e6)
    short = dataclasses.replace(WORKLOAD, dense=dense)
    with pytest.raises(ValueError, match="memory is short on all 8 devices") as error:
        plan_for(short, tables, features, advise=True)
    assert "exchange buffers and dense layers need 1.7 GB or more" in str(error.value)
    assert "a batch of 40 (" in str(error.value)
    smaller = dataclasses.replace(WORKLOAD, batch_size=40, dense=dense)
    plan_for(smaller, tables, features)


def test_a_forced_placement_that_does_not_fit_is_named():
    tables = [ej.TableSpec("large", 10**9, 64), ej.TableSpec("small", 100, 64)]
    features = [ej.FeatureSpec(table.name, hotness=1) for table in tables]
    model = tables, features, ej.fleets.dgx_h100(), 1024
    ej.plan(*model)
    whole = {"large": ej.ForcedPlacement("dp")}
    with pytest.raises(
        ValueError, match="found that fits, with the forced placement of large"
    ):
        ej.plan(*model, forced=whole)


def test_a_target_for_memory_is_kept_and_costs_time():
    tables, features = published.model("DLRM-DCNv2")
    large = {table.name for table in tables if table.rows > 10**4}
    tables = [table for table in tables if table.name in large]
    features = [feature for feature in features if feature.table in large]
    model = (tables, features, h100(), 65_536)
    free = ej.plan(*model).prediction
    target_gb = 0.5 * max(free.device_bytes) / 1e9
    tight = ej.plan(*model, memory_gb=target_gb).prediction
    assert max(tight.device_bytes) <= 1e9 * target_gb < max(free.device_bytes)
    assert tight.step_ms > free.step_ms
    with pytest.raises(ValueError, match="the memory_gb asked for"):
        ej.plan(*model, memory_gb=0.5)
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="memory_gb is"):
            ej.plan(*model, memory_gb=bad)


@pytest.mark.slow
def test_the_command_keeps_the_target():
    options = ("plan", "dlrm_dcnv2", "fleet=dgx-h100", "embedding.memory_gb=45")
    record = json.loads(embark(*options, "--json").out)
    assert max(each["memory_bytes"] for each in record["per_device"]) <= 45e9


def test_a_target_that_is_too_small_is_told_the_least():
    """6.8 GB of float32 rows and accumulators on two devices are 3.4 GB on each."""
    tables, features = [TableSpec("a", 10**8, 16)], [FeatureSpec("a")]
    two = {"fleet": ej.fleets.dgx_h100(gpus_per_node=2), "batch": 1024}
    with pytest.raises(ValueError, match="memory_gb asked for") as error:
        ej.plan(tables, features, **two, memory_gb=1)
    least_gb = re.search(r"dense layers need (\S+) GB or more", str(error.value))
    assert least_gb
    assert 3.4 <= float(least_gb[1]) < 3.5
    ej.plan(tables, features, **two, memory_gb=float(least_gb[1]) + 0.1)


def test_no_plan_takes_less_than_the_bound_says():
    """What is refused for its memory has no plan."""
    rng = np.random.default_rng(0)
    tables = [TableSpec(f"t{i}", int(rng.integers(10, 10**5)), 16) for i in range(6)]
    features = [FeatureSpec(t.name, hotness=int(rng.integers(1, 20))) for t in tables]
    workload = dataclasses.replace(WORKLOAD, batch_size=800, dense=DENSE)
    instance = Instance(tables, features, {}, workload)
    found = plan_for(workload, tables, features).prediction
    assert 0 < least_bytes(instance) <= found.device_bytes[0]
