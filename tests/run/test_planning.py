"""What a run does by itself: whether it looks ahead, and which kernels it prices."""

import jax
import pytest
from embark_kernels import _implementation, check

from embark_jax.config import reading
from embark_jax.report import summary
from embark_jax.report.page import plan_page
from embark_jax.run import experiment, planning
from tests import runs

GPUS = ("fleet=dgx-h100", "train.batch_size=64")
CACHED = ("embedding.tables.item.tier=host", "embedding.tables.item.slots=16")


@pytest.fixture
def planned(tmp_path):
    path = runs.write_config(tmp_path)

    def plan(*overrides):
        """The workload and the plan of a config, and what its trainer is told."""
        setup = experiment.build(reading.load(path, overrides))
        asked = setup.config, setup.description, setup.tables, setup.features
        overlap = planning.overlap(setup.config, setup.tables)
        workload = planning.workload(*asked)
        assert workload.overlap == overlap == setup.plan.prediction.overlap
        assert workload.kernels == setup.plan.prediction.kernels
        return workload

    return plan


@pytest.mark.parametrize(
    ("overrides", "overlap"),
    [
        ((), False),  # on 8 devices of this CPU
        (("train.overlap=true",), True),
        (GPUS, True),
        ((*GPUS, "train.overlap=false"), False),
        ((*GPUS, "mesh.nodes=1", "mesh.gpus_per_node=1"), False),
        ((*GPUS, *CACHED), False),
        ((*GPUS, *CACHED, "train.overlap=true"), True),
        ((*GPUS, "embedding.tables.item.max_slots=64"), False),
    ],
)
def test_a_step_looks_ahead_on_several_gpus_with_all_rows_in_memory(
    planned, overrides, overlap
):
    assert planned(*overrides).overlap == overlap


def test_jax_says_whether_this_machine_has_gpus(planned, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert planned().overlap


def test_the_trainer_does_what_the_plan_says(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "Trainer", lambda *_, overlap, **__: overlap)
    path = runs.write_config(tmp_path)
    for overrides, overlap in (((), False), (GPUS, True)):
        setup = experiment.build(reading.load(path, overrides))
        assert setup.trainer() == overlap
        said = "the routes of the next" if overlap else "its own routes"
        assert said in summary.overview(setup.plan)
        assert said in plan_page(setup.plan)


def test_a_plan_prices_the_kernels_that_run(planned, monkeypatch):
    assert planned().kernels == "xla"
    assert planned(*GPUS).kernels == "xla"
    assert planned(*GPUS, "embedding.kernels=mosaic_gpu").kernels == "mosaic_gpu"
    # On a GPU, those that pass their check.
    monkeypatch.setattr(_implementation, "_why_not_mosaic_gpu", lambda: "")
    for problem, kernels in (("sum_bags differs", "xla"), ("", "mosaic_gpu")):
        monkeypatch.setattr(check, "problem", lambda problem=problem: problem)
        assert planned().kernels == kernels
        assert planned("embedding.kernels=xla").kernels == "xla"
