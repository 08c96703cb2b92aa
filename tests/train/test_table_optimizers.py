"""Tables with optimizers of their own, from config to checkpoint, on any mesh."""

import pytest

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.run import experiment
from tests import runs

CONFIG = """\
name: rules
data: {kind: synthetic, dense_features: 2, train_samples: 512, test_samples: 64}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding:
  dim: 4
  optimizer: {kind: rowwise_adagrad, learning_rate: 0.5}
  tables:
    user: {rows: 90, cluster: rb, optimizer: {kind: adam, learning_rate: 0.05}}
    item: {rows: 70, cluster: rb, hot_rows: 0, initializer: normal, init_scale: 0.1}
    city: {rows: 20, cluster: ub, optimizer: {kind: sgd}}
    hour: {rows: 24, cluster: ub, optimizer: {learning_rate: 2.0}}
    week: {rows: 7, cluster: dp, optimizer: {kind: adam, learning_rate: 0.05}}
train: {batch_size: 64, steps: 6}
"""
ONE = "mesh.nodes=1", "mesh.gpus_per_node=1"
MANY = "mesh.nodes=2", "mesh.gpus_per_node=4"


GROWING = (
    "embedding.tables.week.cluster=ub",
    *(
        f"embedding.tables.{name}.{key}={value}"
        for name in ("user", "city", "week")
        for key, value in {"slots": 8, "max_slots": 60, "evicted": "disk"}.items()
    ),
)
"""Some are dynamic, of which two have one optimizer; others stay fixed."""


@pytest.mark.slow
def test_a_mesh_and_a_checkpoint_change_nothing(tmp_path):
    path = runs.write_config(tmp_path, CONFIG)
    whole = experiment.build(reading.load(path, [*ONE, *GROWING]))
    expected = [r.loss for r in whole.trainer().iterate(whole.dataset, whole.steps)]

    first = experiment.build(reading.load(path, [*MANY, *GROWING]))
    trainer = first.trainer()
    losses = [r.loss for r in trainer.iterate(first.dataset, 3)]
    with Checkpointer(tmp_path / "saved", first.identity, keep=2) as checkpoints:
        checkpoints.save(trainer.whole_state(), 3, trainer.embeddings, {})
        again = whole.trainer()
        again.load(checkpoints)
    losses += [r.loss for r in again.iterate(whole.dataset, whole.steps)]
    assert losses == pytest.approx(expected, rel=1e-5)


def test_initial_values_of_all_tables_and_of_one(tmp_path):
    path = runs.write_config(tmp_path, CONFIG)
    for_all = "embedding.initializer=normal", "embedding.init_scale=0.01"
    own = "embedding.tables.hour.initializer=uniform"
    setup = experiment.build(reading.load(path, [*for_all, own]))
    trainer = setup.trainer()
    values = {name: trainer.table(name).rows for name in ("user", "item", "hour")}
    # Of n normal values the standard deviation errs by 1 / sqrt(2 n): 0.04 and 0.04.
    assert values["user"].std() == pytest.approx(0.01, rel=0.2)
    assert abs(values["user"]).max() > 0.02
    assert values["item"].std() == pytest.approx(0.1, rel=0.2)
    assert 0.008 < abs(values["hour"]).max() <= 0.01


def test_another_kind_is_another_run(tmp_path):
    path = runs.write_config(tmp_path, CONFIG)
    found = experiment.build(reading.load(path)).identity
    assert found["table_optimizers"] == {"user": "adam", "city": "sgd", "week": "adam"}
    faster = "embedding.tables.hour.optimizer.learning_rate=1.0"
    assert experiment.build(reading.load(path, [faster])).identity == found
