"""One measurement, in a process of its own; prints a JSON object.

Times are in seconds, bytes above those that the process had before.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

PIECE = 8 << 20


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
    """Takes what is in a folder out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def timed(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def baseline(options: argparse.Namespace) -> dict[str, float]:
    """A copy in memory, and NumPy's way to disk and back; and the same past the page
    cache, in pieces, by one thread."""
    size = int(options.gigabytes * 1e9) // PIECE * PIECE
    path = options.folder / "plain.bin"
    array = np.arange(size // 4, dtype=np.float32)
    copies: list[np.ndarray] = []
    copy_s = timed(lambda: copies.append(array.copy()))
    copies.clear()

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

    found = {"copy_s": copy_s, "numpy_write_s": timed(write)}
    forget(options.folder)
    found["numpy_read_s"] = timed(lambda: np.fromfile(path, np.float32))
    found["direct_write_s"] = timed(write_direct)
    forget(options.folder)
    found["direct_read_s"] = timed(read_direct)
    path.unlink()
    return found


def save(options: argparse.Namespace) -> dict[str, float]:
    from state import make_plan, make_state

    from embark_jax.train.checkpoint import Checkpointer

    plan = make_plan(options.gigabytes, options.devices, options.way)
    state, embeddings = make_state(plan, filled=True)
    with Peak() as peak:
        begin = time.perf_counter()
        with Checkpointer(
            options.folder / "ours", {}, 1, options.memory, print_aside
        ) as checkpoints:
            checkpoints.save(state, 1, embeddings, {})
            still = time.perf_counter() - begin
        complete = time.perf_counter() - begin
    return {"stand_still_s": still, "complete_s": complete, "peak_bytes": peak.bytes}


def restore(options: argparse.Namespace) -> dict[str, float]:
    from state import check, make_plan, make_state

    from embark_jax.train.checkpoint import Checkpointer

    plan = make_plan(options.gigabytes, options.devices, options.way)
    state, embeddings = make_state(plan, filled=False)
    forget(options.folder)
    with Peak() as peak:
        begin = time.perf_counter()
        with Checkpointer(
            options.folder / "ours", {}, None, options.memory, print_aside
        ) as checkpoints:
            state, _ = checkpoints.restore(state, embeddings)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - begin
    if jax.process_count() == 1:
        source = make_plan(
            options.gigabytes, options.source_devices, options.source_way
        )
        check(state, plan, source)
    return {"restore_s": seconds, "peak_bytes": peak.bytes}


def orbax(options: argparse.Namespace) -> dict[str, float]:
    """Saves and restores one plain array of as many bytes, sharded by rows."""
    import orbax.checkpoint as ocp
    from jax.sharding import PartitionSpec
    from state import make_plan, make_state

    plan = make_plan(options.gigabytes, options.devices, "rows")
    state, _ = make_state(plan, filled=True)
    tree = {"table": state.storages["rb_64"]}
    assert tree["table"].sharding.spec != PartitionSpec()
    path = options.folder / "orbax"
    found: dict[str, float] = {}
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        with Peak() as peak:
            begin = time.perf_counter()
            checkpointer.save(path, args=ocp.args.PyTreeSave(tree))
            found["stand_still_s"] = time.perf_counter() - begin
            checkpointer.wait_until_finished()
            found["complete_s"] = time.perf_counter() - begin
        found["peak_bytes"] = peak.bytes
        forget(options.folder)
        like = jax.tree.map(
            lambda each: jax.ShapeDtypeStruct(
                each.shape, each.dtype, sharding=each.sharding
            ),
            tree,
        )
        size = tree["table"].nbytes
        del tree, state
        with Peak() as peak:
            begin = time.perf_counter()
            read = checkpointer.restore(
                path,
                args=ocp.args.PyTreeRestore(
                    like,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(like),
                ),
            )
            jax.block_until_ready(read)
            found["restore_s"] = time.perf_counter() - begin
        # Those of the array itself are not above the tables.
        found["restore_peak_bytes"] = peak.bytes - size
    return found


def print_aside(line: str) -> None:
    if os.environ.get("VERBOSE"):
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["baseline", "save", "restore", "orbax"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--way", default="rows")
    parser.add_argument("--source-devices", type=int)
    parser.add_argument("--source-way", default="rows")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--coordinator")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.devices // options.processes)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            options.coordinator, options.processes, options.process
        )
    function = globals()[options.what]
    print(json.dumps(function(options)), flush=True)


if __name__ == "__main__":
    main()
