"""All-hot batches take a step of their own: the same results, without an exchange."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import embark_jax as ej
from embark_jax._base.config import ConfigError
from embark_jax.config import reading
from embark_jax.plans.placement import Placement
from embark_jax.run import experiment
from embark_jax.train.absent import lower_model
from embark_jax.train.state import Optimizers
from embark_jax.train.step_model import FlaxModel
from tests import runs
from tests.builders import make_trainer
from tests.collectives import counted

BATCH, DENSE, HOT = 32, 2, 20
TABLES = (ej.TableSpec("a", 71, 4), ej.TableSpec("b", 64, 8), ej.TableSpec("c", 7, 4))
FEATURES = (
    ej.FeatureSpec("a", hotness=2, weighted=True),
    ej.FeatureSpec("b", hotness=2, pooling="mean"),
    ej.FeatureSpec("c"),
)
PLACED = (
    Placement(TABLES[0], "rb", 2, 2, (0, 1, 2, 3), hot_rows=HOT),
    Placement(TABLES[1], "ub", 3, 1, (3, 1, 0), hot_rows=HOT),
    Placement(TABLES[2], "dp"),
)
CAPACITIES = {"rb_2_split_weighted": 64, "ub_8": 64}
PLAN = ej.Plan(FEATURES, PLACED, 2, 2, BATCH, CAPACITIES)


class WeightedSum(nnx.Module):
    """Logits that are linear in all embeddings."""

    def __init__(self):
        self.weight = nnx.Param(jnp.array([0.3, -0.7]))

    def __call__(self, dense, embeddings):
        total = sum(value.sum(axis=-1) for value in embeddings.values())
        return total + dense @ self.weight[...]


def batches(count, hot):
    """Of hot rows alone, every second of them or none said to be so."""
    rng = np.random.default_rng(0)
    for number in range(count):
        ids = rng.integers(0, 7, (3, BATCH, 2)).astype(np.int32)
        ids[:2, :, 0] = rng.integers(0, HOT, (2, BATCH))
        ids[:, 3:9, 1] = -1
        yield ej.Batch(
            rng.standard_normal((BATCH, DENSE), np.float32),
            {"a": ids[0], "b": ids[1], "c": ids[2][:, :1]},
            rng.integers(0, 2, BATCH).astype(np.float32),
            {"a": rng.uniform(0.5, 1, (BATCH, 2)).astype(np.float32)},
            hot=hot and number % 2 == 0,
        )


@functools.cache
def trainer_of(hot: bool) -> ej.Trainer:
    """For batches that are said to be of hot rows alone, or for others."""
    return make_trainer(
        PLAN,
        WeightedSum(),
        ej.RowwiseAdagrad(0.5, eps=1.0),
        dense_optimizer=optax.sgd(0.1),
    )


def run(trainer, given):
    results = list(trainer.iterate_batches(given))
    losses = [result.loss for result in results]
    hot = [result.hot for result in results]
    return losses, jax.tree.map(np.asarray, trainer.state), hot


def test_both_programs_give_the_same():
    """Also where a cold id is in a batch that is said to be of hot rows alone: that one
    is replayed. Sums of the same few numbers have another order at most."""

    def cold(hot):
        for number, batch in enumerate(batches(5, hot)):
            if number == 4:
                batch.ids["b"][5, 1] = HOT
            yield batch

    *found, hot = run(trainer_of(True), cold(hot=True))
    *expected, _ = run(trainer_of(False), cold(hot=False))
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert hot == [True, False, True, False, False]


def test_routes_are_made_ahead_but_where_the_kind_changes(monkeypatch):
    trainer = trainer_of(True)
    made, routes = [], trainer._make_routes
    monkeypatch.setattr(
        trainer, "_make_routes", lambda batch: made.append(batch.hot) or routes(batch)
    )
    given = [dataclasses.replace(each, hot=False) for each in batches(8, hot=False)]
    for number in (2, 3, 4):
        given[number] = dataclasses.replace(given[number], hot=True)
    results = list(trainer.iterate_batches(given))
    assert [result.hot for result in results] == [2 <= i <= 4 for i in range(8)]
    assert made == [False, True, False]


def test_no_sharded_table_is_in_the_program():
    """No exchange, and nothing that reads or writes a sharded storage or its state."""
    mesh, texts = PLAN.make_mesh(), {}
    for hot in (False, True):
        collection = ej.EmbeddingCollection(PLAN, mesh, hot_only=hot)
        optimizers = Optimizers(optax.sgd(0.1), ej.RowwiseAdagrad(0.5))
        model = FlaxModel(WeightedSum())
        lowered, _ = lower_model(collection, model, optimizers, DENSE)
        texts[hot] = lowered.compile().as_text()
    kinds = {hot: {kind for kind, _ in counted(text)} for hot, text in texts.items()}
    assert "all_to_all" in kinds[False]
    assert kinds[True] <= {"all_reduce", "all_gather"}
    sharded = [s for s in PLAN.storages if not s.replicated]
    for storage in sharded:
        shape = rf"f32\[{storage.slots_per_device},{storage.width}\]"
        uses = {
            hot: set(re.findall(rf" = {shape}\S* ([\w-]+)\(", text))
            for hot, text in texts.items()
        }
        passing = {"parameter", "get-tuple-element", "copy", "bitcast"}
        assert uses[True] <= passing
        assert not uses[False] <= passing
        gathers = rf"(gather|scatter|fusion)\([^)]*{shape}"
        assert not re.search(gathers, texts[True])


def test_small_tables_need_no_settings(tmp_path):
    """1 MiB of rows of 4 float32 are 65,536 rows. What a user fixes stays."""
    tables = {
        "user": "{rows: 65536}",
        "item": "{rows: 600, cluster: ub, hot_rows: 200}",
        "city": "{rows: 20}",
    }
    path = runs.write_config(tmp_path)
    text = path.read_text()
    for name, found in re.findall(r"\n    (user|item|city): (\{rows.*\})", text):
        text = text.replace(f"{name}: {found}", f"{name}: {tables[name]}")
    path.write_text(text)
    hot = "train.hot_batches=true"
    setup = experiment.build(reading.load(path, [hot]))
    placed = setup.plan.placements
    clusters = {p.table.name: (p.cluster, p.hot_rows) for p in placed}
    assert clusters == {"user": ("dp", 0), "item": ("ub", 200), "city": ("dp", 0)}
    hot_rows = {"user": 65536, "items": 200, "city": 20}
    assert setup.identity["train"]["hot_rows"] == hot_rows
    path.write_text(text.replace("65536", "65537"))
    with pytest.raises(ConfigError, match=r"1 have no hot rows.*: user; give"):
        experiment.build(reading.load(path, [hot]))
