"""A refused batch, and those behind it, leave no mark in dynamic tables."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import embark_jax as ej
from embark_jax.cache.cached_rows import TooFewSlotsError
from embark_jax.plans.storage import Placement
from embark_jax.train.outcome import BadIdError, NonFiniteLossError
from tests.builders import losses, make_plan, make_trainer

BATCH, DIM, PAGES = 16, 4, 10
FEATURES = (
    ej.FeatureSpec("user", hotness=2),
    ej.FeatureSpec("item"),
    ej.FeatureSpec("page"),
)
TABLES = {
    "lru": {"slots": 36, "max_slots": 36, "evicted": "discard"},
    "lfu": {"slots": 36, "max_slots": 36, "evicted": "discard", "evict": "lfu"},
    "grows": {"slots": 8, "max_slots": 1000},
    "grows and discards": {"slots": 8, "max_slots": 36, "evicted": "discard"},
    "host": {"slots": 30, "max_slots": 30},
}


def trainer_of(options, mesh=(1, 1), capacity=60, **trainer_options) -> ej.Trainer:
    devices = mesh[0] * mesh[1]
    user = ej.TableSpec.dynamic("user", DIM, init_scale=0.5, **options)
    item = ej.TableSpec.dynamic("item", DIM, 12, 12, init_scale=0.5, evict="lfu")
    owners = tuple(range(devices))
    placed = [Placement(t, "ub", devices, 1, owners) for t in (user, item)]
    page = ej.TableSpec("page", PAGES, DIM, tier="host", slots=6)
    placed.append(Placement(page, "ub", 1, 1, (0,)))
    weight = jnp.linspace(0.5, 1, DIM)
    model = ej.FunctionModel(
        {"weight": weight},
        lambda params, dense, embeddings: (
            sum(each @ params["weight"] for each in embeddings.values())
            + 1e30 * dense[:, 0]
        ),
    )
    plan = make_plan(FEATURES, placed, *mesh, BATCH, capacity)
    return make_trainer(
        plan,
        model,
        ej.Adagrad(0.5),
        dense_optimizer=optax.sgd(0.1),
        **trainer_options,
    )


def batch_of(step: int, users=40, items=10, dense=0.0) -> ej.Batch:
    rng = np.random.default_rng(step)
    first = 10 * (step % 4)
    return ej.Batch(
        np.full((BATCH, 1), dense, np.float32),
        {
            "user": first + rng.zipf(1.3, (BATCH, 2)) % users,
            "item": step % 3 + rng.integers(0, items, (BATCH, 1)) % 9,
            "page": rng.integers(0, 5, (BATCH, 1)),
        },
        rng.integers(0, 2, BATCH).astype(np.float32),
    )


def not_finite() -> ej.Batch:
    batch = batch_of(100, dense=1e30)
    users = 1000 + np.arange(2 * BATCH).reshape(BATCH, 2) % 18
    return dataclasses.replace(batch, ids={**batch.ids, "user": users})


def bad_id() -> ej.Batch:
    batch = not_finite()
    page = batch.ids["page"].copy()
    page[3] = PAGES
    return dataclasses.replace(batch, ids={**batch.ids, "page": page})


def too_many_items() -> ej.Batch:
    batch = not_finite()
    items = 500 + np.arange(BATCH)[:, None]
    return dataclasses.replace(batch, ids={**batch.ids, "item": items})


REFUSED = {
    NonFiniteLossError: not_finite,
    BadIdError: bad_id,
    TooFewSlotsError: too_many_items,
}


def assert_alike(trainer: ej.Trainer, expected: ej.Trainer) -> None:
    for name in ("user", "item", "page"):
        found, wanted = trainer.table(name), expected.table(name)
        np.testing.assert_array_equal(found.keys, wanted.keys)
        np.testing.assert_array_equal(found.rows, wanted.rows)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("error", "options"),
    [
        (NonFiniteLossError, {}),
        (NonFiniteLossError, {"capacity": 1}),
        (BadIdError, {}),
        (TooFewSlotsError, {}),
    ],
)
def test_a_refused_batch_leaves_no_mark(table, error, options):
    """Three batches behind it are on their way, too. Training goes on as if none had
    come: with the same rows, of which the same leave their slots."""
    refused = [REFUSED[error](), *map(batch_of, (20, 31, 42))]
    trainer, expected = (trainer_of(TABLES[table], **options) for _ in range(2))
    trainer.check = lambda batch: batch
    for first in (0, 6):
        good = [batch_of(step) for step in range(first, first + 6)]
        with pytest.raises(error):
            list(trainer.iterate_batches([*good, *refused]))
        list(expected.iterate_batches(good))
        assert trainer.step == expected.step == first + 6
        assert_alike(trainer, expected)
    more = [batch_of(step) for step in range(12, 20)]
    assert losses(trainer.iterate_batches(more)) == losses(
        expected.iterate_batches(more)
    )
    assert_alike(trainer, expected)
