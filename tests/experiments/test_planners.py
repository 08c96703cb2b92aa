"""The comparison of planners: each baseline against plans worked out by hand."""

import importlib
import sys
from pathlib import Path

import pytest

from embark_jax.planner import Workload, predict
from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec
from experiments.planners.embark_formula import EmbarkModel

FOLDER = Path(__file__).parents[2] / "experiments" / "planners"
NAMES = (
    "baselines",
    "embark_formula",
    "embark_greedy",
    "torchrec_plans",
    "compare",
    "report",
    "run",
)
TWO_NODES = Workload(fleet.dgx_h100(2, gpus_per_node=2), 64, optimizer="sgd")
TABLES = [
    TableSpec(name, rows, 8)
    for name, rows in zip("abcde", (9, 1, 5, 7, 3), strict=True)
]
FEATURES = [
    FeatureSpec(table.name, hotness=hotness)
    for table, hotness in zip(TABLES, (1, 2, 6, 4, 5), strict=True)
]


@pytest.fixture(scope="module")
def scripts():
    """The experiment's modules, which import each other as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        del sys.modules[name]


def owners(placements):
    return [placement.devices for placement in placements]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("round robin", [(0,), (1,), (2,), (3,), (0,)]),
        ("row-wise", [(0, 1, 2, 3), (0,), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2)]),
        ("table-row-wise", [(0, 1), (2,), (0, 1), (2, 3), (0, 1)]),
        # Rows 9, 7, 5, 3 take a device each; then 1 goes to the lightest, which has 3.
        ("greedy by size", [(0,), (3,), (2,), (1,), (3,)]),
        # Ids 6, 5, 4, 2 take a device each; then 1 goes to the one with 2.
        ("greedy by lookups", [(3,), (3,), (0,), (2,), (1,)]),
        # 30, 28, 15, 9 take a device each; then 2 goes to the one with 9.
        ("greedy by size × lookups", [(3,), (3,), (0,), (1,), (2,)]),
    ],
)
def test_baselines(scripts, name, expected):
    placements = scripts["baselines"].BASELINES[name](TABLES, FEATURES, TWO_NODES)
    assert owners(placements) == expected
    assert {placement.cluster for placement in placements} == {"rb"}


def test_greedy_leaves_out_what_is_full(scripts):
    # 72 GB a device: 60 GB each take two devices, though 1 GB of rows are hotter.
    tables = [TableSpec(name, 10**9, 15) for name in "ab"] + [TableSpec("c", 10**9, 1)]
    features = [
        FeatureSpec(name, hotness=h) for name, h in (("a", 9), ("b", 9), ("c", 1))
    ]
    workload = Workload(fleet.dgx_h100(1, gpus_per_node=2), 64, optimizer="sgd")
    greedy = scripts["baselines"].BASELINES["greedy by lookups"]
    a, b, c = owners(greedy(tables, features, workload))
    assert {a, b} == {(0,), (1,)}
    assert c == (0,)
    three = [*tables, TableSpec("d", 10**9, 17)]
    placed = greedy(three, [*features, FeatureSpec("d")], workload)
    prediction = predict(
        placed,
        [*features, FeatureSpec("d")],
        workload,
        EmbarkModel(workload),
    )
    assert max(prediction.device_bytes) > 72e9


class TestEmbarkGreedy:
    def settings(self, scripts, dp=0, ub=0, hierarchical=False, gib=60):
        return scripts["embark_greedy"].Settings(dp, ub, hierarchical, gib)

    def test_thresholds_count_the_smallest_and_the_coldest(self, scripts):
        chosen = self.settings(scripts, dp=2, ub=1)
        plan = scripts["embark_greedy"].plan(TABLES, FEATURES, TWO_NODES, chosen)
        # 1 and 3 rows are the fewest, and of a, c and d, a has the fewest ids.
        assert [p.cluster for p in plan] == ["ub", "dp", "rb", "rb", "dp"]
        assert plan[0].devices == (0, 1, 2, 3)

    def test_halves_the_dearest_table_while_that_is_cheaper(self, scripts):
        tables = [TableSpec("hot", 1000, 128), TableSpec("cold", 1000, 128)]
        features = [FeatureSpec("hot", hotness=1000), FeatureSpec("cold")]
        workload = Workload(fleet.dgx_h100(1, gpus_per_node=4), 64)
        chosen = self.settings(scripts)
        hot, cold = scripts["embark_greedy"].plan(tables, features, workload, chosen)
        # By columns lookups and exchange are both halved, twice. Each device then holds
        # 32 hot columns of weight 4·1000 + 50, and one or more some cold of 4·1 + 50.
        assert (hot.row_shards, hot.column_shards) == (1, 4)
        assert sorted(hot.devices) == [0, 1, 2, 3]
        assert cold.column_shards > 1
        cost = predict([hot, cold], features, workload, EmbarkModel(workload))
        weighted = 64 * (32 * 4050 + cold.width * 54)
        assert cost.step_ms == pytest.approx(1e3 * weighted / 3.35e12)

    def test_hierarchical_shards_lie_on_all_devices_of_a_node(self, scripts):
        chosen = self.settings(scripts, hierarchical=True)
        features = [FeatureSpec("c", hotness=60), *FEATURES[:2], *FEATURES[3:]]
        plan = scripts["embark_greedy"].plan(TABLES, features, TWO_NODES, chosen)
        # A table with h ids weighs 4·h/8 + 50·1.5/8 a column: c 39.4, all others 43.5.
        # c in halves would weigh 24.4 twice, and the fuller node 46.1.
        assert owners(plan) == [(2, 3), (2,), (0, 1), (2, 3), (2, 3)]

    def test_what_does_not_fit_is_refused(self, scripts):
        tables = [TableSpec("a", 10**9, 128)]
        with pytest.raises(ValueError, match="does not fit"):
            scripts["embark_greedy"].plan(
                tables, [FeatureSpec("a")], TWO_NODES, self.settings(scripts)
            )

    def test_memory_splits_a_table_that_is_too_large(self, scripts):
        tables = [TableSpec("a", 10**9, 32)]  # 128 GB, on devices with 60 GiB for them
        (a,) = scripts["embark_greedy"].plan(
            tables, [FeatureSpec("a")], TWO_NODES, self.settings(scripts)
        )
        assert len(a.devices) == len(set(a.devices)) >= 2


def test_plans_of_torchrec_become_placements(scripts):
    answer = {
        "tables": {
            "a": {"sharding": "data_parallel", "shards": []},
            "b": {"sharding": "table_wise", "shards": [[3, 0, 0, 1, 8]]},
            "c": {
                "sharding": "grid_shard",  # rows 0–2 and 3–4, columns 0–3 and 4–7
                "shards": [
                    [1, 0, 0, 3, 4],
                    [0, 3, 0, 2, 4],
                    [3, 0, 4, 3, 4],
                    [2, 3, 4, 2, 4],
                ],
            },
            "d": {
                "sharding": "column_wise",
                "shards": [[1, 0, 4, 7, 4], [2, 0, 0, 7, 4]],
            },
            "e": {
                "sharding": "row_wise",  # three rows on four devices
                "shards": [[i, min(i, 3), 0, int(i < 3), 8] for i in range(4)],
            },
        }
    }
    a, b, c, d, e = scripts["torchrec_plans"].placements(answer, TABLES)
    assert (a.cluster, b.cluster) == ("dp", "rb")
    assert b.devices == (3,)
    assert (c.row_shards, c.column_shards, c.devices) == (2, 2, (1, 3, 0, 2))
    assert (d.row_shards, d.column_shards, d.devices) == (1, 2, (2, 1))
    assert (e.row_shards, e.column_shards, e.devices) == (3, 1, (0, 1, 2))
    assert all(placement.problems(4) == [] for placement in (a, b, c, d, e))


def test_uneven_widths_of_torchrec_are_refused(scripts):
    shards = [[0, 0, 0, 9, 6], [1, 0, 6, 9, 2]]
    answer = {"tables": {"a": {"sharding": "column_wise", "shards": shards}}}
    with pytest.raises(ValueError, match="'a': its shards are no even grid"):
        scripts["torchrec_plans"].placements(answer, TABLES[:1])


@pytest.mark.slow
def test_the_experiment_runs_without_torchrec(scripts, tmp_path, monkeypatch):
    command = ["run.py", "--models", "dlrm_dcnv2", "--nodes", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--results", str(tmp_path)])
    scripts["run"].main()
    text = (tmp_path / "README.md").read_text()
    assert "DLRM-DCNv2, 8" in text
    assert "TorchRec is absent" in (tmp_path / "dlrm_dcnv2_8.json").read_text()
    assert (tmp_path / "steps.svg").exists()
