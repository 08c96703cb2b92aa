"""What plain XLA moves, worked by hand: its sums of row gradients are in memory.

The ids of each sum are those of ``test_cost.py``.
"""

import dataclasses

import numpy as np
import pytest

from embark_jax.planner import Workload, plan_for, price
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.work import Peak
from embark_jax.plans import fleet
from embark_jax.plans.placement import Placement, StorageKind
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner.toy import DEVICE, IDEAL, MODEL, USE, WORKLOAD, one

PLAIN = dataclasses.replace(WORKLOAD, kernels="xla")
XLA, XLA_ROW_WISE = (
    ProgramModel(dataclasses.replace(PLAIN, optimizer=optimizer))
    for optimizer in ("sgd", "rowwise_adagrad")
)


def added_bytes(terms, sums, width):
    """Bytes that are read and written to add to zeroed sums, one value at a time."""
    moved = sums * width * 4  # zeroes
    if terms < 2 * sums:
        return moved + terms * 2 * width * 4
    for _ in range(4):  # digits: keys and positions move, the key is counted
        moved += terms * (2 * (4 + 4) + 1)
    return moved + sums * 2 * width * 4


def rows_bytes(model, candidate):
    """Bytes that every device moves in memory, but for sorts and exchanges."""
    return sum(
        float(np.sum(work.memory_bytes))
        for work in model.everywhere_work(candidate)
        if work.phase != "sort" and work.collective is None
    )


@pytest.mark.parametrize(
    ("rows", "sums"), [(1000, 1.25 * 500 * (1 - (1 - 1 / 1000) ** 240)), (40, 20)]
)
def test_owners_sum_row_gradients_in_plain_xla(rows, sums):
    """Two row shards of 120 ids each; a sum for each unique row of the batch, with
    slack; few rows have fewer sums."""
    use = dataclasses.replace(USE, rows=rows)
    kernels, plain, row_wise = (
        model.owner_ms(one(use, WORKLOAD, "rb", 2))[:, 0]
        for model in (MODEL, XLA, XLA_ROW_WISE)
    )
    # They are read in the update, and for mean squares.
    more = added_bytes(120, sums, 8) + sums * 32
    np.testing.assert_allclose(plain - kernels, [0, more / 1e6, 0, 0])
    assert row_wise[1] - plain[1] == pytest.approx(sums * 32 / 1e6)


def test_owners_in_ub_sum_what_devices_send_in_plain_xla():
    sent = 8 * 1000 * (1 - (1 - 1 / 1000) ** 30)
    candidate = one(USE, WORKLOAD, "ub")
    kernels, plain = (model.owner_ms(candidate)[1, 0] for model in (MODEL, XLA))
    sums = 240  # unique rows with slack would be more than all ids of the batch
    more = added_bytes(sent, sums, 8) + sums * 32
    assert plain - kernels == pytest.approx(more / 1e6, rel=1e-6)


@pytest.mark.parametrize(("ids", "kernels_of_bag"), [(3, 1), (33, 3)])
def test_every_device_sums_the_gradients_that_it_sends_in_plain_xla(
    ids, kernels_of_bag
):
    """10 samples. A kernel adds 16 rows of a bag to the sum of those before."""
    use = dataclasses.replace(USE, hotness=ids)
    lookup = (kernels_of_bag - 1) * 2 * 10 * 32
    unique = 1000 * (1 - (1 - 1 / 1000) ** (10 * ids))
    for cluster, sums in (("ub", unique), ("dp", min(1000, 80 * ids))):
        candidate = one(use, WORKLOAD, cluster)
        kernels, plain = (rows_bytes(model, candidate) for model in (MODEL, XLA))
        # Zeroes are written to what is sent; the kernels write DP's apart from that.
        counted = 2 if cluster == "dp" else 1
        more = added_bytes(10 * ids, sums, 8) - counted * sums * 32
        assert plain - kernels == pytest.approx(lookup + more, rel=1e-6)


def test_what_owners_receive_in_plain_xla():
    """Partial sums are added to; slots are marked, not sorted."""
    for kind, sums, values in (
        (StorageKind("rb", 16), 10 * 8, {"mosaic_gpu": 10, "xla": 43}),
        (StorageKind("ub", 16), 0, {"mosaic_gpu": 12, "xla": 38}),
    ):
        kernels, plain = (model.storage_price(kind) for model in (MODEL, XLA))
        # Zeroed, and read again.
        more_ms = 2 * sums * 16 * 4 / 1e6
        assert plain[Peak.SUMS] - kernels[Peak.SUMS] == pytest.approx(more_ms)
        # To 8 devices; a sort takes 68 bytes.
        more_bytes = 8 * (4 * values["xla"] - 4 * values["mosaic_gpu"] - 68)
        assert plain[Peak.IDS] - kernels[Peak.IDS] == pytest.approx(more_bytes / 1e6)
        assert plain[Peak.USE] == kernels[Peak.USE]


def test_one_device_sums_row_gradients_in_plain_xla():
    alone = dataclasses.replace(WORKLOAD, fleet=fleet.Fleet(DEVICE, efficiency=IDEAL))
    kernels, plain = (
        ProgramModel(dataclasses.replace(alone, kernels=name))
        for name in ("mosaic_gpu", "xla")
    )
    candidate = one(USE, alone, "dp")
    more = rows_bytes(plain, candidate) - rows_bytes(kernels, candidate)
    assert more == added_bytes(240, 240, 8) + 240 * 32


@pytest.mark.parametrize("kernels", ["mosaic_gpu", "xla"])
def test_one_gpu_makes_no_ids_unique(kernels):
    """Compiled steps of one GPU move fewest bytes in DP, of tables of few rows and of
    many: nobody tells it ids, and UB writes gradients to a buffer that goes nowhere."""
    machine = fleet.dgx_h100(1, gpus_per_node=1)
    workload = Workload(machine, 65_536, 1.1, kernels=kernels)
    sizes = {3: 1, 1000: 20, 1_000_000: 5, 4_000_000: 20}
    tables = [TableSpec(f"t{rows}", rows, 128) for rows in sizes]
    features = [FeatureSpec(f"t{rows}", hotness=ids) for rows, ids in sizes.items()]
    made = plan_for(workload, tables, features)
    assert {placement.cluster for placement in made.placements} == {"dp"}
    for table, feature in zip(tables, features, strict=True):
        others = [Placement(table, cluster, 1, 1, (0,)) for cluster in ("rb", "ub")]
        replicated, *sharded = (
            price([each], [feature], workload).step_ms
            for each in (Placement(table, "dp"), *others)
        )
        assert replicated < min(sharded)
