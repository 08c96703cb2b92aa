"""The benchmark's config, small, on generated events: meshes, windows, resuming."""

import jax
import numpy as np
import pytest

from embark_jax.data.prepare import yambda
from embark_jax.data.prepare.yambda import Options
from tests import runs
from tests import yambda as yambda_files
from tests.config_files import CONFIGS
from tests.runs import done

pytestmark = pytest.mark.slow
SMALL = [
    "embedding.tables={}",
    "embedding.features={}",
    "embedding.dim=16",
    "embedding.wire={rows: float32, gradients: float32}",
    "embedding.optimizer.learning_rate=0.1",
    "embedding.optimizer.schedule.warmup_steps=10",
    "dense_optimizer.learning_rate=0.003",
    "dense_optimizer.schedule.warmup_steps=10",
    *("model.width=16", "model.hidden=16", "model.deep=16"),
    *("model.layers=1", "model.heads=2", "model.head_dim=8"),
    *("model.samples_at_once=32", "model.compute_dtype=float32"),
    *("model.input_dropout=0", "model.dropout=0"),
    *("train.batch_size=64", "train.micro_batches=1", "train.log_every=1"),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yambda")
    (folder / "raw").mkdir()
    yambda_files.write(
        folder / "raw", 100, items=300, albums=80, artists=30, events=80, seed=1
    )
    options = Options(longest=24, min_history=10, most_cross_rows=1000)
    yambda.prepare(folder / "raw", folder / "prepared", options, {})
    return folder / "prepared"


def train(prepared, workdir, *changes):
    config = CONFIGS / "experiments" / "yambda" / "dlrm_v4.yaml"
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        words = [f"data.path={prepared}", *SMALL, *changes, "--workdir", workdir]
        done("train", config, *words)
    return runs.losses(workdir)


def test_losses_are_those_of_one_device_and_auc_rises_by_window(prepared, tmp_path):
    one = train(prepared, tmp_path / "one", "mesh.nodes=1", "mesh.gpus_per_node=1")
    eight = train(prepared, tmp_path / "eight", "mesh.nodes=2", "mesh.gpus_per_node=4")
    assert one.keys() == eight.keys()
    np.testing.assert_allclose([*eight.values()], [*one.values()], rtol=1e-5)
    records = [r for r in runs.records(tmp_path / "eight") if "window" in r]
    aucs = [record["validation_auc"] for record in records]
    assert [record["window"] for record in records] == [
        "0",
        "86400",
        "172800",
        "259200",
    ]
    assert aucs[0] < 0.6
    assert aucs[1:] == sorted(aucs[1:])
    assert aucs[-1] > 0.7


def test_it_resumes_in_the_middle_of_a_window(prepared, tmp_path):
    mesh = ["mesh.nodes=1", "mesh.gpus_per_node=4", "train.steps=40"]
    whole = train(prepared, tmp_path / "whole", *mesh)
    halves = tmp_path / "halves"
    train(prepared, halves, *mesh, "train.steps=21")
    assert train(prepared, halves, *mesh, "--resume") == whole
