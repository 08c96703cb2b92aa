"""Cuts of packed sequences: dealt evenly, computed apart, in their order again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import embark_jax as ej
from embark_jax.models.hstu import HSTU
from embark_jax.models.interface import PackedModel
from embark_jax.plans.capacities import events_of
from embark_jax.plans.placement import Placement
from embark_jax.train.cuts import deal
from tests.builders import make_plan, make_trainer
from tests.thorough import thorough

BATCH, PLACES, STEPS, DENSE = 32, 9, 3, 2
ITEM = ej.TableSpec("item", 20, 8)
FEATURES = ej.FeatureSpec("item"), ej.FeatureSpec("past", "item", PLACES, "none")
PLACED = (Placement(ITEM, "ub", 2, 1, (1, 0)),)


@given(
    cuts=st.integers(1, 8),
    rounds=st.integers(1, 12),
    longest=st.integers(0, 50),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None)
def test_cuts_differ_by_no_more_than_a_sample(cuts, rounds, longest, seed):
    events = np.random.default_rng(seed).integers(0, longest + 1, cuts * rounds)
    order = deal(events, cuts)
    assert sorted(order) == list(range(len(events)))
    totals = events[order].reshape(cuts, -1).sum(axis=1)
    assert np.ptp(totals) <= longest


def batch_of(step: int, skewed: bool = False) -> ej.Batch:
    """Histories of any length; skewed, each device has a few long ones alone."""
    rng = np.random.default_rng(step)
    past = rng.integers(0, 20, (BATCH, PLACES)).astype(np.int32)
    lengths = rng.integers(0, PLACES + 1, (BATCH, 1))
    if skewed:
        lengths = np.where(np.arange(BATCH)[:, None] % 8 < 2, PLACES, 0)
    past[np.arange(PLACES) >= lengths] = -1
    return ej.Batch(
        rng.normal(size=(BATCH, DENSE)).astype(np.float32),
        {
            "item": rng.integers(0, 20, (BATCH, 1)).astype(np.int32),
            "past": past,
        },
        rng.integers(0, 2, BATCH).astype(np.float32),
        sample_weights=rng.integers(0, 3, BATCH).astype(np.float32),
    )


class Events(PackedModel):
    """A logit of an item and of the sum of a sample's events, after a layer each."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.hidden = nnx.Linear(8, 8, rngs=rngs)
        self.last = nnx.Linear(DENSE + 16, 1, rngs=rngs)

    def __call__(self, dense, embeddings):
        past = embeddings["past"]
        hidden = jnp.tanh(self.hidden(past.values) + 1)
        rows, valid = dataclasses.replace(past, values=hidden).padded()
        pooled = jnp.where(valid[..., None], rows, 0).sum(axis=1)
        inputs = jnp.concatenate([dense, embeddings["item"], pooled], axis=1)
        return self.last(inputs)[:, 0]


MODELS = {
    "events": lambda _: Events(),
    "hstu": lambda shapes: HSTU(
        shapes, DENSE, {"past": "item"}, 16, 1, 2, rngs=nnx.Rngs(0)
    ),
}


def trained(model: str, micro_batches: int, events: int | None = None):
    """Losses, logits, predictions, rows and parameters after some steps."""
    plan = make_plan(FEATURES, PLACED, 1, 2, BATCH)
    if events is not None:
        capacities = {**plan.capacities, events_of("past"): events}
        plan = dataclasses.replace(plan, capacities=capacities)
    trainer = make_trainer(
        plan,
        MODELS[model],
        ej.RowwiseAdagrad(0.1),
        dense_optimizer=optax.sgd(0.1),
        micro_batches=micro_batches,
    )
    steps = (batch_of(step, skewed=step == 1) for step in range(STEPS))
    results = list(trainer.iterate_batches(steps))
    found = [
        np.array([result.loss for result in results]),
        *(np.asarray(result.logits) for result in results),
        *(logits for _, logits in trainer.predict([batch_of(STEPS)])),
        trainer.table("item").rows,
        *map(np.asarray, jax.tree.leaves(trainer.state.params)),
    ]
    return found, trainer


@pytest.mark.parametrize(
    ("model", "tight"),
    thorough(
        [("events", True), ("events", False), ("hstu", True)],
        [("events", True)],
        unpack=True,
    ),
)
def test_cuts_of_packed_sequences_change_nothing_beside_rounding(model, tight):
    """Tight, a device has room for half of its events at first: steps are replayed."""
    most = max(
        (np.asarray(batch_of(step).ids["past"]) >= 0).reshape(2, -1).sum(axis=1).max()
        for step in range(STEPS)
    )
    whole, _ = trained(model, 1)
    cut, trainer = trained(model, 4, events=int(most) // 2 if tight else None)
    assert trainer.embeddings.plan.events["past"] >= most
    assert (trainer.recompilations > 0) == tight
    for found, one in zip(cut, whole, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-5)
