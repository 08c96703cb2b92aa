"""Reports: what they say of plans of any size, and that nothing in them is markup."""

import dataclasses
import html
import html.parser
import json

import numpy as np
import pytest
from rich.console import Console

import embark_jax as ej
from embark_jax.planner import plan
from embark_jax.plans.placement import Placement
from embark_jax.report import summary
from embark_jax.report.page import plan_page
from embark_jax.report.plan_record import plan_record
from embark_jax.report.terminal import Report, as_text
from tests.planner import published

NAMES = ("[bold]a", "<script>b", "c&d", 'e"f')


def many(count, machines):
    tables = [ej.TableSpec(f"t{i}", 10_000, 16) for i in range(count)]
    return plan(tables, [ej.FeatureSpec(t.name) for t in tables], machines, 1280)


@pytest.fixture(scope="module")
def planned():
    tables, features = published.model("DLRM-DCNv2")
    return plan(tables[::3], features[::3], ej.fleets.dgx_h100(), 65_536)


@pytest.fixture(scope="module")
def oddly_named():
    tables = [ej.TableSpec(name, 1000, 16) for name in NAMES]
    features = [ej.FeatureSpec(t.name, hotness=3) for t in tables]
    return plan(tables, features, ej.fleets.dgx_h100(), 640)


def shown(plan, each=False, columns=120):
    console = Console(width=columns)
    with console.capture() as captured:
        console.print(Report(plan, each))
    return captured.get()


def test_an_overview_is_a_few_lines(planned):
    found = summary.overview(planned).splitlines()
    clusters = [placement.cluster for placement in planned.placements]
    assert found[0] == summary.headline(planned)
    for cluster in set(clusters):
        assert f"{clusters.count(cluster)} in {cluster.upper()}" in found[1]
    assert f"{planned.prediction.step_ms:.3f} ms a step" in found[2]
    assert found[3] == summary.assumptions(planned)
    slowest = summary.decisions(planned)[0]
    assert found[5].startswith(f"tables that take most of it: {slowest.name} ")
    assert len(found) <= 7
    changes = {"lower_bound_ms": 0.0, "advice": ("take a bus",)}
    other = dataclasses.replace(planned.prediction, **changes)
    other = dataclasses.replace(planned, prediction=other)
    assert "is not known" in " ".join(shown(other).split())
    for text in (as_text(other), plan_page(other)):
        assert "take a bus" in text
    without = dataclasses.replace(planned, prediction=None)
    assert len(summary.overview(without).splitlines()) == 3


@pytest.mark.parametrize(
    "machines",
    [ej.fleets.this_machine(), ej.fleets.dgx_h100(4)],
    ids=lambda machines: str(machines.devices),
)
def test_many_tables_fit_a_screen_on_any_fleet(machines):
    found = many(200, machines)
    text = shown(found)
    assert len(text.splitlines()) < 60
    assert "200 tables, 200 features" in text
    decisions = summary.decisions(found)
    assert sum(len(decision.tables) for decision in decisions) == 200
    assert sum(decision.ms for decision in decisions) == pytest.approx(
        found.prediction.step_ms
    )
    assert len(shown(found, each=True).splitlines()) > 200


def test_what_takes_most_time_comes_first_and_all_phases_are_there(planned):
    decisions = summary.decisions(planned)
    times = [decision.ms for decision in decisions]
    assert times == sorted(times, reverse=True)
    table_ms = planned.prediction.breakdown.table_ms
    assert decisions[0].ms == sum(table_ms[name] for name in decisions[0].tables)
    text = shown(planned)
    for part in ("lookup", "row exchange", "update", "imbalance", "time goes"):
        assert part in text
    path = summary.critical_path(planned)
    assert sum(path.values()) == pytest.approx(planned.prediction.step_ms)


def test_narrow_terminals_are_told_all_placements(planned):
    wide, narrow = shown(planned), shown(planned, columns=80)
    assert max(map(len, narrow.splitlines())) <= 80
    for decision in summary.decisions(planned):
        assert decision.placement in wide
        assert decision.placement in narrow
    assert "…" not in narrow


def test_a_plan_without_prediction_is_shown():
    placements = (Placement(ej.TableSpec("a", 10, 4), "rb", 2, 1, (1, 0)),)
    given = ej.Plan((ej.FeatureSpec("a"),), placements, 1, 2, 4, {"rb_4": 3})
    text = shown(given)
    assert "no prediction" in text
    assert "RB 2 × 1" in text
    assert "no prediction" in plan_page(given)


def test_rows_by_hand():
    placements = (
        Placement(ej.TableSpec("a", 10, 4), "rb", 2, 1, (1, 0)),
        Placement(ej.TableSpec("b", 3, 4), "dp"),
        Placement(ej.TableSpec("c", 5, 4), "rb", 1, 1, (1,)),
    )
    features = tuple(ej.FeatureSpec(name, hotness=4) for name in "abc")
    given = ej.Plan(features, placements, 1, 2, 4, {"rb_4": 9})
    # Half of a, and b; device 1 has c too. Rows of 16 bytes.
    np.testing.assert_allclose(summary.row_bytes(given), [16 * 8, 16 * 13])


class Tags(html.parser.HTMLParser):
    """Counts tags, keeps text and what is fetched."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.sources, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [v for k, v in attrs if k in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


@pytest.mark.parametrize(
    "write", [plan_page, ej.Plan._repr_html_], ids=["page", "notebook"]
)
def test_a_page_needs_nothing_else_and_escapes_names(write, oddly_named):
    tags = Tags(write(oddly_named))
    assert tags.open == []
    assert "script" not in tags.seen  # no name became one
    assert "http" not in write(oddly_named)
    assert len(tags.sources) == 3
    assert all(source.startswith("data:image/png;base64,") for source in tags.sources)
    assert NAMES[0] in tags.text
    if write is plan_page:
        in_terminal = shown(oddly_named, each=True)
        assert all(name in tags.text and name in in_terminal for name in NAMES)


def test_bytes_of_tables_add_up_to_those_of_devices(planned):
    held = summary.table_bytes(planned)
    assert sorted(held) == sorted(table.name for table in planned.tables)
    np.testing.assert_allclose(sum(held.values()), summary.row_bytes(planned))
    for placement in planned.placements:
        owners = np.flatnonzero(held[placement.table.name])
        if placement.cluster != "dp" and not placement.hot_rows:
            assert set(owners) == set(placement.devices)


def test_the_record_has_every_table(planned):
    record = json.loads(json.dumps(plan_record(planned)))
    assert len(record["tables"]) == len(planned.tables)
    assert sum(each["step_ms"] for each in record["tables"]) == pytest.approx(
        record["step_ms"]
    )
    phases = np.array([*record["breakdown"]["phase_ms"].values()])
    loads = [device["load_ms"] for device in record["per_device"]]
    np.testing.assert_allclose(phases.sum(axis=0), loads)


def test_clusters_and_placeholders_are_explained():
    tables, features = [ej.TableSpec("t", 1000, 16)], [ej.FeatureSpec("t")]
    made_up = plan(tables, features, ej.fleets.this_machine(gpus_per_node=2), 64)
    real = plan(tables, features, ej.fleets.dgx_h100(), 64)
    for planned in (made_up, real):
        for text in (as_text(planned), html.unescape(plan_page(planned))):
            text = " ".join(text.split())
            for cluster in ("DP: every device", "RB: ids go to", "UB: each row"):
                assert cluster in text
            assert ("are placeholders" in text) == (planned is made_up)
