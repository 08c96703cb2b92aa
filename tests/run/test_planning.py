"""What a run does by itself: whether it looks ahead, and which kernels it prices."""

import re

import pytest
from embark_kernels import _implementation, check

from embark_jax.config import reading
from embark_jax.report import summary
from embark_jax.run import experiment
from tests import runs

GPUS = ("fleet=dgx-h100", "train.batch_size=64")


@pytest.fixture
def planned(tmp_path):
    path = runs.write_config(tmp_path)

    def plan(*overrides):
        """The workload and the plan of a config, and what its trainer is told."""
        workload, plan, _ = experiment.plan_model(reading.load(path, overrides))
        assert workload.overlap == plan.prediction.overlap
        assert workload.kernels == plan.prediction.kernels
        return workload, plan

    return plan


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), "nothing overlaps"),  # on 8 devices of this CPU
        (GPUS, "beside the dense layers"),
    ],
)
def test_on_gpus_a_plan_prices_routes_that_hide_beside_dense_layers(
    planned, overrides, said
):
    workload, plan = planned(*overrides)
    assert workload.overlap == (said != "nothing overlaps")
    assert said in summary.overview(plan)


def test_a_plan_prices_the_kernels_that_run(planned, monkeypatch):
    assert planned()[0].kernels == "xla"
    assert planned(*GPUS)[0].kernels == "xla"
    assert planned(*GPUS, "embedding.kernels=mosaic_gpu")[0].kernels == "mosaic_gpu"
    # On a GPU, those that pass their check.
    monkeypatch.setattr(_implementation, "_why_not_mosaic_gpu", lambda _: "")
    for problem, kernels in (("sum_bags differs", "xla"), ("", "mosaic_gpu")):
        monkeypatch.setattr(check, "problem", lambda problem=problem: problem)
        assert planned()[0].kernels == kernels
        assert planned("embedding.kernels=xla")[0].kernels == "xla"


def test_the_host_memory_of_some_gpus_of_a_node_is_said(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text('[{"rows": 1000000, "dim": 64, "tier": "host"}]')
    some = ["fleet=dgx-h100", "mesh.gpus_per_node=2"]
    plans = [
        experiment.plan_model(reading.load(path, keys)).plan
        for keys in (some, some[:1])
    ]
    few, whole = (" ".join(plan.prediction.advice) for plan in plans)
    assert re.search(r"counts \d+ GB of a node's memory: the share of 2 of its 8", few)
    assert "share of" not in whole
