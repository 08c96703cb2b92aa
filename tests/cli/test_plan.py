"""``embark plan`` and ``embark data stats``: what they show and write."""

import json
import re
from pathlib import Path

import pytest

from embark_jax.plans.plan import Plan
from tests import runs
from tests.runs import assert_refused, done, embark


@pytest.fixture
def config(tmp_path) -> Path:
    return runs.write_config(tmp_path)


def test_plan_is_for_the_fleet_of_the_config(config):
    overrides = ("mesh.nodes=8", "mesh.gpus_per_node=8", "train.batch_size=64")
    outcome = done("plan", config, "fleet=dgx-h100", *overrides)
    assert "tiny on dgx-h100" in outcome.out
    assert "8 × 8 devices, batch 64" in outcome.out
    gpus = predicted_ms(outcome.out)
    assert gpus != predicted_ms(embark("plan", config, *overrides).out)


def test_plan_writes_a_page_and_can_list_every_table(tmp_path):
    tables, page = tmp_path / "tables.yaml", tmp_path / "plan.html"
    tables.write_text("[{count: 9, rows: 1000, dim: 8}]")
    listed = ("plan", tables, "fleet=dgx-h100", "--html", page)
    assert " alike " in done(*listed).out
    shown = done(*listed, "--all").out
    assert all(re.search(rf"^ +t{i} ", shown, re.M) for i in range(9))
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_list_is_planned_for_the_step_that_runs(tmp_path):
    """Without a word: in plain XLA, and on several GPUs a route ahead."""
    tables = tmp_path / "tables.json"
    entry = {"name": "a", "rows": 10_000_000, "dim": 64, "hotness": 20}
    dense = {"features": 13, "bottom": [512, 64], "top": [512, 1]}
    tables.write_text(json.dumps({"dense": dense, "tables": [entry]}))

    def planned(*keys, fleet="dgx-h100"):
        words = ("plan", tables, f"fleet={fleet}", "--json", *keys)
        return json.loads(done(*words).out)

    plain = planned()
    assert (plain["kernels"], plain["overlap"]) == ("xla", True)
    assert plain["breakdown"]["hidden_ms"] > 0
    kernels = planned("embedding.kernels=mosaic_gpu")
    assert kernels["kernels"] == "mosaic_gpu"
    assert kernels["step_ms"] < plain["step_ms"]
    sharded = planned("train.dense=zero1")
    bytes_of = [record["per_device"][0]["memory_bytes"] for record in (sharded, plain)]
    # Seven eighths of Adagrad's state of the layers of 13, 512, 64 + 64, 512 and 1.
    parameters = 14 * 512 + 513 * 64 + 129 * 512 + 513
    assert bytes_of[1] - bytes_of[0] == pytest.approx(4 * parameters * 7 / 8)
    assert not planned(fleet="this-machine")["overlap"]

    shown = done("plan", tables, "fleet=dgx-h100", "embedding.kernels=mosaic_gpu")
    text = "updates in the GPU kernels (mosaic_gpu); each step makes the routes of the"
    assert text in " ".join(shown.out.split())


def test_a_list_takes_the_keys_of_a_config(tmp_path):
    tables = tmp_path / "tables.yaml"
    tables.write_text(
        "batch: 8192\ntables:\n"
        "- {name: a, rows: 10_000_000, dim: 64, hotness: 20}\n"
        "- {name: b, expected_keys: [1000, 4096], dim: 32, evicted: discard}\n"
        "- {name: c, rows: 1000, dim: 64, hotness: 50, pooling: none}\n"
    )

    def planned(*keys):
        out = tmp_path / "plan.json"
        done("plan", tables, "fleet=dgx-h100", *keys, "--out", out)
        return Plan.from_json(out.read_text())

    plain = planned()
    assert (plain.devices, plain.batch_size) == (8, 8192)
    tables_of = {table.name: table for table in plain.tables}
    dynamic = tables_of["b"]
    assert (dynamic.slots, dynamic.max_slots, dynamic.discard) == (1000, 4096, True)
    assert [feature.sequence for feature in plain.features] == [False, False, True]
    keys = ["mesh.gpus_per_node=2", "train.batch_size=64", "data.zipf_exponent=1.1"]
    keys += ["embedding.tables.a.cluster=rb", "embedding.tables.a.tier=host"]
    changed = planned(*keys)
    assert (changed.devices, changed.batch_size) == (2, 64)
    (a,) = (each for each in changed.placements if each.table.name == "a")
    assert (a.cluster, a.table.tier) == ("rb", "host")


SHORT = (
    *("fleet=dgx-h100", "embedding.memory_gb=2e-5"),
    *("embedding.tables.user.hot_rows=0", "embedding.tables.item.hot_rows=0"),
)
"""Memory that tables fill."""


def test_where_memory_is_short_the_planner_chooses_tiers_and_says_so(config):
    words = ("plan", config, *SHORT)
    shown = " ".join(done(*words).out.split())
    assert "memory is short with all rows on devices" in shown
    assert "in another tier, as with embedding.tables.NAME.tier=auto" in shown
    fixed = [f"embedding.tables.{name}.tier=device" for name in ("user", "item")]
    assert_refused(embark(*words, *fixed), "memory is short on all")


@pytest.mark.slow
def test_a_plan_with_chosen_tiers_trains(config, tmp_path):
    out = tmp_path / "plan.json"
    shown = done("plan", config, *SHORT, "--out", out)
    assert "memory is short with all rows on devices" in " ".join(shown.out.split())
    found = [table.tier for table in Plan.from_json(out.read_text()).tables]
    assert "host" in found
    done("train", config, *SHORT, "--plan", out, "--workdir", tmp_path / "given")
    done("train", config, *SHORT, "--workdir", tmp_path / "planned")
    given, planned = (runs.losses(tmp_path / name) for name in ("given", "planned"))
    assert given == planned


def test_statistics_of_the_data_are_planned_with(config, tmp_path):
    stats, plot = tmp_path / "stats.json", tmp_path / "ranks.png"
    outputs = ("--out", stats, "--plot", plot)
    outcome = done("data", "stats", config, "--samples", "1000", *outputs, draws=True)
    # 15 batches of 64; bags of items hold 1 to 4 ids; a city of 20 rows.
    assert "Bags of 960 samples" in outcome.out
    assert re.search(r"items +│ +2\.[3-7]\d │ +4 │", outcome.out)
    assert re.search(r"city +│ +20 │ +20 │ +960 │", outcome.out)
    assert plot.read_bytes().startswith(b"\x89PNG")
    full = embark("plan", config, "--json")
    half = done("plan", config, "--json", "--stats", stats)
    assert json.loads(half.out)["step_ms"] < json.loads(full.out)["step_ms"]


def predicted_ms(out: str) -> float:
    (found,) = re.findall(r"([0-9.]+) ms a step for the embeddings", out)
    return float(found)
