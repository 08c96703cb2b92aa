"""``Trainer.table`` returns what lookups see, for tables of all kinds.

The oracle is NumPy: the loss is linear in the rows, so each step adds a known amount to
each row, and the first rows are read through lookups, before training.
"""

import itertools

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from embark_kernels import SGD

import embark_jax as ej
from embark_jax.plans.storage import Placement
from tests.builders import make_plan, make_trainer
from tests.thorough import thorough

BATCH, DIM, ROWS, RATE = 8, 2, 40, 0.5
FAR = 2**60 + 7
ITEMS = {
    "in memory": ej.TableSpec("item", ROWS, DIM),
    "fewer slots": ej.TableSpec("item", ROWS, DIM, tier="host", slots=16),
    "as many slots as rows": ej.TableSpec("item", ROWS, DIM, tier="host", slots=ROWS),
    "dynamic": ej.TableSpec.dynamic("item", DIM, slots=16, max_slots=512),
    "dynamic, evicts": ej.TableSpec.dynamic("item", DIM, 16, 16, evicted="disk"),
}


def is_dynamic(kind: str) -> bool:
    return kind.startswith("dynamic")


def trainer_of(kind: str, mesh: tuple[int, int]) -> ej.Trainer:
    devices = mesh[0] * mesh[1]
    placed = [Placement(ITEMS[kind], "ub", devices, 1, tuple(range(devices)))]
    return make_trainer(
        make_plan([ej.FeatureSpec("item")], placed, *mesh, BATCH),
        # The row itself, so that predictions are rows.
        ej.FunctionModel(
            {"w": jnp.ones((1, DIM))}, lambda p, dense, e: e["item"] * p["w"]
        ),
        SGD(RATE),
        dense_optimizer=optax.sgd(0.0),
        loss=lambda logits, labels, embeddings: (logits * labels).sum(axis=1),
    )


def make_batch(ids, labels=None) -> ej.Batch:
    return ej.Batch(
        dense=np.zeros((len(ids), 1), np.float32),
        ids={"item": np.asarray(ids)[:, None]},
        labels=np.zeros((len(ids), DIM), np.float32) if labels is None else labels,
    )


def looked_up(trainer: ej.Trainer, ids: np.ndarray) -> np.ndarray:
    """The rows of some ids, as the model gets them."""
    batches = map(make_batch, np.split(ids, len(ids) // BATCH))
    return np.concatenate([np.asarray(rows) for _, rows in trainer.predict(batches)])


QUICK = [("in memory", (1, 1)), ("dynamic, evicts", (2, 2))]


@pytest.mark.parametrize(
    ("kind", "mesh"),
    thorough(itertools.product(ITEMS, [(1, 1), (2, 2)]), QUICK, unpack=True),
)
def test_a_table_has_the_rows_that_lookups_see(kind, mesh):
    trainer = trainer_of(kind, mesh)
    ids = np.arange(ROWS) + FAR * is_dynamic(kind)
    expected = looked_up(trainer, ids)
    rng, met = np.random.default_rng(0), set()
    for _ in range(12):
        numbers = rng.integers(0, ROWS, BATCH)
        labels = rng.random((BATCH, DIM), np.float32)
        trainer.train([make_batch(ids[numbers], labels)])
        np.subtract.at(expected, numbers, RATE * labels / BATCH)
        met |= set(numbers.tolist())
    found = trainer.table("item")
    order = sorted(met) if is_dynamic(kind) else range(ROWS)
    assert len(order) > ROWS - 5
    assert found.keys.dtype == np.int64
    np.testing.assert_array_equal(found.keys, ids[order])
    np.testing.assert_allclose(found.rows, expected[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.rows, looked_up(trainer, ids)[order])


def test_slots_are_not_taken_for_rows():
    trainer = trainer_of("fewer slots", (1, 1))
    trainer.train([make_batch(np.arange(BATCH))])
    with pytest.raises(ValueError, match=r"are in slots, not all; trainer\.table\("):
        ej.export_table(trainer.embeddings, trainer.state.storages, "item")
