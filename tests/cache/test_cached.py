"""Cached tables, beside what the matrix of runs tries."""

import errno
import os

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.cache import row_store
from embark_jax.cache.row_store import StoreError
from embark_jax.train.cached_rows import TooFewSlotsError
from tests.builders import losses
from tests.compiled import check_swap
from tests.matrix.runs import HOT, KINDS, Kind, batches, fixed, rows_of, trainer_of

STEPS, ONE = 8, (1, 1)
HOST, RESIDENT = KINDS["on host"], KINDS["ub"]


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


def assert_alike(found: ej.Trainer, expected: ej.Trainer, given) -> None:
    """Both train on the same batches, to the same bits."""
    given = list(given)
    steps, others = (losses(each.iterate_batches(given)) for each in (found, expected))
    assert steps == others
    np.testing.assert_array_equal(rows_of(found), rows_of(expected))


def test_a_store_is_a_class_and_a_line_of_the_registry(monkeypatch):
    """Of a table whose rows lie in two column shards, but for the hot ones."""
    monkeypatch.setitem(row_store.STORES, "host", DictStore)
    placed = "rb", 2, HOT
    tables = fixed(tier="host", slots=80), fixed()
    cached, resident = (trainer_of(Kind(each, placed), (1, 2)) for each in tables)
    assert_alike(cached, resident, batches(0, STEPS))
    assert cached.cached is not None
    *hits, late = cached.cached.figures().values()
    assert all(0 < each < 1 for each in hits)
    assert 0 <= late <= 1


def test_slots_are_not_taken_for_rows():
    trainer = trainer_of(HOST, ONE)
    with pytest.raises(ValueError, match=r"are in slots, not all; trainer\.table\("):
        ej.export_table(trainer.embeddings, trainer.state.storages, "x")


def test_a_swap_moves_rows_in_place():
    check_swap(trainer_of(HOST, (1, 2)).embeddings.mesh, 4, slots=200_000)


@pytest.mark.slow
def test_slots_that_barely_hold_every_batch_and_one_too_few():
    given = list(batches(0, STEPS))
    rows = [np.union1d(batch.ids["x"], batch.ids["mean"]) for batch in given]
    asked = [(each >= 0).sum() for each in rows]
    most, worst = max(asked), int(np.argmax(asked))
    expected, enough, too_few = (
        trainer_of(kind, ONE)
        for kind in (
            RESIDENT,
            Kind(fixed(tier="host", slots=most)),
            Kind(fixed(tier="host", slots=most - 1)),
        )
    )
    with pytest.raises(TooFewSlotsError, match=f"asks for {most} rows .* x, which"):
        list(too_few.iterate_batches(given))
    list(expected.iterate_batches(given[:worst]))
    np.testing.assert_array_equal(rows_of(too_few), rows_of(expected))
    list(enough.iterate_batches(given[:worst]))
    assert_alike(enough, expected, given[worst:])


@pytest.mark.slow
def test_directories_grow_until_all_keys_have_room(monkeypatch):
    """From two buckets, which hold 16 keys."""
    expected = trainer_of(RESIDENT, ONE)
    monkeypatch.setattr("embark_jax.cache.key_index.default_buckets", lambda slots: 2)
    assert_alike(trainer_of(HOST, ONE), expected, batches(0, 4))


@pytest.mark.slow
def test_a_checkpoint_of_rows_in_device_memory_goes_into_a_cache(tmp_path):
    resident, cached = trainer_of(RESIDENT), trainer_of(HOST, (1, 2))
    list(resident.iterate_batches(batches(0, 5)))
    list(cached.iterate_batches(batches(0, 2)))  # there are other rows in slots
    with ej.Checkpointer(tmp_path, {"seed": 1}, keep=1) as checkpoints:
        with pytest.raises(ValueError, match=r"give Trainer.whole_state\(\)"):
            checkpoints.save(cached.state, cached.step, cached.embeddings, {})
        checkpoints.save(resident.whole_state(), 5, resident.embeddings, {})
        cached.load(checkpoints)
    np.testing.assert_array_equal(rows_of(cached), rows_of(resident))


def test_a_disk_that_is_full_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StoreError, match=r"kB of rows of tier disk in .*No space"):
        trainer_of(KINDS["on disk"], scratch=tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
