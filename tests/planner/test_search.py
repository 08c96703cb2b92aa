"""Plans: valid, the same every time, no worse with more, and near their bound."""

import functools
import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.config.table_lists import read_table_list
from embark_jax.planner import Workload, plan, plan_for
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.report.plan_record import plan_record
from tests.planner import published
from tests.thorough import thorough

BATCH = 65_536
SMALLER_BATCHES = {("T510", 1): 16_384}
"""Of what hardly fits otherwise."""


@st.composite
def requests(draw):
    tables = [
        TableSpec(
            f"t{i}",
            draw(st.integers(1, 10**6)),
            draw(st.sampled_from([3, 4, 16, 24, 64])),
        )
        for i in range(draw(st.integers(1, 6)))
    ]
    features = [
        FeatureSpec(
            f"f{i}",
            table.name,
            draw(st.integers(1, 20)),
            draw(st.sampled_from(["sum", "none"])),
            draw(st.booleans()),
        )
        for i, table in enumerate(tables)
    ]
    machines = fleet.dgx_h100(
        draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 4]))
    )
    return tables, features, machines, draw(st.sampled_from([0.0, 1.1]))


@hypothesis.given(requests())
@hypothesis.settings(max_examples=15)
def test_every_cell_of_every_table_has_one_place(request):
    tables, features, machines, zipf = request
    planned = plan(tables, features, machines, 1200, zipf_exponent=zipf)
    assert planned.tables == tuple(tables)
    found: dict[tuple[str, int], int] = {}
    for shard in plan_record(planned)["shards"]:
        rows = range(shard["row_start"], shard["row_stop"], shard["row_stride"])
        columns = range(shard["column_start"], shard["column_stop"])
        assert 0 <= shard["device"] < machines.devices
        # DP holds each cell on every device, the others on one.
        copy = shard["device"] if shard["cluster"] == "dp" else 0
        key = (shard["table"], copy)
        found[key] = found.get(key, 0) + len(rows) * len(columns)
    sizes = {table.name: table.rows * table.dim for table in tables}
    assert found == {key: sizes[key[0]] for key in found}
    assert {name for name, _ in found} == set(sizes)
    prediction = planned.prediction
    assert prediction is not None
    assert prediction.lower_bound_ms <= prediction.step_ms
    # Phases end when their fullest device is done, which need not be the same one.
    busiest_ms = max(prediction.device_ms)
    assert busiest_ms <= prediction.step_ms * (1 + 1e-9)
    if machines.devices == 1:
        assert busiest_ms == pytest.approx(prediction.step_ms)
    assert Plan.from_json(planned.to_json()) == planned


def test_predicted_memory_is_that_of_the_storages():
    planned = plan(*published.model("DLRM-DCNv2"), fleet.dgx_h100(), BATCH)
    held_bytes = sum(  # with an accumulator for each row
        4 * storage.slots_per_device * (storage.width + 1)
        for storage in planned.storages
    )
    (allocated,) = set(planned.prediction.device_bytes)
    assert held_bytes <= allocated <= 0.9 * fleet.dgx_h100().device.memory_bytes


def test_the_same_request_gives_the_same_plan():
    tables = [TableSpec(f"t{i}", 10 ** (i + 3), 64) for i in range(5)]
    features = [FeatureSpec(t.name, hotness=i + 1) for i, t in enumerate(tables)]
    one, two = (
        plan(tables, features, fleet.dgx_h100(2), BATCH, zipf_exponent=1.1).to_json()
        for _ in range(2)
    )
    assert one == two


MODELS = thorough(published.GAPS, [("DLRM-DCNv2", 1)])
MISSED = {
    ("T510", 1): "memory is short: the gap is 4.8 %, where a longer search reached 2 %",
    ("T7", 8): "7.7 % since the kernels of a storage have a price; 3 % are expected",
}


@functools.cache
def published_plan(name: str, nodes: int, hot: bool) -> Plan:
    tables, features = published.model(name)
    workload = Workload(
        fleet.dgx_h100(nodes),
        SMALLER_BATCHES.get((name, nodes), BATCH),
        zipf_exponent=published.ZIPF_EXPONENT,
        kernels="mosaic_gpu",
        overlap=True,
    )
    forced = {} if hot else {t.name: ForcedPlacement(hot_rows=0) for t in tables}
    return plan_for(workload, tables, features, forced=forced)


@pytest.mark.whole_search
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_plans_without_hot_rows_are_near_their_bound(model, request):
    if model in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[model], strict=True))
    assert published_plan(*model, False).prediction.gap <= published.GAPS[model]


@pytest.mark.whole_search
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_with_hot_rows_the_bound_is_lower_and_no_plan_is_longer(model):
    without, planned = (published_plan(*model, hot) for hot in (False, True))
    lower_ms = planned.prediction.lower_bound_ms
    assert lower_ms <= without.prediction.lower_bound_ms * (1 + 1e-9)
    assert planned.prediction.step_ms <= without.prediction.step_ms * (1 + 1e-9)
    assert "above the optimum of this cost model" in " ".join(str(planned).split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nodes", "gap"),
    [
        ("T510", 1, 0.12),
        pytest.param(
            "Synthetic-Large",
            16,
            0.06,
            marks=pytest.mark.xfail(
                reason="more numbers of hot rows lower the bound by 2 %, and make this "
                "plan 1.5 % slower, where others get 1 to 9 % faster: the gap is 6.6 %",
                strict=True,
            ),
        ),
    ],
)
def test_plans_of_lists_that_are_hard_are_near_their_bound(name, nodes, gap):
    """T510 fits 8 GPUs in few plans, and the fastest plans need 4 % more memory; the
    bound of Synthetic-Large is lower with the exchange whose plans are slower."""
    listed = published.table_list(name)
    planned = plan(
        *listed.specs(),
        fleet.dgx_h100(nodes),
        listed.batch or BATCH,
        zipf_exponent=listed.zipf_exponent or 0.0,
        optimizer=listed.optimizer or "rowwise_adagrad",
        kernels="mosaic_gpu",
    )
    assert planned.prediction.gap <= gap


def test_what_is_forced_is_kept():
    tables = [TableSpec(name, 1000, 8) for name in "abc"]
    features = [FeatureSpec(table.name) for table in tables]
    forced = {
        "a": ForcedPlacement("ub", 2, 2, (3, 2, 1, 0)),
        "b": ForcedPlacement(column_shards=2),
        "c": ForcedPlacement("dp"),
    }
    machines = fleet.dgx_h100(1, 4)
    a, b, c = plan(tables, features, machines, 64, forced=forced).placements
    assert (a.cluster, a.row_shards, a.column_shards) == ("ub", 2, 2)
    assert a.devices == (3, 2, 1, 0)
    assert b.cluster != "dp"
    assert b.column_shards == 2
    assert c.cluster == "dp"


@pytest.mark.parametrize("rows", [None, 1])
def test_a_forced_owner_has_one_shard(rows):
    """However fast shards of fewer columns would be."""
    tables = [TableSpec("a", 1000, 64), TableSpec("b", 2000, 64)]
    features = [FeatureSpec("a"), FeatureSpec("b")]
    forced = {
        "a": ForcedPlacement("rb", rows, devices=(3,)),
        "b": ForcedPlacement("rb"),
    }
    workload = Workload(fleet.load("dgx-h100", 1, 4), batch_size=65_536)
    placed, _ = plan_for(workload, tables, features, forced=forced).placements
    assert (placed.devices, placed.row_shards, placed.column_shards) == ((3,), 1, 1)


def test_what_does_not_fit_says_what_is_short():
    tables, features = published.model("T7")
    with pytest.raises(ValueError, match="short") as error:
        plan(tables, features, fleet.dgx_h100(), BATCH)
    for part in ("all 8 devices", "72 GB", "GB short", "what would help", "nodes"):
        assert part in str(error.value)


def test_a_table_list_and_the_record_of_a_plan():
    entries = [{"name": "a", "rows": 10_000, "dim": 16, "hotness": 3}]
    planned = plan(
        *read_table_list(json.dumps(entries)).specs(), fleet.dgx_h100(), BATCH
    )
    record = json.loads(json.dumps(plan_record(planned)))
    loads = [device["load_ms"] for device in record["per_device"]]
    assert len(loads) == 8
    assert np.max(loads) == pytest.approx(record["step_ms"])
    assert record["gap"] == pytest.approx(
        record["step_ms"] / record["lower_bound_ms"] - 1
    )


def test_partial_sums_are_added_up_inside_nodes_where_that_is_faster():
    """Four long bags of a table that no node can hold alone, on 8 nodes."""
    table = TableSpec("t", 1_500_000_000, 128)
    features = [FeatureSpec(f"f{i}", "t", 100) for i in range(4)]

    def best(exchange=None):
        forced = {"t": ForcedPlacement("rb", exchange=exchange)}
        machines = fleet.dgx_h100(8)
        request = [table], features, machines, BATCH
        return plan(*request, forced=forced, zipf_exponent=1.1, optimizer="sgd")

    free, flat = best(), best("flat")
    assert free.placements[0].exchange == "hierarchical"
    assert flat.placements[0].exchange == "flat"
    assert free.prediction.step_ms < flat.prediction.step_ms
    assert free.prediction.gap < 0.05
