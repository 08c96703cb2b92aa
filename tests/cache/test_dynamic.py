"""Dynamic tables train as tables that had all their rows from the start."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.cache.stored_rows import NO_ROW
from embark_jax.embedding.keys import keys_of
from embark_jax.plans.placement import Placement
from embark_jax.train.cached_rows import TooFewSlotsError
from tests.builders import losses
from tests.cache.rows_by_key import EXTREME, colliding, initial_row
from tests.matrix.runs import (
    BATCH,
    POOLED,
    ROWS,
    Kind,
    batches,
    dynamic,
    fixed,
    trainer_of,
    weights_of,
)

WEIGHTS = {name: each[0] for name, each in weights_of(POOLED).items()}
FAR = np.arange(ROWS) + 2**62 + 2**33 + 5
"""Keys that need 63 bits."""
HOSTILE = np.array([*EXTREME, *colliding(60), *(np.arange(150) * (2**33 + 1) - 2**39)])
"""Keys of rows."""


def of_slots(slots: int, **options: Any) -> Kind:
    """A dynamic table of so many slots."""
    return Kind(dynamic(slots=slots, max_slots=slots, **options))


def with_keys(given: Iterable[ej.Batch], keys: np.ndarray) -> Iterator[ej.Batch]:
    """Batches with these keys in the place of ids."""
    for batch in given:
        ids = dict(batch.ids)
        for name in ("x", "mean"):
            ids[name] = np.where(ids[name] < 0, -1, keys[ids[name]])
        yield dataclasses.replace(batch, ids=ids)


def rows_by_key(trainer: ej.Trainer) -> dict[int, np.ndarray]:
    """Rows and states of the dynamic table, one after the other."""
    state = trainer.whole_state()
    (name,) = (n for n in state.storages if "_x" in n)
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
    ("evicted", "slots", "most", "steps"),
    [
        ("host", 24, 60, 3),
        pytest.param("host", 256, 256, 6, marks=pytest.mark.slow),
        pytest.param("discard", 50, 50, 6, marks=pytest.mark.slow),
    ],
)
def test_rows_beside_a_dictionary(evicted, slots, most, steps):
    """SGD in float64; extreme keys, and ones that collide in all hashes of 256 slots,
    whose number grows until there are most. Scoring changes neither rows nor slots;
    keys without a row have their initial one there."""
    discard = evicted == "discard"
    kind = Kind(dynamic(slots=slots, max_slots=most, evicted=evicted))
    trainer = trainer_of(kind, (1, 1), optimizer=ej.SGD(1.0), dense_rate=0.0)
    item = np.asarray(trainer.whole_state().storages["ub_4"], np.float64)
    rows: dict[int, np.ndarray] = {}
    lost = 0
    for batch in with_keys(batches(0, steps), HOSTILE):
        (result,) = trainer.iterate_batches([batch])
        logits, pooled = expected_logits(batch, rows, item)
        np.testing.assert_allclose(result.logits, logits, rtol=1e-5, atol=1e-5)
        rows = {key: row_of(rows, key) for key, _, _ in pooled} | rows
        slope = (1 / (1 + np.exp(-logits)) - batch.labels) / BATCH
        for key, sample, weight in pooled:
            rows[key] = rows[key] - slope[sample] * weight
        for sample, (number,) in enumerate(batch.ids["other"]):
            item[number] = item[number] - slope[sample] * WEIGHTS["other"]
        if discard:  # whatever has no slot any more is forgotten
            held = set(slot_keys(trainer))
            lost += len(rows.keys() - held)
            rows = {key: row for key, row in rows.items() if key in held}
        keys_in_slots = slot_keys(trainer)
        unseen = next(with_keys(batches(50, 51), FAR))
        later = batches(trainer.step + 1, 100)
        scored = next(with_keys(later, HOSTILE)), unseen
        for given, found in trainer.predict(scored):
            logits, _ = expected_logits(given, rows, item)
            np.testing.assert_allclose(found, logits, rtol=1e-5, atol=1e-5)
        assert slot_keys(trainer) == keys_in_slots
    assert (lost > 0) == discard
    assert (trainer.recompilations > 0) == (slots < most)
    found = rows_by_key(trainer)
    assert set(rows) <= set(found)
    assert not set(unseen.ids["x"].ravel().tolist()) & set(found)
    for key, row in found.items():
        np.testing.assert_allclose(row, row_of(rows, key), rtol=1e-5, atol=1e-5)


def row_of(rows: dict[int, np.ndarray], key: int) -> np.ndarray:
    return rows[key] if key in rows else initial_row(key % 2**64).astype(np.float64)


def expected_logits(batch: ej.Batch, rows: dict[int, np.ndarray], item: np.ndarray):
    """The logits, and ``(key, sample, weight)`` of each lookup by key."""
    logits, pooled = item[batch.ids["other"][:, 0]] @ WEIGHTS["other"], []
    for name in ("x", "mean"):
        for sample, bag in enumerate(batch.ids[name]):
            factors = np.where(bag == -1, 0.0, 1.0)
            if name == "mean":
                factors = factors * batch.weights["mean"][sample]
                factors = factors / max(factors.sum(), 1e-9)
            for key, factor in zip(bag.tolist(), factors, strict=True):
                if factor:
                    weight = WEIGHTS[name] * factor
                    logits[sample] += row_of(rows, key) @ weight
                    pooled.append((key, sample, weight))
    return logits, pooled


def slot_keys(trainer: ej.Trainer) -> list[int]:
    """Keys whose rows have a slot, on one device."""
    assert trainer.cached is not None
    ((_, index),) = trainer.cached._indexes.items()
    return keys_of(np.asarray(index.slot_keys)[: int(index.taken[0])]).tolist()


def test_a_checkpoint_of_a_table_that_discards_brings_all_rows_into_slots(tmp_path):
    kind = of_slots(45, evicted="discard")
    saved, loaded = (trainer_of(kind, (1, 1)) for _ in range(2))
    list(saved.iterate_batches(batches(0, 3)))
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
    kind, mesh = of_slots(45, evicted="discard"), (1, 2)
    expected, kept = (
        losses(trainer_of(each, mesh).iterate_batches(batches(0, 12)))
        for each in (kind, Kind(fixed()))
    )
    assert expected != kept
    one = trainer_of(kind, mesh)
    found = []
    for result in one.iterate_batches(batches(0, 7)):
        scored = batches(result.step + 3, result.step + 5)
        one.evaluate(with_keys(scored, FAR) if result.step % 2 else scored)
        found.append((result.step, result.loss))
    with ej.Checkpointer(tmp_path, {"seed": 1}, keep=2) as checkpoints:
        checkpoints.save(one.whole_state(), one.step, one.embeddings, {})
        again = trainer_of(kind, mesh)
        list(again.iterate_batches(batches(20, 23)))  # there are other rows in slots
        again.load(checkpoints)
        found += losses(again.iterate_batches(batches(7, 10)))
        checkpoints.save(again.whole_state(), again.step, again.embeddings, {})
        smaller = trainer_of(of_slots(40, evicted="discard"), (1, 1))
        smaller.load(checkpoints)
        saved = rows_by_key(again)
        for key, row in rows_by_key(smaller).items():
            np.testing.assert_array_equal(row, saved[key])
        again.load(checkpoints)
    found += losses(again.iterate_batches(batches(10, 12)))
    assert found == expected


@pytest.mark.slow
def test_a_batch_that_needs_more_than_the_most_slots_is_refused():
    trainer = trainer_of(of_slots(12), (1, 1))
    with pytest.raises(TooFewSlotsError, match=r"tables x, .* raise their max_slots"):
        list(trainer.iterate_batches(batches(0, 1)))


def test_dynamic_tables_lie_on_each_device_once():
    table = of_slots(20).table
    for placement in (
        Placement(table, "dp"),
        Placement(table, "ub", 2, 1, (0, 0)),
        Placement(table, "ub", 1, 2, (1, 1)),
        Placement(table, "ub", 1, 1, (0,), hot_rows=3),
    ):
        assert "table 'x': is dynamic" in placement.problems(2)[0]
