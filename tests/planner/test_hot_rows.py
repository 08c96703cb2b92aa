"""Hot rows in plans: what may be said, and what the cost model makes of them."""

import json

import numpy as np
import pytest

from embark_jax.config.reading import load_table_list
from embark_jax.planner import (
    Workload,
    plan,
    plan_for,
    price,
)
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.placement import Placement
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.report import summary
from embark_jax.report.plan_record import plan_record
from embark_jax.statistics.accesses import Statistics, TableAccess
from embark_jax.statistics.histogram import Histogram
from tests.planner import published

TABLE, FEATURE = TableSpec("t", 1000, 8), FeatureSpec("t", hotness=4)
WORKLOAD = Workload(fleet.dgx_h100(1, 4), 400, zipf_exponent=1.1)


def placed(hot_rows, cluster="rb", rows=2):
    return Placement(TABLE, cluster, rows, 2, tuple(range(2 * rows)), hot_rows=hot_rows)


def make_plan(placement):
    priced = price([placement], [FEATURE], WORKLOAD)
    found = priced.capacities()
    return Plan((FEATURE,), (placement,), 1, 4, 400, found, priced.prediction())


@pytest.mark.parametrize(
    ("placement", "problem"),
    [
        (
            placed(-1),
            "hot_rows is -1, must be >= 0 and below its 1000 rows; cluster dp",
        ),
        (placed(1000), "hot_rows is 1000, must be >= 0 and below its 1000 rows"),
        (placed(999), "row_shards is 2, must be at most its 1 cold rows"),
        (
            Placement(TABLE, "dp", hot_rows=5),
            "cluster dp is replicated, takes no hot_rows",
        ),
    ],
)
def test_impossible_hot_rows_are_refused(placement, problem):
    (found,) = placement.problems(4)
    assert found.startswith(f"table 't': {problem}")


def test_a_plan_file_keeps_hot_rows_and_may_be_without_them():
    planned = make_plan(placed(9))
    assert Plan.from_json(planned.to_json()) == planned
    value = json.loads(make_plan(placed(0)).to_json())
    del value["placements"][0]["hot_rows"]
    assert Plan.from_json(json.dumps(value)) == make_plan(placed(0))


def test_hot_rows_lie_on_all_devices_and_cold_rows_on_one():
    planned = make_plan(placed(9, rows=2))
    held = np.zeros((4, 1000, 8), int)
    for shard in plan_record(planned)["shards"]:
        rows = slice(shard["row_start"], shard["row_stop"], shard["row_stride"])
        columns = slice(shard["column_start"], shard["column_stop"])
        held[shard["device"], rows, columns] += 1
    assert (held[:, :9] == 1).all()
    assert (held[:, 9:].sum(axis=0) == 1).all()
    cells = held.reshape(4, -1).sum(axis=1)
    np.testing.assert_array_equal(summary.row_bytes(planned), 4 * cells)
    (told,) = summary.decisions(planned)
    assert told.placement == "RB 2 × 2, 9 rows hot"


def test_fewer_cold_ids_need_smaller_buffers():
    sizes = [
        *(make_plan(placed(hot, "ub")).capacities["ub_4_split"] for hot in (0, 10, 100))
    ]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("rows", [1000, 100_000])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_sample_tells_hot_rows_from_cold_ones(in_order, rows):
    """Of rows that are numbered by frequency it knows the share of any number; of
    others those of the most frequent ones."""
    rng = np.random.default_rng(0)
    hot = rows // 20
    probability = np.arange(1.0, rows + 1) ** -1.2
    if not in_order:
        rng.shuffle(probability)
    probability /= probability.sum()
    counts = rng.multinomial(1_000_000, probability)
    ids = np.flatnonzero(counts)
    sample = Histogram.from_counts(ids, counts[ids])
    assert sample.in_order == in_order
    for begin, end in ((0, hot), (hot, rows)):
        mine = probability[begin:end]
        share = sample.share(rows, begin, end)
        # Of rows as frequent as others, those that chance favours rank before them.
        assert share == pytest.approx(mine.sum(), abs=0.005)
        exact = -np.expm1(1e5 * np.log1p(-mine / mine.sum())).sum()
        found = sample.within(rows, begin, end).expected_unique(end - begin, 1e5)
        assert found == pytest.approx(exact, rel=0.03 if in_order else 0.1)


@pytest.mark.parametrize("cluster", ["rb", "ub", None])
def test_forced_hot_rows_are_kept_and_the_rest_is_searched(cluster):
    other = TableSpec("other", 50, 8)
    features = [FEATURE, FeatureSpec("other")]
    planned = plan(
        [other, TABLE],
        features,
        fleet.dgx_h100(1, 4),
        400,
        forced={"t": ForcedPlacement(cluster, hot_rows=30)},
        zipf_exponent=1.1,
    )
    assert [each.table for each in planned.placements] == [other, TABLE]
    _, found = planned.placements
    assert found.hot_rows == 30
    assert found.cluster == cluster or (cluster is None and found.cluster != "dp")
    # The search priced it as it is priced from the outside.
    assert planned.prediction.lower_bound_ms <= planned.prediction.step_ms
    assert planned.prediction.gap < 0.1


@pytest.mark.slow
def test_where_ids_are_skewed_the_planner_finds_hot_rows():
    listed = load_table_list("dlrm_dcnv2")
    tables, features = listed.specs()

    def planned(exponent, forced=None):
        workload = published.workload(listed, fleet.dgx_h100(1), zipf_exponent=exponent)
        return plan_for(workload, tables, features, forced=forced), workload

    skewed, workload = planned(1.1)
    assert any(each.hot_rows for each in skewed.placements)
    again = price(skewed.placements, features, workload)
    assert skewed.prediction.step_ms == pytest.approx(again.step_ms, rel=1e-9)
    # What is not forced is the planner's: all clusters are, the hot rows are not.
    clusters = {
        each.table.name: ForcedPlacement(each.cluster) for each in skewed.placements
    }
    forced, _ = planned(1.1, clusters)
    assert any(each.hot_rows for each in forced.placements)
    # Either search may end as far above the optimum as its bound says.
    farthest_ms = (1 + skewed.prediction.gap) * skewed.prediction.step_ms
    assert forced.prediction.step_ms <= farthest_ms
    assert forced.prediction.lower_bound_ms >= 0.999 * skewed.prediction.lower_bound_ms
    even, _ = planned(0.0)
    assert not any(each.hot_rows for each in even.placements)
    none = dict.fromkeys((table.name for table in tables), ForcedPlacement(hot_rows=0))
    without, _ = planned(1.1, none)
    assert not any(each.hot_rows for each in without.placements)
    assert skewed.prediction.step_ms < 0.98 * without.prediction.step_ms
    assert skewed.prediction.lower_bound_ms <= without.prediction.lower_bound_ms


def test_impossible_forced_hot_rows_are_named():
    for force in (ForcedPlacement("dp", hot_rows=3), ForcedPlacement(hot_rows=1000)):
        with pytest.raises(ValueError, match=r"table 't'.*hot_rows"):
            plan([TABLE], [FEATURE], fleet.dgx_h100(1, 4), 400, forced={"t": force})


def test_where_low_ids_are_not_hot_no_row_is():
    """By a sample of the data: the planner chooses none, and refuses to be forced."""
    rng = np.random.default_rng(0)
    probability = np.arange(1.0, 1001) ** -1.2
    rng.shuffle(probability)
    counts = rng.multinomial(100_000, probability / probability.sum())
    ids = np.flatnonzero(counts)
    sample = Histogram.from_counts(ids, counts[ids])
    statistics = Statistics(100_000, {}, {"t": TableAccess(1000, sample)})
    request = [TABLE], [FEATURE], fleet.dgx_h100(1, 4), 400
    (found,) = plan(*request, statistics=statistics).placements
    assert found.hot_rows == 0
    force = {"t": ForcedPlacement("rb", hot_rows=50)}
    with pytest.raises(ValueError, match="hot_rows is 50, but by the statistics its"):
        plan(*request, forced=force, statistics=statistics)
