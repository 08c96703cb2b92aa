"""Cached tables train as those whose rows all lie in device memory."""

import errno
import math
import os

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.cache import row_store
from embark_jax.cache.cached_rows import TooFewSlotsError
from embark_jax.cache.row_store import StoreError
from embark_jax.plans.storage import Placement
from tests.builders import (
    DENSE,
    assert_equal_states,
    assert_same_tables,
    losses,
    make_plan,
    make_trainer,
    tables_and_states,
)
from tests.compiled import check_swap

BATCH, STEPS = 16, 8
FEATURES = (
    ej.FeatureSpec("a", hotness=3),
    ej.FeatureSpec("also_a", "a", pooling="mean", hotness=2, weighted=True),
    ej.FeatureSpec("b", hotness=2),
    ej.FeatureSpec("c"),
)
ROWS = {"a": 300, "b": 200, "c": 20}


class Clicks:
    """Ids of a few rows, which are other ones every few steps."""

    features = FEATURES
    dense_features = DENSE

    def train_batch(self, step: int, batch_size: int) -> ej.Batch:
        rng = np.random.default_rng([step])
        ids, weights = {}, {}
        for feature in FEATURES:
            rows, shape = ROWS[feature.table], (batch_size, feature.hotness)
            first = step // 2 * 37
            drawn = (first + rng.integers(0, 40, shape)) % rows
            drawn[rng.random(shape) < 0.2] = -1
            ids[feature.name] = drawn.astype(np.int32)
            if feature.weighted:
                weights[feature.name] = rng.uniform(0.1, 1, shape).astype(np.float32)
        return ej.Batch(
            dense=rng.standard_normal((batch_size, DENSE), np.float32),
            ids=ids,
            weights=weights,
            labels=rng.integers(0, 2, batch_size).astype(np.float32),
        )

    def test_batches(self, batch_size):
        yield self.train_batch(1000, batch_size)
        yield self.train_batch(1001, batch_size - 5)


def trainer_of(
    tier="device",
    slots=None,
    mesh=(2, 4),
    cluster="ub",
    optimizer=None,
    capacity=200,
    evict="lru",
    dtypes=("float32", "float32"),
    **options,
) -> ej.Trainer:
    devices = math.prod(mesh)
    of_a, of_b = ({"tier": tier, "slots": slots, "dtype": dtype} for dtype in dtypes)
    tables = [
        ej.TableSpec("a", ROWS["a"], 4, evict=evict, **of_a),
        ej.TableSpec("b", ROWS["b"], 4, **of_b),
        ej.TableSpec("c", ROWS["c"], 4),
    ]
    placed = (
        Placement(tables[0], cluster, devices, 1, tuple(range(devices)), hot_rows=7),
        # On one device: two row shards and two column shards.
        Placement(tables[1], cluster, 2, 2, (devices - 1,) * 4),
        Placement(tables[2], "ub", 1, 1, (0,)),
    )
    plan = make_plan(FEATURES, placed, *mesh, BATCH, capacity)
    return make_trainer(plan, optimizer=optimizer, **options)


def assert_alike(trainer: ej.Trainer, expected: ej.Trainer) -> None:
    """Bit by bit."""
    assert_same_tables(tables_and_states(trainer), tables_and_states(expected))
    assert_equal_states(trainer.state.params, expected.state.params)


class DictStore:
    """A row store as somebody else might write it: rows by number in a dictionary, but
    for those that a checkpoint reads and writes in place."""

    def __init__(self, rows: int, values: int, folder):
        self.rows, self._values = rows, values
        self._held: dict[int, np.ndarray] = {}

    def holds(self, numbers):
        return np.array([int(number) in self._held for number in numbers], bool)

    def read(self, numbers):
        rows = [self._held[int(number)] for number in numbers]
        return np.array(rows, np.float32).reshape(len(rows), self._values)

    def write(self, numbers, rows):
        self._held |= {int(n): row for n, row in zip(numbers, rows, strict=True)}

    def columns(self, columns):
        zeros = np.zeros(self._values, np.float32)
        rows = [self._held.get(number, zeros) for number in range(self.rows)]
        return np.array(rows)[:, columns]

    def hold(self, numbers):
        raise NotImplementedError("is for checkpoints")


def test_a_store_is_a_class_and_a_line_of_the_registry(monkeypatch):
    monkeypatch.setitem(row_store.STORES, "host", DictStore)
    options = {"mesh": (1, 1), "optimizer": ej.Adagrad(0.5)}
    cached = trainer_of("host", 200, **options)
    cached.fit(Clicks(), STEPS)
    resident = trainer_of(**options)
    resident.fit(Clicks(), STEPS)
    assert_alike(cached, resident)


# A device has up to 38 of a's rows; of b's one has all 200 twice, in halves of columns.
@pytest.mark.parametrize(
    ("mesh", "cluster", "optimizer", "slots", "dtypes"),
    [
        ((1, 1), "ub", ej.SGD(0.5), 80, ("float32", "float16")),
        ((2, 4), "rb", ej.Adagrad(0.5), 200, ("float32", "float32")),
        ((2, 2), "ub", ej.RowwiseAdagrad(0.5), 80, ("bfloat16", "float16")),
        ((2, 2), "rb", ej.FTRL(0.5, l1=0.01), 80, ("bfloat16", "float32")),
    ],
)
@pytest.mark.slow
def test_cached_tables_train_bit_for_bit(mesh, cluster, optimizer, slots, dtypes):
    options = {"mesh": mesh, "cluster": cluster, "optimizer": optimizer}
    options["dtypes"] = dtypes
    expected = trainer_of(**options)
    cached = trainer_of("host", slots, **options)
    assert losses(cached.iterate(Clicks(), STEPS)) == losses(
        expected.iterate(Clicks(), STEPS)
    )
    assert cached.cached is not None
    *hits, late = cached.cached.figures().values()
    assert all(0 < each < 1 for each in hits)
    assert 0 <= late <= 1
    assert_alike(cached, expected)
    batches = list(Clicks().test_batches(BATCH))
    assert cached.evaluate(batches) == expected.evaluate(batches)
    assert_alike(cached, expected)
    assert losses(cached.iterate(Clicks(), STEPS + 3)) == losses(
        expected.iterate(Clicks(), STEPS + 3)
    )
    assert_alike(cached, expected)


def test_a_swap_moves_rows_in_place():
    mesh = trainer_of("host", 40, mesh=(1, 2)).embeddings.mesh
    check_swap(mesh, 4, slots=200_000)


@pytest.mark.slow
def test_slots_that_barely_hold_every_batch_and_one_too_few():
    rows = []
    for step in range(STEPS):
        ids = Clicks().train_batch(step, BATCH).ids
        cold = np.union1d(ids["a"], ids["also_a"]) - 7
        rows.append(max((each >= 0).sum() for each in (cold, np.unique(ids["b"]))))
    most, worst = max(rows), int(np.argmax(rows))
    expected = trainer_of(mesh=(1, 1))
    enough = trainer_of("host", most, mesh=(1, 1))
    too_few = trainer_of("host", most - 1, mesh=(1, 1))
    list(expected.iterate(Clicks(), worst))
    with pytest.raises(TooFewSlotsError, match=f"asks for {most} rows .* a, which"):
        list(too_few.iterate(Clicks(), STEPS))
    assert_alike(too_few, expected)
    list(expected.iterate(Clicks(), STEPS))
    list(enough.iterate(Clicks(), STEPS))
    assert_alike(enough, expected)


@pytest.mark.slow
def test_directories_grow_until_all_keys_have_room(monkeypatch):
    """From two buckets, which hold 16 keys."""
    mesh = (1, 1)
    expected = trainer_of(mesh=mesh)
    monkeypatch.setattr("embark_jax.cache.key_index.default_buckets", lambda slots: 2)
    cached = trainer_of("host", 80, mesh=mesh)
    list(cached.iterate(Clicks(), 4))
    list(expected.iterate(Clicks(), 4))
    assert_alike(cached, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("disk", "device"), ("device", "host")])
def test_a_checkpoint_goes_with_and_without_a_cache(first, then, tmp_path):
    """To another mesh, with all rows and their state."""
    slots = {"device": None, "host": 70, "disk": 90}
    identity, batches = {"seed": 1}, list(Clicks().test_batches(BATCH))
    dtypes = "bfloat16", "float32"
    one = trainer_of(first, slots[first], mesh=(2, 2), dtypes=dtypes)
    list(one.iterate(Clicks(), 5))
    other = trainer_of(then, slots[then], mesh=(1, 2), cluster="rb", dtypes=dtypes)
    list(other.iterate(Clicks(), 2))  # there are other rows in slots
    auc, saved = one.evaluate(batches).auc, tables_and_states(one)
    with ej.Checkpointer(tmp_path, identity, keep=1) as checkpoints:
        if first != "device":
            with pytest.raises(ValueError, match=r"give Trainer.whole_state\(\)"):
                checkpoints.save(one.state, one.step, one.embeddings, {})
        checkpoints.save(one.whole_state(), one.step, one.embeddings, {})
        # Changes nothing of what is being written.
        expected = list(one.iterate(Clicks(), STEPS))[-1].loss
        state, _ = checkpoints.restore(other.whole_state(), other.embeddings)
    other.restore(state)
    assert other.step == 5
    assert_same_tables(tables_and_states(other), saved)
    assert other.evaluate(batches).auc == auc
    last = list(other.iterate(Clicks(), STEPS))[-1]
    assert last.loss == pytest.approx(expected, rel=1e-6)


def test_a_disk_that_is_full_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StoreError, match=r"kB of rows of tier disk in .*No space"):
        trainer_of("disk", 80, scratch=tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
