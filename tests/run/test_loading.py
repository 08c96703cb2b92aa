"""A run is loaded as its own trainer left it, and goes on from there."""

import numpy as np
import pytest

import embark_jax as ej
from tests import runs


def tables(trainer: ej.Trainer) -> dict[str, np.ndarray]:
    names = [table.name for table in trainer.embeddings.plan.tables]
    return {name: trainer.table(name).rows for name in names}


def assert_same(found: ej.Trainer, expected: ej.Trainer, data) -> None:
    """Bit by bit: rows, and what the models make of a batch."""
    for name, rows in tables(expected).items():
        np.testing.assert_array_equal(tables(found)[name], rows, err_msg=name)
    logits = [
        np.asarray(next(trainer.predict(data.test_batches(64)))[1])
        for trainer in (found, expected)
    ]
    np.testing.assert_array_equal(*logits)


def test_it_has_what_the_run_had_and_trains_on(tiny_run):
    _, whole, _ = tiny_run
    before = runs.snapshot(whole)
    (setup, last), (_, middle) = ej.load_run(whole), ej.load_run(whole, step=4)
    assert (last.step, middle.step) == (6, 4)
    assert setup.plan == ej.Plan.from_json((whole / "plan.json").read_text())
    assert setup.config == ej.load_config(whole / "config.yaml")
    losses = {}
    middle.fit(
        setup.training_data,
        6,
        callback=lambda result: losses.update({result.step: result.loss}),
        progress=False,
    )
    assert losses == {step: runs.losses(whole)[step] for step in (5, 6)}
    assert_same(middle, last, setup.dataset)
    assert runs.snapshot(whole) == before
    metrics = last.evaluate(setup.dataset.test_batches(64))
    assert metrics.auc == pytest.approx(runs.final(whole)["test_auc"], abs=1e-6)
