"""The measurements of one size and mesh, in a process of their own; prints JSON.

Times are in seconds, bytes are those above what the process had before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp
from state import check, make_plan, make_state

from embark_jax.checkpoint import Checkpointer
from embark_jax.launch.agreement import tell_all
from embark_jax.plans.plan import Plan

PIECE = 8 << 20
OTHER_MESH = {1: 2, 2: 8, 8: 2}


class Peak:
    """The most memory that the process has while the block runs, above that before."""

    def __enter__(self) -> Peak:
        self._begin = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak until now
        return self

    def __exit__(self, *_) -> None:
        self.bytes = _status("VmHWM") - self._begin


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def forget(folder: Path) -> None:
    """Takes what is in a folder out of the page cache; an older checkpoint there may be
    deleted meanwhile, by another process."""
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                file = os.open(Path(where) / name, os.O_RDONLY)
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def timed(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def copies(array: np.ndarray) -> list[float]:
    """Times of copying it into fresh memory, then twice into the same."""
    copy = np.empty_like(array)
    return [timed(lambda: np.copyto(copy, array)) for _ in range(3)]


def baseline(size: int, folder: Path) -> dict[str, float]:
    """A copy in memory, into fresh pages and into those again; NumPy's way to disk and
    back; and the same past the page cache, piece by piece."""
    size = size // PIECE * PIECE
    path = folder / "plain.bin"
    array = np.arange(size // 4, dtype=np.float32)
    halves = np.split(array, 2)  # the copy of all would need twice the memory

    def write():
        with path.open("wb") as file:
            array.tofile(file)
            file.flush()
            os.fsync(file.fileno())

    def write_direct():
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
        buffer = np.frombuffer(mmap.mmap(-1, PIECE), np.uint8)
        data = array.view(np.uint8)
        for begin in range(0, size, PIECE):
            buffer[:] = data[begin : begin + PIECE]
            os.write(file, buffer.data)
        os.fsync(file)
        os.close(file)

    def read_direct():
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        buffer = np.frombuffer(mmap.mmap(-1, PIECE), np.uint8)
        data = array.view(np.uint8)
        for begin in range(0, size, PIECE):
            os.readv(file, [buffer.data])
            data[begin : begin + PIECE] = buffer
        os.close(file)

    fresh, *again = copies(halves[0])
    found = {"copy_s": 2 * fresh, "warm_copy_s": 2 * min(again)}
    found["numpy_write_s"] = timed(write)
    forget(folder)
    with path.open("rb") as file:
        found["numpy_read_s"] = timed(lambda: file.readinto(array.data.cast("B")))
    found["direct_write_s"] = timed(write_direct)
    forget(folder)
    found["direct_read_s"] = timed(read_direct)
    path.unlink()
    return found


def save(plan: Plan, folder: Path, memory: int | None) -> dict[str, float]:
    state, embeddings = make_state(plan, filled=True)
    with Peak() as peak:
        begin = time.perf_counter()
        with Checkpointer(folder / "ours", {}, 1, memory) as checkpoints:
            step = max(checkpoints.steps, default=0) + 1
            checkpoints.save(state, step, embeddings, {})
            still = time.perf_counter() - begin
        complete = time.perf_counter() - begin
    return {"stand_still_s": still, "complete_s": complete, "peak_bytes": peak.bytes}


def restore(
    plan: Plan, source: Plan, folder: Path, memory: int | None
) -> dict[str, float]:
    state, embeddings = make_state(plan, filled=False)
    forget(folder)
    with Peak() as peak:
        begin = time.perf_counter()
        with Checkpointer(folder / "ours", {}, None, memory) as checkpoints:
            state, _ = checkpoints.restore(state, embeddings)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - begin
    if jax.process_count() == 1:
        check(state, plan, source)
    return {"restore_s": seconds, "peak_bytes": peak.bytes}


def orbax(plan: Plan, folder: Path) -> dict[str, float]:
    """Saves and restores one plain array of as many bytes, sharded by rows, with
    Orbax's own writer of arrays, uncompressed: random numbers do not shrink."""
    state, _ = make_state(plan, filled=True)
    tree = {"table": next(iter(state.storages.values()))}
    like = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(
            each.shape, each.dtype, sharding=each.sharding
        ),
        tree,
    )
    size, path = tree["table"].nbytes, folder / "orbax"
    found: dict[str, float] = {}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_compression=False)
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        with Peak() as peak:
            begin = time.perf_counter()
            checkpointer.save(path, args=ocp.args.PyTreeSave(tree))
            found["stand_still_s"] = time.perf_counter() - begin
            checkpointer.wait_until_finished()
            found["complete_s"] = time.perf_counter() - begin
        found["peak_bytes"] = peak.bytes
        forget(folder)
        del tree, state
        with Peak() as peak:
            begin = time.perf_counter()
            restore_args = ocp.checkpoint_utils.construct_restore_args(like)
            args = ocp.args.PyTreeRestore(like, restore_args=restore_args)
            jax.block_until_ready(checkpointer.restore(path, args=args))
            found["restore_s"] = time.perf_counter() - begin
        # Those of the array itself are not above the tables.
        found["restore_peak_bytes"] = peak.bytes - size
    tell_all("restored by Orbax")
    if jax.process_index() == 0:
        shutil.rmtree(path)
    return found


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    devices, folder = options.devices, options.folder
    plan = make_plan(options.gigabytes, devices, "rows")
    size = sum(4 * table.rows * table.dim for table in plan.tables)
    found: dict[str, dict[str, float]] = {"": {"bytes": size, "devices": devices}}
    if jax.process_index() == 0:
        found["baseline"] = baseline(size, folder)
    tell_all("measured")
    small = size // 10 // jax.process_count()
    found["save in little memory"] = save(plan, folder, small)
    found["save"] = save(plan, folder, None)
    found["restore"] = restore(plan, plan, folder, None)
    found["restore in little memory"] = restore(plan, plan, folder, small // 2)
    for way in ("pooled", "columns"):
        other = make_plan(options.gigabytes, devices, way)
        found[f"restore: {way}"] = restore(other, plan, folder, None)
    if jax.process_count() == 1:
        other = make_plan(options.gigabytes, OTHER_MESH[devices], "rows")
        name = f"restore: rows on {OTHER_MESH[devices]} devices"
        found[name] = restore(other, plan, folder, None)
    tell_all("restored")
    if jax.process_index() == 0:
        shutil.rmtree(folder / "ours")
    found["orbax"] = orbax(plan, folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--coordinator")
    options = parser.parse_args()
    several = options.processes > 1
    jax.config.update("jax_platforms", "cpu")
    jax.config.update(
        "jax_num_cpu_devices", options.devices // options.processes if several else 8
    )
    if several:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            options.coordinator, options.processes, options.process
        )
    absl.logging.set_verbosity(absl.logging.ERROR)  # Orbax tells each of its steps
    print(json.dumps(measure(options)), flush=True)


if __name__ == "__main__":
    main()
