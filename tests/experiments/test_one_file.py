"""EMBark in one file trains as the package does."""

import importlib.util
import io
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import optax
import pytest
from flax import nnx

import embark_jax as ej
from embark_jax.plans.placement import Placement
from tests.builders import make_plan, make_trainer

PATH = Path(__file__).parents[2] / "experiments" / "one_file" / "embark.py"
STEPS = 12


def load():
    spec = importlib.util.spec_from_file_location("one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_losses_are_those_of_the_package():
    one_file = load()
    tables = {
        table.name: ej.TableSpec(table.name, table.rows, one_file.DIM)
        for table in one_file.TABLES
    }
    features = [ej.FeatureSpec(t.name, hotness=t.hotness) for t in one_file.TABLES]
    placed = [
        Placement(tables[p.table.name], "dp")
        if p.cluster == "dp"
        else Placement(tables[p.table.name], p.cluster, len(p.owners), devices=p.owners)
        for p in one_file.make_plan(one_file.TABLES)
    ]
    assert {placement.cluster for placement in placed} == {"dp", "rb", "ub"}
    trainer = make_trainer(
        make_plan(features, placed, one_file.NODES, one_file.GPUS, one_file.BATCH),
        one_file.DLRMDCNv2(one_file.TABLES, rngs=nnx.Rngs(0)),
        ej.RowwiseAdagrad(one_file.RATE, eps=one_file.EPS),
        dense_optimizer=optax.adagrad(0.02),
    )
    initial = {
        name: ej.export_table(trainer.embeddings, trainer.state.storages, name)
        for name in tables
    }
    batches = []
    for step in range(1, STEPS + 1):
        dense, ids, labels = one_file.make_batch(step)
        batches.append(ej.Batch(dense, ids, labels))
    theirs = [result.loss for result in trainer.iterate_batches(batches)]
    with redirect_stdout(io.StringIO()):
        ours = one_file.train(STEPS, lambda table: initial[table.name])
    # Both train: rows and dense parameters have moved far beyond rounding.
    assert theirs[-1] < theirs[0] - 0.1
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)
