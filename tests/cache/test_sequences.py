"""Sequences of a table with more rows than slots, or of keys, beside the oracle.

A history, a weighted one and the candidate share the table, whose rows and keys are
other ones in each batch. Buffers are too small at first, so that batches are replayed.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import embark_jax as ej
from embark_jax.plans.capacities import events_of
from embark_jax.plans.storage import Placement
from tests.builders import losses, make_plan, make_trainer
from tests.cache.initial_row import DIM, SCALE, initial_row
from tests.embedding import reference
from tests.embedding.problems import OPTIMIZERS, TOLERANCE

BATCH, STEPS, ROWS, NEW_ROWS = 16, 6, 140, 15
FEATURES = (
    ej.FeatureSpec("past", "user", 5, "none"),
    ej.FeatureSpec("rated", "user", 4, "none", weighted=True),
    ej.FeatureSpec("candidate", "user"),
)
WEIGHTS = {
    feature.name: np.linspace(0.5, 1 + i, feature.hotness * DIM).reshape(-1, DIM)
    for i, feature in enumerate(FEATURES)
}
KEYS = np.arange(ROWS, dtype=np.int64) * (2**33 + 1) - 2**38
"""Keys of rows: some are negative, none is -1."""


def logits_of(params, dense, embeddings):
    return sum(
        (embeddings[name].reshape(len(dense), -1, DIM) * weight[None]).sum((1, 2))
        for name, weight in params.items()
    )


def trainer_of(
    kind,
    optimizer,
    mesh=(1, 1),
    hot_rows=0,
    slots=48,
    grows=False,
    capacity=2,
    **options,
):
    devices = mesh[0] * mesh[1]
    if kind == "dynamic":
        first = 8 if grows else slots
        table = ej.TableSpec.dynamic("user", DIM, first, slots, init_scale=SCALE)
    else:
        table = ej.TableSpec("user", ROWS, DIM, SCALE, tier=kind, slots=slots)
    owners = tuple(range(devices))
    placed = [Placement(table, "ub", devices, 1, owners, hot_rows=hot_rows)]
    plan = make_plan(FEATURES, placed, *mesh, BATCH, capacity)
    if capacity:
        plan.capacities.update({events_of("past"): 3, events_of("rated"): 1})
    model = ej.FunctionModel(
        {name: jnp.asarray(w, jnp.float32) for name, w in WEIGHTS.items()}, logits_of
    )
    dense = optax.sgd(0.0)
    return make_trainer(plan, model, optimizer, dense_optimizer=dense, **options)


def numbers_of(step: int):
    """Row numbers and weights of a batch, some of which come back in the next ones;
    paddings lie before, behind and between them, and some histories are empty."""
    rng = np.random.default_rng([step])
    ids, weights = {}, {}
    for feature in FEATURES:
        shape = BATCH, feature.hotness
        drawn = step * NEW_ROWS + rng.integers(0, 40, shape)
        drawn[rng.random(shape) < 0.3] = -1
        drawn[rng.random(BATCH) < 0.1] = -1
        ids[feature.name] = drawn.astype(np.int32)
        if feature.weighted:
            weights[feature.name] = rng.uniform(0.1, 1, shape).astype(np.float32)
    return ids, weights, rng.integers(0, 2, BATCH).astype(np.float32)


def batch_of(step: int, keys: np.ndarray | None = None) -> ej.Batch:
    """A batch with numbers of rows, or their keys."""
    ids, weights, labels = numbers_of(step)
    if keys is not None:
        ids = {name: np.where(n < 0, -1, keys[n]) for name, n in ids.items()}
    return ej.Batch(np.zeros((BATCH, 0), np.float32), ids, labels, weights)


def first_samples(batch: ej.Batch, size: int) -> ej.Batch:
    """As many as a plan takes at once."""
    ids, weights = (
        {name: values[:size] for name, values in columns.items()}
        for columns in (batch.ids, batch.weights)
    )
    return ej.Batch(batch.dense[:size], ids, batch.labels[:size], weights)


def oracle_logits(tables, step: int) -> np.ndarray:
    ids, weights, _ = numbers_of(step)
    rows = reference.lookup(tables, FEATURES, ids, weights)
    return logits_of(WEIGHTS, np.zeros(BATCH), rows)


@pytest.mark.slow
def test_sequences_of_keys_equal_the_oracle():
    rule = OPTIMIZERS["rowwise_adagrad"]
    trainer = trainer_of("dynamic", rule, (2, 4), slots=96, grows=True)
    rows = np.array([initial_row(int(key) % 2**64) for key in KEYS])
    tables = {"user": rows.astype(np.float64)}
    states = reference.init_state(tables, rule)
    met = np.zeros(ROWS, bool)
    batches = (batch_of(step, KEYS) for step in range(STEPS))
    for step, result in enumerate(trainer.iterate_batches(batches)):
        ids, weights, labels = numbers_of(step)
        logits = oracle_logits(tables, step)
        np.testing.assert_allclose(result.logits, logits, **TOLERANCE)
        slope = (1 / (1 + np.exp(-logits)) - labels) / BATCH
        gradients = {
            feature.name: slope[:, None, None] * WEIGHTS[feature.name]
            if feature.sequence
            else slope[:, None] * WEIGHTS[feature.name]
            for feature in FEATURES
        }
        dense, touched = reference.row_gradients(
            tables, FEATURES, ids, weights, gradients
        )
        reference.update(
            tables["user"],
            states["user"],
            dense["user"],
            touched["user"],
            rule,
            step + 1,
        )
        met |= touched["user"]
    assert trainer.recompilations > 0
    size = trainer.embeddings.plan.batch_size
    scored = [first_samples(batch_of(step, KEYS), size) for step in (STEPS, 0)]
    for step, (_, logits) in zip((STEPS, 0), trainer.predict(scored), strict=True):
        expected = oracle_logits(tables, step)[:size]
        np.testing.assert_allclose(logits, expected, **TOLERANCE)
    table = trainer.table("user")
    np.testing.assert_array_equal(table.keys, KEYS[met])
    np.testing.assert_allclose(table.rows, tables["user"][met], **TOLERANCE)


def trained(trainer, batches):
    steps = losses(trainer.iterate_batches(batches))
    return steps, trainer.table("user")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "optimizer", "options"),
    [
        ("host", "adam", {"mesh": (2, 4), "hot_rows": 7}),
        ("disk", "l2", {"hot_rows": 7}),
        (
            "dynamic",
            "ftrl",
            {"mesh": (2, 4), "slots": 96, "grows": True},
        ),
    ],
)
def test_where_rows_lie_changes_no_bit(kind, optimizer, options):
    """A dynamic table whose keys are the numbers of rows begins as a fixed one."""
    rule, batches = OPTIMIZERS[optimizer], [batch_of(step) for step in range(STEPS)]
    trainer = trainer_of(kind, rule, **options)
    steps, table = trained(trainer, batches)
    assert trainer.recompilations > 0
    options = options | {"slots": None, "capacity": None}
    resident = trainer_of("device", rule, **options)
    expected_steps, expected = trained(resident, batches)
    assert resident.recompilations == 0
    assert steps == expected_steps
    assert len(table.keys) > trainer.embeddings.plan.tables[0].slots
    np.testing.assert_array_equal(table.rows, expected.rows[table.keys])
