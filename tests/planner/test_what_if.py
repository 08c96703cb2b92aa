"""The step without a table, and a target for memory."""

import html
import json

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.planner import Workload, price
from embark_jax.report import summary
from embark_jax.report.page import plan_page
from embark_jax.report.plan_record import plan_record
from embark_jax.report.terminal import as_text
from tests.planner import published
from tests.runs import embark

TABLES = [
    ej.TableSpec("large", 20_000_000, 128),
    *(ej.TableSpec(f"small{i}", 1_000_000, 64) for i in range(6)),
    ej.TableSpec("hot", 1000, 64),
]
FEATURES = [
    ej.FeatureSpec(table.name, hotness=40 if table.name == "hot" else 4)
    for table in TABLES
]
H100 = ej.fleets.dgx_h100()
BATCH = 8192
FORCED = {"large": ej.ForcedPlacement("rb", 1, 1, devices=(3,))}


@pytest.fixture(scope="module")
def uneven():
    """One table lies whole on one device, and is larger than all else together."""
    return ej.plan(TABLES, FEATURES, H100, BATCH, forced=FORCED)


def priced_without(planned: ej.Plan, names: set[str]) -> float:
    """The oracle: a model that never had these tables, placed as in the plan."""
    workload = Workload(H100, BATCH, kernels="xla")
    placements = [p for p in planned.placements if p.table.name not in names]
    features = [f for f in planned.features if f.table not in names]
    return price(placements, features, workload).step_ms


def test_the_step_without_a_table_is_that_of_a_model_without_it(uneven):
    removals = {r.tables: r for r in uneven.prediction.breakdown.removals}
    assert removals.keys() >= {(table.name,) for table in TABLES}
    assert max(map(len, removals)) > 1  # alike ones together
    for names, removal in removals.items():
        expected_ms = priced_without(uneven, {*names})
        assert removal.step_ms == pytest.approx(expected_ms, rel=1e-9)


def test_a_part_of_the_step_is_not_what_a_removal_takes_off():
    planned = ej.plan(*published.model("DLRM-DCNv2"), H100, 65_536)
    breakdown, step_ms = planned.prediction.breakdown, planned.prediction.step_ms
    off = {r.tables[0]: step_ms - r.step_ms for r in breakdown.removals}
    assert sum(breakdown.table_ms.values()) == pytest.approx(step_ms)
    differences = [abs(off[name] - ms) for name, ms in breakdown.table_ms.items()]
    assert max(differences) > 0.01 * step_ms
    reports = as_text(planned), plan_page(planned)
    for decision in summary.decisions(planned):
        change = decision.without_ms / step_ms - 1
        expected = f"{change:+.1%}".replace("-", "−")
        assert summary.without(planned, decision) == expected
        assert all(expected in report for report in reports)
    record = plan_record(planned)
    for table in record["tables"]:
        kept = step_ms - off[table["table"]]
        assert table["step_ms_without"] == pytest.approx(kept)


def test_a_target_for_memory_is_kept_and_costs_time():
    model = published.model("DLRM-DCNv2")
    free = ej.plan(*model, H100, 65_536).prediction
    target_gb = 0.5 * max(free.device_bytes) / 1e9
    tight = ej.plan(*model, H100, 65_536, memory_gb=target_gb).prediction
    assert max(tight.device_bytes) <= 1e9 * target_gb < max(free.device_bytes)
    assert tight.step_ms > free.step_ms
    with pytest.raises(ValueError, match="the memory_gb asked for"):
        ej.plan(*model, H100, 65_536, memory_gb=0.5)
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="memory_gb is"):
            ej.plan(*model, H100, 65_536, memory_gb=bad)


def test_clusters_and_placeholders_are_explained():
    tables, features = [ej.TableSpec("t", 1000, 16)], [ej.FeatureSpec("t")]
    made_up = ej.plan(tables, features, ej.fleets.this_machine(gpus_per_node=2), 64)
    real = ej.plan(tables, features, H100, 64)
    for planned in (made_up, real):
        for text in (as_text(planned), html.unescape(plan_page(planned))):
            text = " ".join(text.split())
            for cluster in ("DP: every device", "RB: ids go to", "UB: each row"):
                assert cluster in text
            assert ("are placeholders" in text) == (planned is made_up)


def test_options_of_the_command(tmp_path):
    options = ("plan", "dlrm_dcnv2", "fleet=dgx-h100", "embedding.memory_gb=45")
    record = json.loads(embark(*options, "--json").out)
    assert max(each["memory_bytes"] for each in record["per_device"]) <= 45e9
    outcome = embark(*options)
    assert max(map(len, outcome.out.splitlines())) <= 120
