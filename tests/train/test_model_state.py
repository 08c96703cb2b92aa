"""Dropout, BatchNorm and a variable of one's own: all of a model's state is trained,
replayed, evaluated and resumed with it, and no mesh changes it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import embark_jax as ej
from embark_jax.plans.placement import Placement
from embark_jax.train.results import NonFiniteLossError
from tests.builders import make_plan, make_trainer, tables_of

BATCH, DENSE, STEPS = 32, 3, 50
TABLES = (ej.TableSpec("user", 60, 4), ej.TableSpec("item", 20, 4))
FEATURES = (ej.FeatureSpec("user"), ej.FeatureSpec("item", hotness=3))
DATA = ej.SyntheticClicks(
    TABLES, FEATURES, dense_features=DENSE, train_samples=BATCH * STEPS, seed=2
)


class Seen(nnx.Variable):
    """A variable of one's own."""


class Stateful(nnx.Module):
    """An MLP with BatchNorm, dropout, and a running mean of its logits' squares."""

    def __init__(self, width=16, rate=0.3):
        rngs = nnx.Rngs(params=0, dropout=5)
        self.hidden = nnx.Linear(DENSE + 8, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.8, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(width, 1, rngs=rngs)
        self.seen = Seen(jnp.zeros(()))

    def __call__(self, dense, embeddings):
        x = jnp.concatenate([dense, embeddings["user"], embeddings["item"]], axis=1)
        x = self.dropout(nnx.relu(self.norm(self.hidden(x))))
        logits = self.last(x)[:, 0]
        self.seen[...] = 0.5 * self.seen[...] + jnp.square(logits).mean()
        return logits / (1 + jnp.sqrt(self.seen[...]) / 10)


def trainer_of(nodes=1, gpus=1, *, capacity=None, micro_batches=1) -> ej.Trainer:
    devices = nodes * gpus
    placed = (
        Placement(TABLES[0], "rb", devices, 1, tuple(range(devices))),
        Placement(TABLES[1], "ub", 1, 1, (0,)),
    )
    plan = make_plan(FEATURES, placed, nodes, gpus, BATCH, capacity)
    return make_trainer(
        plan,
        Stateful(),
        ej.RowwiseAdagrad(0.1),
        dense_optimizer=optax.sgd(0.05, momentum=0.9),
        micro_batches=micro_batches,
        seed=3,
    )


def losses(trainer: ej.Trainer, steps: int = STEPS) -> list[float]:
    return [result.loss for result in trainer.iterate(DATA, steps)]


def state_of(trainer: ej.Trainer) -> dict[str, np.ndarray]:
    """Model state by dotted path; random keys as their data."""
    flat = nnx.to_flat_state(trainer.state.model_state)
    return {
        ".".join(map(str, path)): np.asarray(
            jax.random.key_data(variable[...])
            if jnp.issubdtype(variable.dtype, jax.dtypes.prng_key)
            else variable[...]
        )
        for path, variable in flat
    }


@pytest.fixture(scope="module")
def expected():
    trainer = trainer_of()
    return losses(trainer), state_of(trainer), trainer


@pytest.fixture(scope="module")
def compiled():
    """A trainer on eight devices, and its initial state."""
    trainer = trainer_of(2, 4)
    return trainer, jax.tree.map(jnp.copy, trainer.state)


@pytest.fixture
def on_eight(compiled) -> ej.Trainer:
    """That trainer, at the start."""
    trainer, initial = compiled
    trainer.restore(jax.tree.map(jnp.copy, initial))
    return trainer


@pytest.mark.slow
def test_a_run_that_is_resumed_on_another_mesh_draws_the_same_masks(
    expected, on_eight, tmp_path
):
    """Checkpointed on one device and resumed on eight, in a trainer of its own."""
    expected_losses, expected_state, _ = expected
    before, after = trainer_of(), on_eight
    found = losses(before, 20)
    with ej.Checkpointer(tmp_path / "checkpoints", {}, keep=1) as checkpoints:
        checkpoints.save(before.state, 20, before.embeddings, {})
        state, _ = checkpoints.restore(after.state, after.embeddings)
    after.restore(state)
    found += losses(after)
    np.testing.assert_allclose(found, expected_losses, rtol=1e-4)
    found = state_of(after)
    assert found.keys() == expected_state.keys()
    for name, value in expected_state.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, err_msg=name)


def test_statistics_are_those_of_the_whole_batch(on_eight):
    """Of the first step, where plain Flax can start from the same tables."""
    trainer = on_eight
    start = trainer.model
    batch = DATA.train_batch(0, BATCH)
    tables = tables_of(trainer.embeddings, trainer.state.storages)
    pooled = {
        f.name: jnp.asarray(
            np.where(
                batch.ids[f.name][:, :, None] >= 0,
                tables[f.table][batch.ids[f.name]],
                0,
            ).sum(axis=1)
        )
        for f in FEATURES
    }
    start.train()
    start(jnp.asarray(batch.dense), pooled)
    list(trainer.iterate_batches([batch]))
    trained = trainer.model
    for name in ("mean", "var"):
        mine, theirs = getattr(trained.norm, name), getattr(start.norm, name)
        np.testing.assert_allclose(mine[...], theirs[...], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trained.seen[...], start.seen[...], rtol=1e-5)
    assert int(trained.dropout.rngs.count[...]) == int(start.dropout.rngs.count[...])
    assert int(trained.dropout.rngs.count[...]) == 1


def test_masks_are_new_each_step_and_none_in_evaluation(expected):
    _, state, trainer = expected
    assert state["dropout.rngs.count"] == STEPS
    batch = DATA.train_batch(0, BATCH)
    (first, second) = (
        np.asarray(logits) for _, logits in trainer.predict([batch, batch])
    )
    np.testing.assert_array_equal(first, second)
    assert state_of(trainer)["dropout.rngs.count"] == STEPS


@pytest.mark.slow
def test_a_refused_batch_changes_no_state(on_eight):
    """Replayed batches see the state and the masks that they would have seen."""
    tight, ample = trainer_of(2, 4, capacity=1), on_eight
    assert losses(tight, 6) == losses(ample, 6)
    assert tight.recompilations > 0
    found, expected = state_of(tight), state_of(ample)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    batch = DATA.train_batch(7, BATCH)
    large = dataclasses.replace(batch, dense=batch.dense * np.float32(1e37))
    with pytest.raises(NonFiniteLossError):
        list(ample.iterate_batches([large]))
    for name, value in state_of(ample).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.slow
def test_micro_batches_carry_the_state_from_one_to_the_next():
    trainer = trainer_of(1, 2, micro_batches=2)
    losses(trainer, 3)
    assert state_of(trainer)["dropout.rngs.count"] == 6


def test_the_trained_model_is_a_copy(expected):
    *_, trainer = expected
    model = trainer.model
    assert isinstance(model, Stateful)
    assert model.dropout.deterministic
    before = np.asarray(model.last.kernel[...])
    trained = np.asarray(trainer.state.params["last"]["kernel"][...])
    np.testing.assert_array_equal(before, trained)
    list(trainer.iterate_batches([DATA.train_batch(0, BATCH)]))
    np.testing.assert_array_equal(model.last.kernel[...], before)
    assert (np.asarray(trainer.model.last.kernel[...]) != before).any()


def test_a_model_that_makes_variables_in_a_call_is_refused(expected):
    class Growing(Stateful):
        def __call__(self, dense, embeddings):
            self.late = Seen(jnp.zeros(()))
            return super().__call__(dense, embeddings)

    trainer = make_trainer(expected[2].embeddings.plan, Growing())
    with pytest.raises(ValueError, match="Growing changes which variables it has"):
        trainer.fit(DATA, 1)
