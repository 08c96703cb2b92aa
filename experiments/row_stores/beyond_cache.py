"""Reads and writes of a step in a file far larger than the page cache: rows in the
order of their numbers, beside a log.

Each runs in a process of its own, in a memory cgroup (version 1, as root).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from embark_jax.cache.row_log import ROWS_AT_ONCE, RowFile, RowLog

CGROUP = Path("/sys/fs/cgroup/memory/beyond_cache")
TABLES, HOTNESS, BATCH, ZIPF, VALUES = 8, 3, 2048, 1.1, 129
SLOTS = 0.1
PROCESS_BYTES = 100e6
ROWS_PER_WRITE = 1 << 16


def swaps(rows: int, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows that come and rows that leave, with LRU slots in their stationary state: the
    ages of rows are exponential, by how likely a batch asks for them."""
    rng, power = np.random.default_rng(0), 1 - ZIPF
    ranks = np.arange(1, rows + 2) ** power
    rate = 1 - (1 - np.diff(ranks) / (ranks[-1] - 1)) ** (BATCH * HOTNESS)
    first_rows = rows * np.arange(TABLES)[:, None]

    def strewn(rank: np.ndarray) -> np.ndarray:
        return first_rows + rank * 7919 % rows

    age = np.empty(TABLES * rows)
    age[strewn(np.arange(rows))] = rng.exponential(size=(TABLES, rows)) / rate
    in_slots = np.argsort(age)[: int(SLOTS * len(age))][::-1].astype(np.int32)
    last_step = np.full(len(age), -1, np.int32)
    last_step[in_slots] = 0
    queue = [(in_slots, 0)]  # rows by the step that asked for them, oldest first
    for step in range(1, steps + 1):
        drawn = rng.random((TABLES, BATCH * HOTNESS)) * (rows**power - 1)
        ids = np.unique(strewn(((1 + drawn) ** (1 / power)).astype(np.int64) - 1))
        come = ids[last_step[ids] < 0]
        last_step[ids] = step
        queue.append((ids.astype(np.int32), step))
        leaving = np.empty(0, np.int32)
        while len(leaving) < len(come):
            oldest, asked_at = queue[0]
            stale = np.flatnonzero(last_step[oldest] == asked_at)
            stale = stale[: len(come) - len(leaving)]
            leaving = np.append(leaving, oldest[stale])
            rest = oldest[stale[-1] + 1 :] if len(stale) else oldest[:0]
            queue[:1] = [(rest, asked_at)] if len(rest) else []
        last_step[leaving] = -1
        yield come, leaving


class InOrder(RowLog):
    """Rows in the order of their numbers, in the log's file."""

    def __init__(self, rows: int, folder: Path):
        super().__init__(rows, VALUES, folder)
        self._position = self._number[:rows] = np.arange(rows, dtype=np.int32)
        self.memory_bytes = 0.0

    def write(self, numbers, rows):
        def put(first: int) -> None:
            at_once = slice(first, first + ROWS_AT_ONCE)
            self._file.rows[numbers[at_once]] = rows[at_once]

        list(self._pool.map(put, range(0, len(numbers), ROWS_AT_ONCE)))


class InLog(RowLog):
    def __init__(self, rows: int, folder: Path):
        super().__init__(rows, VALUES, folder)
        self.memory_bytes = self._position.nbytes + self._number.nbytes


STORES: dict[str, Any] = {"in order": InOrder, "log": InLog}


class NoFile:
    """In place of a file, while a log is brought into its steady state."""

    def __init__(self, file: RowFile):
        self.rows = file.rows

    def read(self, first, end):
        return np.broadcast_to(np.zeros(VALUES, np.float32), (end - first, VALUES))

    def write(self, first, rows): ...

    def uncache(self, first, end): ...


def fill(store: Any) -> None:
    """Writes the number of each row into it, and empties the page cache of the file."""
    file = store._file
    numbers = store._number
    for first in range(0, len(numbers), ROWS_PER_WRITE):
        values = numbers[first : first + ROWS_PER_WRITE, None].astype(np.float32)
        file.write(first, np.repeat(values, VALUES, axis=1))
    os.sync()
    file.uncache(0, len(numbers))


def disk_accesses() -> np.ndarray:
    """Reads, and writes, of the whole machine since it started."""
    lines = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    return np.sum([(int(line[3]), int(line[7])) for line in lines], axis=0)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    rows = arguments.rows * TABLES
    store = STORES[name](rows, arguments.folder)
    numbers = np.arange(rows, dtype=np.int32)
    steps = swaps(arguments.rows, arguments.unmeasured + 2 * arguments.steps)
    if name == "log":
        file, store._file = store._file, NoFile(store._file)
        zero = np.float32(0)
        store.write(numbers, np.broadcast_to(zero, (rows, VALUES)))
        for _ in range(arguments.unmeasured):
            _, leaving = next(steps)
            store.write(leaving, np.broadcast_to(zero, (len(leaving), VALUES)))
        store._file = file
    timed = list(steps)[-2 * arguments.steps :]
    fill(store)
    CGROUP.mkdir(exist_ok=True)
    limit = arguments.gigabytes * 1e9 - store.memory_bytes + PROCESS_BYTES
    (CGROUP / "memory.limit_in_bytes").write_text(str(int(limit)))
    (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    seconds = np.zeros((len(timed), 2))
    for step, (come, leaving) in enumerate(timed):
        if step == arguments.steps:
            accesses, cpu_s = disk_accesses(), time.process_time()
        written = np.repeat(leaving[:, None].astype(np.float32), VALUES, axis=1)
        began = time.perf_counter()
        store.write(leaving, written)
        middle = time.perf_counter()
        read = store.read(come)
        seconds[step] = time.perf_counter() - middle, middle - began
        assert (read[:, 0] == come).all(), name
    began = time.perf_counter()
    os.sync()
    sync_s = (time.perf_counter() - began) / arguments.steps
    read_s, write_s = seconds[arguments.steps :].mean(axis=0)
    reads, writes = (disk_accesses() - accesses) / arguments.steps
    return {
        "ms": 1e3 * (read_s + write_s + sync_s),
        "reading_ms": 1e3 * read_s,
        "cpu_ms": 1e3 * (time.process_time() - cpu_s) / arguments.steps,
        "disk_reads": reads,
        "disk_writes": writes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_940_000, help="of a table")
    parser.add_argument("--gigabytes", type=float, default=0.6, help="of memory")
    parser.add_argument("--unmeasured", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", choices=STORES, help="in this process")
    arguments = parser.parse_args()
    if arguments.only:
        print(arguments.only, json.dumps(measure(arguments.only, arguments)))
        return
    for name in STORES:
        subprocess.run([sys.executable, *sys.argv, "--only", name], check=True)


if __name__ == "__main__":
    main()
