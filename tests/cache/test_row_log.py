"""A log of rows has what was last written, however often it went around its file."""

import numpy as np
import pytest

from embark_jax.cache import row_log
from embark_jax.cache.row_log import RowLog
from embark_jax.planner.cost.memory import DISK_SHARE

VALUES = 5


@pytest.mark.parametrize("rows", [1, 7, 1_000])
def test_it_is_what_an_array_is(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(row_log, "ROWS_MOVED", 64)
    monkeypatch.setattr(row_log, "SORTED_BYTES", 4 * VALUES * 150)  # several buckets
    rng = np.random.default_rng(rows)
    log, expected = RowLog(rows, VALUES, tmp_path), np.full((rows, VALUES), np.nan)
    everything = np.arange(rows)
    for step in range(60):
        numbers = rng.permutation(rows)[: rng.integers(rows + 1) if step % 5 else rows]
        if step % 2:  # few rows are hot
            numbers = np.unique(numbers // 20)
        written = rng.standard_normal((len(numbers), VALUES), np.float32)
        log.write(numbers, written)
        expected[numbers] = written
        held = ~np.isnan(expected[:, 0])
        np.testing.assert_array_equal(log.holds(everything), held)
        shuffled = rng.permutation(everything[held])
        np.testing.assert_array_equal(log.read(shuffled), expected[shuffled])
        if step % 7 == 0:
            columns = log.columns(slice(1, 3))
            np.testing.assert_array_equal(columns[held], expected[held, 1:3])
        if step % 20 == 19:  # a checkpoint is read, of other rows
            expected = rng.standard_normal((rows, VALUES)).astype(np.float32)
            log.columns(slice(None))[:] = expected
            expected = expected.astype(float)
            expected[rows // 2 + 1 :] = np.nan
            log.hold(everything[: rows // 2 + 1])
    assert not list(tmp_path.iterdir()), "a killed process would leave it"


def test_plans_count_its_disk(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr("os.posix_fallocate", lambda *args: sizes.append(args[-1]))
    monkeypatch.setattr(row_log.mmap, "mmap", lambda _, size: Mapped(size))
    RowLog(1_000, VALUES, tmp_path)
    assert sum(sizes) * DISK_SHARE == pytest.approx(4 * VALUES * 1_000)


class Mapped(bytearray):
    def madvise(self, advice):
        pass
