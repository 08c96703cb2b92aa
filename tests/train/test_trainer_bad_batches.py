"""The trainer: a bad batch is refused, and changes nothing."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax.data import DataError
from embark_jax.embedding.device_batch import put_batch
from embark_jax.train.loop import BadIdError, NonFiniteLossError
from embark_jax.train.step import REFUSED
from tests.builders import DENSE, assert_equal_states, snapshot
from tests.train.trainers import BATCH, HUGE, ROWS, Clicks, clicks_trainer, spoil_at


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


def test_a_finite_loss_with_a_gradient_that_is_not_stops_too():
    trainer = clicks_trainer(model=Norm())
    list(trainer.iterate(Clicks(), 2))
    before = snapshot(trainer)
    zeros = np.zeros((BATCH, DENSE), np.float32)
    with pytest.raises(NonFiniteLossError, match=r"loss is [01]\.\d+ at step 3, "):
        list(trainer.iterate(Clicks(spoil=spoil_at(3, dense=zeros)), 9))
    assert_equal_states(snapshot(trainer), before)


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
    data, seen = Clicks(), []
    last = trainer.train(
        (data.train_batch(i, BATCH) for i in range(3)), callback=seen.append
    )
    assert [result.step for result in seen] == [1, 2, 3]
    assert last is seen[-1]
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
        clicks_trainer().train([batch])
    assert caught.value.__notes__[0] == (
        "in DLRM, called with dense values (32, 3) and embeddings a (32, 4), b (32, 4)"
    )
