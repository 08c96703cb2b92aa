"""Accuracy on real data, by the shipped config: above a linear model, on any mesh."""

import importlib
import subprocess
from pathlib import Path

import pytest

from embark_jax.data import MovieLens100K
from embark_jax.plans.plan import Plan
from tests import runs

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "movielens_100k.yaml"


@pytest.fixture(scope="module")
def baseline():
    """The module of the experiment, which is a script beside others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "experiments" / "movielens")
        return importlib.import_module("linear")


def trained(workdir, folder, *overrides):
    """Plan and test AUC of a run of the config, in a process of its own."""
    process = runs.start(
        "train",
        CONFIG,
        f"data.path={folder}",
        *overrides,
        "--workdir",
        workdir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = process.communicate()
    assert process.returncode == 0, output
    plan = Plan.from_json((workdir / "plan.json").read_text())
    return plan, runs.final(workdir)["test_auc"]


@pytest.fixture(scope="module")
def auc(movielens_folder, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run") / "1x1", movielens_folder)[1]


def test_deep_model_beats_logistic_regression(auc, movielens_folder, baseline):
    linear = baseline.fit(MovieLens100K(movielens_folder))["test_auc"]
    assert 0.76 < linear < 0.78  # else it is not a baseline worth beating
    assert auc >= 0.775
    assert auc >= linear + 0.008


def test_sharding_does_not_change_the_accuracy(auc, movielens_folder, tmp_path):
    mesh = ("mesh.nodes=2", "mesh.gpus_per_node=4")
    plan, sharded_auc = trained(tmp_path / "2x4", movielens_folder, *mesh)
    assert any(placement.cluster != "dp" for placement in plan.placements)
    assert sharded_auc == pytest.approx(auc, abs=0.002)
