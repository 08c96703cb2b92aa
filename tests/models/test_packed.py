"""Models take the events of sequences with and without padding, with equal results."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import embark_jax as ej
from embark_jax.data.synthetic import SyntheticClicks
from embark_jax.models import Masked
from embark_jax.plans.capacities import events_of
from embark_jax.plans.storage import Placement
from tests.builders import losses, make_plan, make_trainer, tables_of

TABLE = ej.TableSpec("t", 29, 8)
FEATURES = (ej.FeatureSpec("past", "t", 6, "none"), ej.FeatureSpec("item", "t"))


class Interest(nnx.Module):
    """Weighs each event by the candidate; padding, whose row is zeros, adds nothing."""

    def __init__(self, rngs: nnx.Rngs):
        self.unit, self.last = (
            nnx.Linear(inputs, 1, rngs=rngs) for inputs in (2 * TABLE.dim, 16)
        )

    def weighted(self, events, candidate):
        pairs = jnp.concatenate([events, events * candidate], axis=-1)
        return jax.nn.sigmoid(self.unit(pairs)) * events

    def __call__(self, dense, embeddings):
        past, item = embeddings["past"], embeddings["item"]
        total = self.weighted(past, item[:, None]).sum(axis=1)
        return self.last(jnp.concatenate([total, item], axis=1))[:, 0]


class PackedInterest(Interest, ej.PackedModel):
    def __call__(self, dense, embeddings):
        past, item = ej.Packed.of(embeddings["past"]), embeddings["item"]
        total = past.sum(self.weighted(past.values, past.spread(item)))
        return self.last(jnp.concatenate([total, item], axis=1))[:, 0]


@jax.jit
def both_ways(packed: ej.Packed, of_samples: jax.Array):
    return packed.sum(packed.values), packed.spread(of_samples)


@given(st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_events_know_their_samples(lengths):
    """Of two devices with three samples each, and room for 13 events."""
    rows = np.arange(1, 49, dtype=np.float32).reshape(6, 4, 2)
    events = [of_sample[:count] for of_sample, count in zip(rows, lengths, strict=True)]
    values = np.zeros((2, 13, 2), np.float32)
    for device in range(2):
        own = np.concatenate(events[3 * device :][:3])
        values[device, : len(own)] = own
    packed = ej.Packed(
        jnp.asarray(values.reshape(26, 2)), jnp.array(lengths, jnp.int32).reshape(2, 3)
    )
    sums, spread = both_ways(packed, jnp.arange(1, 7))
    np.testing.assert_allclose(sums, [of_sample.sum(axis=0) for of_sample in events])
    spread = np.asarray(spread)
    np.testing.assert_array_equal(
        spread[spread > 0], np.repeat(np.arange(1, 7), lengths)
    )
    assert ej.Packed.of(packed) is packed


def test_padded_sequences_with_a_mask_lose_their_padding():
    """Without one all places are events."""
    padded = jnp.arange(24.0).reshape(3, 4, 2)
    full = ej.Packed.of(padded)
    np.testing.assert_array_equal(full.sum(full.values), padded.sum(axis=1))
    valid = jnp.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], bool)
    packed = ej.Packed.of(Masked(padded, valid))
    np.testing.assert_array_equal(packed.lengths, [[2, 0, 3]])
    np.testing.assert_array_equal(packed.values[:5], padded[valid])
    assert not packed.values[5:].any()


def trainer_of(model: type[Interest], mesh: tuple[int, int], room: int) -> ej.Trainer:
    devices = mesh[0] * mesh[1]
    placement = Placement(TABLE, "ub", devices, 1, tuple(range(devices)))
    plan = make_plan(FEATURES, [placement], *mesh, 16)
    capacities = {**plan.capacities, events_of("past"): room}
    plan = dataclasses.replace(plan, capacities=capacities)
    return make_trainer(plan, model=lambda _: model(nnx.Rngs(0)))


def results_of(
    model: type[Interest], mesh: tuple[int, int], room: int
) -> list[np.ndarray]:
    trainer = trainer_of(model, mesh, room)
    data = SyntheticClicks(
        [TABLE], FEATURES, dense_features=13, train_samples=64, test_samples=24
    )
    steps = losses(trainer.iterate(data, 3))
    predicted = [logits for _, logits in trainer.predict(data.test_batches(5))]
    metrics = trainer.evaluate(data.test_batches(8))
    tables = tables_of(trainer.embeddings, trainer.state.storages)
    assert metrics.auc is not None
    columns = steps, np.concatenate(predicted), tables["t"], metrics.auc
    return [np.asarray(column) for column in columns]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(1, 1), (2, 4)])
def test_a_model_of_events_learns_what_one_of_padded_sequences_learns(mesh):
    """Also where the first batch has more events than there is room for."""
    padded = results_of(Interest, mesh, 96)
    packed = results_of(PackedInterest, mesh, 3)
    for got, expected in zip(packed, padded, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
