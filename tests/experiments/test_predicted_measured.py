"""Predicted beside measured: the files are whole, and the page's scores are theirs."""

import json
import re

import numpy as np
import pytest

from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec
from experiments.predicted_measured import plans, run
from experiments.predicted_measured.cases import FOLDER, Case, measured, score
from experiments.predicted_measured.hugectr_plan import Settings, plan

RESULTS = json.loads((FOLDER / "results.json").read_text())
CASES = [Case(**record) for record in RESULTS["cases"]]


def test_every_measured_figure_is_a_case_with_an_address():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    for group in run.GROUPS:
        of_files = {record["name"] for record, _ in measured(group)}
        assert {case.name for case in CASES if case.group == group} == of_files
    address = r"https://github.com/[\w.-]+/[\w.-]+/(blob|tree)/[0-9a-f]{40}/\S+"
    assert all(re.fullmatch(address, case.source) for case in CASES)


def test_there_are_forty_figures_of_four_sources():
    sources = {"/".join(case.source.split("/")[3:5]) for case in CASES}
    assert len(CASES) >= 40
    assert len(sources) >= 4


def test_scores_are_those_of_the_cases():
    scores = run.summary(CASES)
    for title, row in RESULTS["scores"].items():
        assert scores[title] == pytest.approx(row)


@pytest.mark.parametrize("group", ["kernels", "collectives"])
def test_prices_are_those_of_the_results(group):
    stored = {case.name: case.predicted for case in CASES if case.group == group}
    priced = {case.name: case.predicted for case in run.GROUPS[group]()}
    assert priced == pytest.approx(stored, rel=1e-3)


@pytest.mark.parametrize("year", ["2021", "2022"])
def test_a_histogram_has_the_ids_of_its_trace(year):
    content = json.loads((FOLDER / "measured" / "inputs.json").read_text())
    curve = content["curves"][year]
    accesses = plans.histogram(curve)
    assert accesses.accesses == pytest.approx(curve["ids"] / curve["tables"], rel=0.01)
    # The middle of a bin stands for its rows, so that unique ids are near, not equal.
    unique = curve["unique"] / curve["tables"]
    assert accesses.rows_seen == pytest.approx(unique, rel=0.06)
    assert accesses.in_order


def test_the_price_of_an_all_gather_by_hand():
    # 80 GPUs of 10 nodes: a device sends 9/10 of 1/8 of the buffer to the next node.
    priced = next(c for c in CASES if c.name == "10 x 8 H100 all-gather 256 MiB")
    sent_us = 1e6 * 2**28 * 0.9 / 8 / (0.8 * 50e9)
    node_us = 1e6 * 2**28 * 79 / 80 / (0.8 * 450e9)
    latency_us = 8.4 + 9 * 14.0 + 70 * 3.4
    assert priced.predicted == pytest.approx(max(sent_us, node_us) + latency_us)


def test_a_score():
    figures = [(1.0, 1.2), (2.0, 1.0), (4.0, 4.0)]
    cases = [Case("g", str(i), "ms", m, p, "") for i, (m, p) in enumerate(figures)]
    scored = score(cases)
    assert scored["mape"] == pytest.approx((0.2 + 0.5 + 0) / 3)
    assert scored["bias"] == pytest.approx((1.2 * 0.5) ** (1 / 3))
    assert scored["rank_correlation"] == pytest.approx(0.5)


def test_the_readme_shows_the_scores_of_the_results():
    readme = (FOLDER / "README.md").read_text()
    for title, row in RESULTS["scores"].items():
        assert f"| {title} | {row['cases']} | {row['mape']:.0%} |" in readme


TABLES = [
    TableSpec("hot", 1000, 8),
    *(TableSpec(f"cold{i}", 1000, 8) for i in range(4)),
    TableSpec("few", 9, 8),
]
FEATURES = [
    FeatureSpec(table.name, hotness=12 if table.name == "hot" else 1)
    for table in TABLES
]


def test_mlperfs_planner_halves_the_hottest_table():
    # A shard costs as much as an id. In quarters, "hot" puts 4 on each GPU, and a cold
    # table 2: 6 in all. With "hot" in halves it is 7 at best, with cold tables in
    # halves 7 as well, and with all tables over all GPUs 10.25.
    settings = Settings("auto", 4, dp_threshold_gb=1e-6)
    hot, *cold, few = plan(TABLES, FEATURES, fleet.dgx_h100(1, 4), settings)
    assert few.cluster == "dp"
    assert (hot.row_shards, sorted(hot.devices)) == (4, [0, 1, 2, 3])
    assert sorted(placement.devices for placement in cold) == [(0,), (1,), (2,), (3,)]


def test_mlperfs_planner_spreads_shards_over_the_gpus_of_nodes():
    settings = Settings("hier_auto", 400, dp_threshold_gb=0)
    placements = plan(TABLES, FEATURES, fleet.dgx_h100(2, 4), settings)
    # Shards are dear: every table stays whole, on the GPUs of one node.
    assert [placement.row_shards for placement in placements] == [4] * len(TABLES)
    nodes = [np.array(placement.devices) // 4 for placement in placements]
    assert all(np.ptp(of_table) == 0 for of_table in nodes)
    assert {int(of_table[0]) for of_table in nodes} == {0, 1}


def test_mlperfs_planner_says_what_does_not_fit():
    settings = Settings("auto", 9, dp_threshold_gb=0)
    huge = [TableSpec("huge", 2**30, 128)]
    with pytest.raises(ValueError, match="do not fit"):
        plan(huge, [FeatureSpec("huge")], fleet.dgx_h100(1, 8), settings)
