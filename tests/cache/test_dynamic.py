"""Dynamic tables train as tables that had all their rows from the start."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import embark_jax as ej
from embark_jax.cache.cached_rows import TooFewSlotsError
from embark_jax.cache.stored_rows import NO_ROW
from embark_jax.embedding.keys import keys_of
from embark_jax.plans.storage import Placement
from tests.builders import losses, make_plan, make_trainer
from tests.cache.rows_by_key import DIM, EXTREME, SCALE, colliding, initial_row

BATCH, STEPS = 16, 8
FEATURES = (
    ej.FeatureSpec("user", hotness=3),
    ej.FeatureSpec("friends", "user", pooling="mean", hotness=2),
    ej.FeatureSpec("item"),
)
USERS, ITEMS = 400, 20
FAR = 2**62 + 2**33 + 5
"""Added to ids, makes keys of them that need 63 bits."""
HOSTILE = np.array([*EXTREME, *colliding(60), *(np.arange(150) * (2**33 + 1) - 2**39)])
"""Keys of users."""


def batches(first: int, last: int, far: int = 0, keys: np.ndarray | None = None):
    """Other users every few steps, some of whom come back."""
    for step in range(first, last):
        rng = np.random.default_rng([step])
        ids = {}
        for feature in FEATURES[:2]:
            drawn = rng.integers(0, 40, (BATCH, feature.hotness)) + step % 5 * 37
            users = drawn + far if keys is None else keys[drawn]
            ids[feature.name] = np.where(rng.random(drawn.shape) < 0.2, -1, users)
        ids["item"] = rng.integers(0, ITEMS, (BATCH, 1))
        yield ej.Batch(
            dense=np.zeros((BATCH, 1), np.float32),
            ids=ids,
            labels=rng.integers(0, 2, BATCH).astype(np.float32),
        )


def logits_of(params, dense, embeddings):
    """What each embedding has, times the weights of its feature."""
    return sum(each @ params[name] for name, each in embeddings.items())


WEIGHTS = {
    f.name: np.linspace(0.5, 1, DIM, dtype=np.float32) * (i + 1)
    for i, f in enumerate(FEATURES)
}


def trainer_of(
    users: ej.TableSpec,
    mesh=(1, 1),
    cluster="ub",
    optimizer=None,
    dense_rate=0.1,
    capacity=200,
    column_shards=1,
    owners=None,
    **options,
) -> ej.Trainer:
    owners = owners or tuple(range(math.prod(mesh)))
    placed = (
        Placement(users, cluster, len(owners) // column_shards, column_shards, owners),
        Placement(ej.TableSpec("item", ITEMS, DIM, SCALE), "ub", 1, 1, (0,)),
    )
    return make_trainer(
        make_plan(FEATURES, placed, *mesh, BATCH, capacity),
        ej.FunctionModel({n: jnp.asarray(w) for n, w in WEIGHTS.items()}, logits_of),
        optimizer or ej.Adagrad(0.5),
        dense_optimizer=optax.sgd(dense_rate),
        **options,
    )


def fixed(dtype="float32") -> ej.TableSpec:
    return ej.TableSpec("user", USERS, DIM, SCALE, dtype=dtype)


def dynamic(slots=20, max_slots=1000, dtype="float32", **options) -> ej.TableSpec:
    table = ej.TableSpec.dynamic(
        "user", DIM, slots, max_slots, init_scale=SCALE, **options
    )
    return dataclasses.replace(table, dtype=dtype)


def rows_by_key(trainer: ej.Trainer) -> dict[int, np.ndarray]:
    """Rows and states of the dynamic table, one after the other."""
    state = trainer.whole_state()
    (name,) = (n for n in state.storages if "_user" in n)
    states = dict(state.embedding_state[name])
    keys = states.pop("key")
    used = states.pop("used")
    arrays = [state.storages[name], *states.values()]
    found = {}
    shards = (each.addressable_shards for each in (used, keys, *arrays))
    for use, key, *parts in zip(*shards, strict=True):
        rows = np.concatenate([each.data for each in parts], axis=1)
        known = use.data[:, 0] != NO_ROW
        for number, row in zip(key.data[known, 0].tolist(), rows[known], strict=True):
            columns = [found[number]] if number in found else []  # of other shards
            found[number] = np.concatenate([*columns, row])
    return found


@pytest.mark.parametrize(
    ("evicted", "slots", "steps"),
    [
        ("host", 50, 2),
        pytest.param("host", 256, 6, marks=pytest.mark.slow),
        pytest.param("discard", 50, 6, marks=pytest.mark.slow),
    ],
)
def test_rows_beside_a_dictionary(evicted, slots, steps):
    """SGD in float64; extreme keys, and ones that collide in all hashes of 256 slots.
    Scoring changes neither rows nor slots; keys without a row have their initial one
    there."""
    discard = evicted == "discard"
    table = dynamic(slots, slots, evicted=evicted)
    trainer = trainer_of(table, optimizer=ej.SGD(1.0), dense_rate=0.0)
    item = np.asarray(trainer.whole_state().storages["ub_4"], np.float64)
    rows: dict[int, np.ndarray] = {}
    lost = 0
    for batch in batches(0, steps, keys=HOSTILE):
        (result,) = trainer.iterate_batches([batch])
        logits, pooled = expected_logits(batch, rows, item)
        np.testing.assert_allclose(result.logits, logits, rtol=1e-5, atol=1e-5)
        rows = {key: row_of(rows, key) for key, _, _ in pooled} | rows
        slope = (1 / (1 + np.exp(-logits)) - batch.labels) / BATCH
        for key, sample, weight in pooled:
            rows[key] = rows[key] - slope[sample] * weight
        for sample, (number,) in enumerate(batch.ids["item"]):
            item[number] = item[number] - slope[sample] * WEIGHTS["item"]
        if discard:  # whatever has no slot any more is forgotten
            held = set(slot_keys(trainer))
            lost += len(rows.keys() - held)
            rows = {key: row for key, row in rows.items() if key in held}
        keys_in_slots = slot_keys(trainer)
        unseen = next(batches(50, 51, FAR))
        scored = next(batches(trainer.step + 1, 100, keys=HOSTILE)), unseen
        for given, found in trainer.predict(scored):
            logits, _ = expected_logits(given, rows, item)
            np.testing.assert_allclose(found, logits, rtol=1e-5, atol=1e-5)
        assert slot_keys(trainer) == keys_in_slots
    assert (lost > 0) == discard
    found = rows_by_key(trainer)
    assert set(rows) <= set(found)
    assert not set(unseen.ids["user"].ravel().tolist()) & set(found)
    for key, row in found.items():
        np.testing.assert_allclose(row, row_of(rows, key), rtol=1e-5, atol=1e-5)


def row_of(rows: dict[int, np.ndarray], key: int) -> np.ndarray:
    return rows[key] if key in rows else initial_row(key % 2**64).astype(np.float64)


def expected_logits(batch: ej.Batch, rows: dict[int, np.ndarray], item: np.ndarray):
    """The logits, and ``(key, sample, weight)`` of each lookup of a user."""
    logits, pooled = item[batch.ids["item"][:, 0]] @ WEIGHTS["item"], []
    for feature in FEATURES[:2]:
        for sample, bag in enumerate(batch.ids[feature.name]):
            keys = [int(key) for key in bag if key != -1]
            for key in keys:
                factor = 1 if feature.pooling == "sum" else 1 / len(keys)
                weight = WEIGHTS[feature.name] * factor
                logits[sample] += row_of(rows, key) @ weight
                pooled.append((key, sample, weight))
    return logits, pooled


def slot_keys(trainer: ej.Trainer) -> list[int]:
    """Keys whose rows have a slot, on one device."""
    assert trainer.cached is not None
    ((_, index),) = trainer.cached._indexes.items()
    return keys_of(np.asarray(index.slot_keys)[: int(index.taken[0])]).tolist()


def test_a_checkpoint_of_a_table_that_discards_brings_all_rows_into_slots(tmp_path):
    table = dynamic(45, 45, evicted="discard")
    saved, loaded = trainer_of(table), trainer_of(table)
    saved.train(batches(0, 3))
    with ej.Checkpointer(tmp_path, {}, keep=1) as checkpoints:
        checkpoints.save(saved.whole_state(), 3, saved.embeddings, {})
        loaded.load(checkpoints)
    assert set(slot_keys(loaded)) == set(slot_keys(saved))
    found, expected = rows_by_key(loaded), rows_by_key(saved)
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        np.testing.assert_array_equal(found[key], row)


@pytest.mark.slow
def test_a_run_that_discards_goes_on_as_if_nothing_had_been(tmp_path):
    """Evaluated at every step, in the middle of look-ahead; loaded from checkpoints."""
    table, options = dynamic(45, 45, evicted="discard"), {"mesh": (1, 2)}
    whole = trainer_of(table, **options)
    expected = losses(whole.iterate_batches(batches(0, 12)))
    assert expected != losses(
        trainer_of(fixed(), **options).iterate_batches(batches(0, 12))
    )
    one = trainer_of(table, **options)
    found = []
    for result in one.iterate_batches(batches(0, 7)):
        one.evaluate(batches(result.step + 3, result.step + 5, FAR * (result.step % 2)))
        found.append((result.step, result.loss))
    with ej.Checkpointer(tmp_path, {"seed": 1}, keep=2) as checkpoints:
        checkpoints.save(one.whole_state(), one.step, one.embeddings, {})
        again = trainer_of(table, **options)
        list(again.iterate_batches(batches(20, 23)))  # there are other rows in slots
        again.load(checkpoints)
        found += losses(again.iterate_batches(batches(7, 10)))
        checkpoints.save(again.whole_state(), again.step, again.embeddings, {})
        smaller = trainer_of(dynamic(40, 40, evicted="discard"), (1, 1))
        smaller.load(checkpoints)
        saved = rows_by_key(again)
        for key, row in rows_by_key(smaller).items():
            np.testing.assert_array_equal(row, saved[key])
        again.load(checkpoints)
    found += losses(again.iterate_batches(batches(10, 12)))
    assert found == expected


@pytest.mark.slow
def test_a_batch_that_needs_more_than_the_most_slots_is_refused():
    trainer = trainer_of(dynamic(slots=10, max_slots=12))
    with pytest.raises(
        TooFewSlotsError, match=r"tables user, .* raise their max_slots"
    ):
        list(trainer.iterate_batches(batches(0, 1)))


def test_dynamic_tables_lie_on_each_device_once():
    for placement in (
        Placement(dynamic(), "dp"),
        Placement(dynamic(), "ub", 2, 1, (0, 0)),
        Placement(dynamic(), "ub", 1, 2, (1, 1)),
        Placement(dynamic(), "ub", 1, 1, (0,), hot_rows=3),
    ):
        assert "table 'user': is dynamic" in placement.problems(2)[0]
