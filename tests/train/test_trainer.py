"""The trainer: no batch is lost or applied twice; a bad one is refused, and changes
nothing."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import SGD, Adagrad, RowOptimizer
from flax import nnx

from embark_jax.data import Batch, DataError
from embark_jax.metrics.pointwise import evaluate
from embark_jax.plans.capacities import rows_of
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.train.device_batch import put_batch
from embark_jax.train.results import BadIdError, NonFiniteLossError
from embark_jax.train.state import TrainState
from embark_jax.train.step import REFUSED
from embark_jax.train.trainer import Trainer
from tests import builders, runs
from tests.builders import DENSE, assert_equal_states, losses, snapshot

BATCH, ROWS = 32, 64
TABLES = (TableSpec("a", ROWS, 4), TableSpec("b", ROWS, 4))
FEATURES = (FeatureSpec("a", hotness=2), FeatureSpec("b", hotness=2, pooling="mean"))
PLACED = (
    Placement(TABLES[0], "rb", 2, 2, (0, 1, 2, 3)),
    Placement(TABLES[1], "ub", 3, 1, (3, 1, 0)),
)
AMPLE = {"rb_2_split": 64, "ub_4": 64}
"""More than all ids that a device has in a batch."""


class Clicks:
    """A ``Dataset``: the ids of step t (from 0) are of the first ``spread(t)`` rows."""

    features = FEATURES
    dense_features = DENSE

    def __init__(self, spread=lambda step: ROWS, spoil=lambda step, batch: batch):
        self._spread, self._spoil = spread, spoil

    def train_batch(self, step: int, batch_size: int) -> Batch:
        rng = np.random.default_rng([step])
        ids = rng.integers(0, self._spread(step), (2, batch_size, 2), np.int32)
        batch = Batch(
            dense=rng.standard_normal((batch_size, DENSE), np.float32),
            ids=dict(zip("ab", ids, strict=True)),
            labels=rng.integers(0, 2, batch_size).astype(np.float32),
        )
        return self._spoil(step, batch)

    def test_batches(self, batch_size):
        yield self.train_batch(1000, batch_size)
        yield self.train_batch(1001, batch_size - 5)


def clicks_trainer(capacities=AMPLE, **options):
    """A trainer of ``Clicks`` on 2 × 2 devices."""
    plan = builders.make_plan(FEATURES, PLACED, 2, 2, BATCH, capacities)
    return builders.make_trainer(plan, **options)


def spoil_at(bad_step, **change):
    """Replaces arrays of the batch of step ``bad_step``, counted from 1."""

    def spoil(step, batch):
        if step + 1 != bad_step:
            return batch
        return dataclasses.replace(batch, **change)

    return spoil


# Far too large, though the loss of the small model is finite: the squares of gradients
# are not.
HUGE = np.full((BATCH, DENSE), 3e38, np.float32)


class Compiled(NamedTuple):
    """A trainer for many tests, its initial state, and the programs that were compiled
    while it trained and evaluated, several times."""

    trainer: Trainer
    initial: TrainState
    programs: list[str]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    data = Clicks()
    with runs.compilations() as programs:
        trainer = clicks_trainer()
        initial = snapshot(trainer)
        for stop in (2, 3, 6):
            list(trainer.iterate(data, stop))
            trainer.evaluate(data.test_batches(BATCH))
    return Compiled(trainer, initial, programs)


def at_the_start(compiled: Compiled) -> Trainer:
    trainer, initial, _ = compiled
    shardings = jax.tree.map(lambda each: each.sharding, trainer.state)
    trainer.restore(jax.device_put(initial, shardings))
    return trainer


@pytest.fixture
def trainer(compiled) -> Trainer:
    return at_the_start(compiled)


@pytest.fixture(scope="module")
def undisturbed(compiled):
    """Losses, and the state after 0 to 10 steps, with no step in flight meanwhile."""
    trainer = at_the_start(compiled)
    found, states = [], [snapshot(trainer)]
    for step in range(1, 11):
        found += losses(trainer.iterate(Clicks(), step))
        states.append(snapshot(trainer))
    return found, states


def test_steps_in_flight_change_nothing(trainer, undisturbed):
    expected, states = undisturbed
    assert losses(trainer.iterate(Clicks(), 10)) == expected
    assert_equal_states(snapshot(trainer), states[10])


def test_an_overflow_changes_no_bit(trainer):
    """Few rows need few places; from step 4 on, batches need more of each kind."""
    capacities = {"rb_2_split": 16, "ub_4": 1}
    rows = {rows_of("rb_2_split"): 1, rows_of("ub_4"): 3}
    data = Clicks(spread=lambda step: 1 if step < 4 else ROWS)
    tight = clicks_trainer(capacities | rows)
    assert losses(tight.iterate(data, 8)) == losses(trainer.iterate(data, 8))
    assert 1 <= tight.recompilations <= 3
    # A device has at most 16 ids of table b.
    assert 1 <= tight.embeddings.plan.capacities["ub_4"] <= 32
    assert_equal_states(snapshot(tight), snapshot(trainer))
    assert trainer.recompilations == 0


def test_an_overflow_in_evaluation_changes_no_bit(trainer):
    tight = clicks_trainer({"rb_2_split": 1, "ub_4": 1})
    batches = list(Clicks().test_batches(BATCH))
    found, expected = (
        [np.asarray(logits) for _, logits in each.predict(batches)]
        for each in (tight, trainer)
    )
    assert [len(each) for each in found] == [BATCH, BATCH - 5]
    assert tight.recompilations > trainer.recompilations == 0
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert_equal_states(snapshot(tight), snapshot(trainer))
    labels = np.concatenate([batch.labels for batch in batches])
    assert tight.evaluate(batches) == evaluate(labels, np.concatenate(found))


def test_each_step_compiles_once(compiled):
    assert compiled.programs.count("jit(train_step)") == 1
    assert compiled.programs.count("jit(score_step)") == 1


def test_a_batch_of_huge_numbers_stops_before_it_does_harm(trainer, undisturbed):
    _, states = undisturbed
    data = Clicks(spoil=spoil_at(6, dense=HUGE))
    with pytest.raises(NonFiniteLossError) as caught:
        list(trainer.iterate(data, 10))
    message = str(caught.value)
    assert "at step 6, " in message
    assert "dense[1]: min 3e+38, max 3e+38, mean 3e+38, 0 of 32 not finite" in message
    ids = data.train_batch(5, BATCH).ids["b"]
    assert (
        f"ids of b: min {ids.min()}, max {ids.max()}, {len(set(ids.flat))} unique of "
        f"{ids.size}, 0 padding"
    ) in message
    assert trainer.step == 5
    assert_equal_states(snapshot(trainer), states[5])
    # Nothing is stuck: with the batch mended, training goes on as if never disturbed.
    list(trainer.iterate(Clicks(), 10))
    assert_equal_states(snapshot(trainer), states[10])


class Norm(nnx.Module):
    """Logits ``|w * dense| + sum of embeddings``, whose gradient at dense 0 is NaN."""

    def __init__(self):
        self.w = nnx.Param(jnp.ones(DENSE))

    def __call__(self, dense, embeddings):
        norm = jnp.sqrt(jnp.square(self.w[None] * dense).sum(axis=1))
        return norm + sum(each.sum(axis=1) for each in embeddings.values())


def test_a_gradient_or_a_rate_that_is_not_finite_stops_before_it_does_harm():
    """Though the loss is."""

    def schedule(steps):
        return jnp.where(steps < 4, 1.0, jnp.nan)

    trainer = clicks_trainer(model=Norm(), optimizer=Adagrad(0.1, schedule=schedule))
    zeros = np.zeros((BATCH, DENSE), np.float32)
    for good, data, message in (
        (2, Clicks(spoil=spoil_at(3, dense=zeros)), r"loss is [01]\.\d+ at step 3, "),
        (4, Clicks(), "at step 5, and it, a rate or the up"),
    ):
        list(trainer.iterate(Clicks(), good))
        before = snapshot(trainer)
        with pytest.raises(NonFiniteLossError, match=message):
            list(trainer.iterate(data, 9))
        assert_equal_states(snapshot(trainer), before)


def test_weights_whose_sums_would_not_be_finite_stop_before_they_do_harm():
    """Loss and gradients are small: weights alone are large."""
    features = (dataclasses.replace(FEATURES[0], weighted=True), FEATURES[1])
    plan = builders.make_plan(features, PLACED, 2, 2, BATCH)
    trainer = builders.make_trainer(plan, builders.Sum())
    before = snapshot(trainer)
    batch = Clicks().train_batch(0, BATCH)
    weights = np.full((BATCH, 2), 1e30, np.float32) * [[1, -1]]
    ids = {"a": np.zeros((BATCH, 2), np.int32), "b": batch.ids["b"]}
    weights = {"a": weights.astype(np.float32)}
    with pytest.raises(NonFiniteLossError, match=r"loss is [01]\.\d+ at step 1, "):
        list(
            trainer.iterate_batches(
                [dataclasses.replace(batch, ids=ids, weights=weights)]
            )
        )
    assert_equal_states(snapshot(trainer), before)


@dataclasses.dataclass(frozen=True)
class Tiring(RowOptimizer):
    """A rule of one's own that gives NaN when it meets a row for the fourth time."""

    def state_widths(self, width):
        return {"touches": 1}

    def rule(self, row, states, gradient, mean_square, rate, factors, math):
        touches = states["touches"] + 1
        left = math.where(touches < 4, 4 - touches, -1.0)
        return math.fill(rate * math.sqrt(left)) * gradient, {"touches": touches}


@pytest.mark.parametrize(
    ("rule", "dtype"), [(Tiring(0.1), "float32"), (SGD(1e6), "float16")]
)
def test_rows_that_a_rule_would_spoil_stop_before_it_does_harm(rule, dtype):
    """Some rows of the step would be good, and some of the other table's, too."""
    placed = [
        dataclasses.replace(each, table=dataclasses.replace(each.table, dtype=dtype))
        for each in PLACED
    ]
    plan = builders.make_plan(FEATURES, placed, 2, 2, BATCH)
    trainer = builders.make_trainer(plan, optimizer=rule)
    states = [snapshot(trainer)]

    def train():
        for stop in range(1, 10):
            list(trainer.iterate(Clicks(), stop))
            states.append(snapshot(trainer))

    with pytest.raises(NonFiniteLossError, match=r"loss is \d+\.\d+ at step [2-9], "):
        train()
    assert trainer.step == len(states) - 1
    assert_equal_states(snapshot(trainer), states[-1])


def test_bad_data_stops_after_the_good_batches(trainer, undisturbed):
    _, states = undisturbed
    ids = {name: np.zeros((BATCH, 2), np.int32) for name in "ab"}
    ids["a"][3, 1] = ROWS
    message = f"sample 3: ids of feature 'a', column 1: value is {ROWS}, must be from"
    with pytest.raises(DataError, match=message):
        list(trainer.iterate(Clicks(spoil=spoil_at(6, ids=ids)), 10))
    assert trainer.step == 5
    assert_equal_states(snapshot(trainer), states[5])


def test_own_batches_train_as_those_of_a_dataset(trainer, undisturbed):
    _, states = undisturbed
    data = Clicks()
    own = (data.train_batch(i, BATCH) for i in range(3))
    assert [result.step for result in trainer.iterate_batches(own)] == [1, 2, 3]
    assert_equal_states(snapshot(trainer), states[3])
    assert trainer.fit(data, 5).step == 5
    with pytest.warns(UserWarning, match="nothing to train: step 5 is reached"):
        assert trainer.fit(data, 5) is None
    assert_equal_states(snapshot(trainer), states[5])


def test_devices_refuse_what_no_checker_saw(trainer, undisturbed, monkeypatch):
    """Ids out of range are found on the devices too; those in flight behind wait."""
    _, states = undisturbed
    monkeypatch.setattr(trainer, "check", lambda batch: batch)
    ids = {name: np.zeros((BATCH, 2), np.int32) for name in "ab"}
    ids["b"][5:8, 1] = ROWS + 3
    data = Clicks(spoil=spoil_at(6, ids=ids))
    message = (
        "feature 'b': 3 such as 67, must be from 0 to 63 (rows of table 'b'), or -1 "
        "for padding"
    )
    with pytest.raises(BadIdError) as caught:
        trainer.fit(data, 10)
    assert message in str(caught.value)
    assert trainer.step == 5
    assert_equal_states(snapshot(trainer), states[5])
    plan, mesh = trainer.embeddings.plan, trainer.embeddings.mesh
    report = trainer.start(put_batch(data.train_batch(5, BATCH), plan, mesh))
    assert REFUSED[int(report.numbers[0])] == "bad ids"
    assert np.asarray(report.bad_ids).sum(axis=0).tolist() == [0, 3]


def test_bad_ids_are_counted_where_asked():
    trainer = clicks_trainer(on_bad_id="drop")
    ids = {name: np.zeros((BATCH, 2), np.int32) for name in "ab"}
    ids["b"][5:8, 1] = ROWS + 3
    trainer.fit(Clicks(spoil=spoil_at(2, ids=ids)), 3)
    assert trainer.step == 3
    assert trainer.check.bad_ids == {"a": 0, "b": 3}


def test_an_error_of_the_model_says_what_it_was_called_with():
    batch = dataclasses.replace(
        Clicks().train_batch(0, BATCH), dense=np.zeros((BATCH, DENSE + 1), np.float32)
    )
    with pytest.raises(TypeError) as caught:
        list(clicks_trainer().iterate_batches([batch]))
    assert caught.value.__notes__[0] == (
        "in DLRM, called with dense values (32, 3) and embeddings a (32, 4), b (32, 4)"
    )
