"""``embark simulate``."""

import json
import re

import pytest

from tests import runs
from tests.runs import done, embark

MODEL = """\
name: small
batch: 4096
zipf_exponent: 1.1
optimizer: adagrad
dense: {features: 13, bottom: [64, 32], top: [64, 1], cross_layers: 2, cross_rank: 16}
tables:
  - {count: 3, rows: 100_000, dim: 32, hotness: 20}
  - {count: 4, rows: 100, dim: 32}
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    return path


def test_a_table_list_on_machines_that_are_not_there(model, tmp_path):
    trace = tmp_path / "trace.json"
    asked = ("simulate", model, "fleet=dgx-h100", "mesh.nodes=2", "--trace", trace)
    outcome = done(*asked)
    assert "samples/s" in outcome.out
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(16))

    (found,) = json.loads(embark(*asked, "--json").out)["simulations"]
    assert found["system"] == "embark_jax"
    assert found["batch_size"] == 4096
    assert 0 < found["exposed_communication_share"] < 1


def test_a_config(tmp_path):
    config, batch = runs.write_config(tmp_path), "train.batch_size=4096"
    slow, fast = (
        json.loads(embark("simulate", config, *keys, "--json").out)["simulations"][0]
        for keys in ((batch,), (batch, "fleet=dgx-h100"))
    )
    assert slow["batch_size"] == fast["batch_size"] == 4096
    assert fast["phases_ms"]["lookup"]["mean"] < slow["phases_ms"]["lookup"]["mean"]


def test_a_table_list_takes_what_its_plan_takes(model):
    def simulated(*keys):
        asked = (model, "fleet=dgx-h100", "train.batch_size=4096", "--json", *keys)
        record = json.loads(embark("simulate", *asked).out)
        return record["kernels"], record["overlap"], record["simulations"][0]

    kernels, overlap, plain = simulated()
    assert (kernels, overlap) == ("xla", True)
    kernels, _, faster = simulated("embedding.kernels=mosaic_gpu")
    assert kernels == "mosaic_gpu"
    assert faster["step_ms"] < plain["step_ms"]
    assert simulated("train.dense=zero1")[2]["phases_ms"] != plain["phases_ms"]
    assert "dense sums" in simulated("train.dense=tensor")[2]["phases_ms"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.batch_size=100"], "is 100, must be a multiple of the 8 devices"),
        (["fleet=dgx-h10"], "did you mean dgx-h100?"),
        (["embedding.memory_gb=0.001"], "memory is short on all 8 devices"),
    ],
)
def test_what_cannot_be_simulated(model, arguments, message):
    outcome = embark("simulate", model, "fleet=dgx-h100", *arguments)
    runs.assert_refused(outcome, message)


def test_a_list_without_dense_layers(model, tmp_path):
    path = tmp_path / "tables.yaml"
    path.write_text(re.sub("dense: .*\n", "", MODEL))
    outcome = done("simulate", path, "fleet=dgx-h100")
    assert "the embeddings alone" in outcome.out
    alone, whole = (
        json.loads(embark("simulate", tables, "fleet=dgx-h100", "--json").out)
        for tables in (path, model)
    )
    assert len(alone["notes"]) == 1
    assert whole["notes"] == []
    (of_tables,), (of_model,) = alone["simulations"], whole["simulations"]
    assert of_tables["step_ms"] < of_model["step_ms"]
    assert of_tables["phases_ms"]["dense"]["most"] == 0
