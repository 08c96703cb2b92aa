"""Sequences of a table with more rows than slots, or of keys, train as all others.

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
from tests.cache.rows_by_key import DIM, SCALE
from tests.embedding.problems import OPTIMIZERS

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


def batch_of(step: int) -> ej.Batch:
    """Rows of which some come back in the next batches; paddings lie before, behind and
    between them, and some histories are empty."""
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
    labels = rng.integers(0, 2, BATCH).astype(np.float32)
    return ej.Batch(np.zeros((BATCH, 0), np.float32), ids, labels, weights)


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
