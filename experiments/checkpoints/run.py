"""Saves and restores gigabytes of tables, beside the speed of the disk: README.md.

    python experiments/checkpoints/run.py --folder DISK [--sizes 1 4]

Times are in seconds, bytes are those above what a process had before.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import RowwiseAdagrad
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.checkpoint import Checkpointer
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import pieces, rows_and_dim, table_shards
from embark_jax.plans.layout import lay_out
from embark_jax.plans.placement import Placement
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.train.state import TrainState
from experiments.results import output_of

HERE = Path(__file__).parent
SIZES = (1, 4)
DEVICES = (1, 8)
DIM = 64
TABLES = 4
ROWS = 4096
"""Of each place of a table that is looked at."""
MASK = 2**24 - 1
"""Integers up to here are float32s."""


def make_plan(gigabytes: float, devices: int, way: str) -> Plan:
    """Four tables of one size on a mesh of one node.

    Args:
      gigabytes: of the tables together.
      devices: of the mesh.
      way: "rows" splits each in UB by rows over all devices, "columns" in UB by two
        columns and half as many rows, "pooled" in RB by rows, from the last device on.
    """
    rows = int(gigabytes * 1e9 / (4 * DIM * TABLES)) // 64 * 64
    tables = [TableSpec(f"t{i}", rows, DIM) for i in range(TABLES)]
    features = tuple(FeatureSpec(f"f{i}", f"t{i}") for i in range(TABLES))
    owners = tuple(range(devices))
    placed = []
    for table in tables:
        if way == "rows":
            placed.append(Placement(table, "ub", devices, 1, owners))
        elif way == "pooled":
            placed.append(Placement(table, "rb", devices, 1, owners[::-1]))
        else:
            shards = max(1, devices // 2)
            over = tuple(i % devices for i in range(2 * shards))
            placed.append(Placement(table, "ub", shards, 2, over))
    storages = lay_out(tuple(placed), features, devices)
    capacities = {storage.name: 64 for storage in storages}
    return Plan(features, tuple(placed), 1, devices, 8 * devices, capacities)


def make_state(plan: Plan, filled: bool) -> tuple[TrainState, EmbeddingCollection]:
    """A state of zeros, or of values that tell their row and column in the array."""
    embeddings = EmbeddingCollection(plan, plan.make_mesh())
    scalar = jax.jit(
        lambda: jnp.zeros((), jnp.int32),
        out_shardings=NamedSharding(embeddings.mesh, PartitionSpec()),
    )()
    storages = {}
    for storage in plan.storages:
        shape = storage.slots_per_device * plan.devices, storage.width
        sharding = embeddings.shardings[storage.name]
        fill = _fill if filled else jnp.zeros
        make = jax.jit(fill, static_argnums=0, out_shardings=sharding)
        storages[storage.name] = make(shape)
    state = TrainState(
        step=scalar,
        halted=scalar,
        params={},
        dense_state={},
        model_state={},
        storages=storages,
        embedding_state=embeddings.init_optimizer(RowwiseAdagrad(0.1)),
    )
    return jax.block_until_ready(state), embeddings


def check(state: TrainState, plan: Plan, source: Plan) -> None:
    """Compares rows of all tables with those of a state that ``source`` wrote."""
    (here,), (there,) = plan.storages, source.storages
    array = state.storages[here.name]
    theirs = table_shards([there])
    for table, mine in table_shards([here]).items():
        end, _ = rows_and_dim(mine)
        for begin in (0, end // 3, end - ROWS):
            asked = range(begin, begin + ROWS), range(DIM)
            found, expected = np.zeros((2, ROWS, DIM), np.float32)
            for piece in pieces(mine, *asked):
                found[piece.into] = _rows(array, piece.slots)
            for piece in pieces(theirs[table], *asked):
                first = np.array(piece.slots)[:, None] * there.width
                expected[piece.into] = (first + np.arange(there.width)) & MASK
            np.testing.assert_array_equal(found, expected)


def _rows(array: jax.Array, rows: range) -> np.ndarray:
    """Of the one device that has them."""
    for shard in array.addressable_shards:
        begin = shard.index[0].start or 0
        if rows.start in range(begin, begin + len(shard.data)):
            return np.asarray(shard.data)[rows.start - begin : rows.stop - begin]
    raise AssertionError


def _fill(shape: tuple[int, int]) -> jax.Array:
    row = lax.broadcasted_iota(jnp.uint32, shape, 0)
    column = lax.broadcasted_iota(jnp.uint32, shape, 1)
    return ((row * shape[1] + column) & MASK).astype(jnp.float32)


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


def baseline(size: int, folder: Path) -> dict[str, float]:
    """NumPy's way to disk and back."""
    path = folder / "plain.bin"
    array = np.arange(size // 4, dtype=np.float32)

    def write():
        with path.open("wb") as file:
            array.tofile(file)
            file.flush()
            os.fsync(file.fileno())

    found = {"write_s": timed(write)}
    forget(folder)
    with path.open("rb") as file:
        found["read_s"] = timed(lambda: file.readinto(array.data.cast("B")))
    path.unlink()
    return found


def next_step(state: TrainState) -> TrainState:
    """Changes a row of each array in place, as a step does; an array that somebody else
    holds is copied."""
    tables = _add_to_a_row((state.storages, state.embedding_state), 0.0)
    return jax.block_until_ready(
        state._replace(storages=tables[0], embedding_state=tables[1])
    )


@functools.partial(jax.jit, donate_argnums=0)
def _add_to_a_row(arrays: Any, change: float) -> Any:
    return jax.tree.map(lambda array: array.at[0].add(change), arrays)


def save(plan: Plan, folder: Path) -> dict[str, float]:
    """Training stands still until the step after ``save`` is done."""
    state, embeddings = make_state(plan, filled=True)
    state = next_step(state)
    with Peak() as peak:
        begin = time.perf_counter()
        with Checkpointer(folder / "ours", {}, 1) as checkpoints:
            step = max(checkpoints.steps, default=0) + 1
            checkpoints.save(state, step, embeddings, {})
            next_step(state)
            still = time.perf_counter() - begin
        complete = time.perf_counter() - begin
    return {"stand_still_s": still, "complete_s": complete, "peak_bytes": peak.bytes}


def restore(plan: Plan, source: Plan, folder: Path) -> dict[str, float]:
    state, embeddings = make_state(plan, filled=False)
    forget(folder)
    with Peak() as peak:
        begin = time.perf_counter()
        with Checkpointer(folder / "ours", {}, None) as checkpoints:
            state, _ = checkpoints.restore(state, embeddings)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - begin
    check(state, plan, source)
    return {"restore_s": seconds, "peak_bytes": peak.bytes}


def measure(gigabytes: float, devices: int, folder: Path) -> dict[str, Any]:
    """All measurements of one size and number of devices."""
    plan = make_plan(gigabytes, devices, "rows")
    size = sum(4 * table.rows * table.dim for table in plan.tables)
    found: dict[str, Any] = {"gigabytes": gigabytes, "bytes": size, "devices": devices}
    found["baseline"] = baseline(size, folder)
    found["save"] = save(plan, folder)
    found["restore"] = restore(plan, plan, folder)
    for way in ("pooled", "columns"):
        other = make_plan(gigabytes, devices, way)
        found[f"restore: {way}"] = restore(other, plan, folder)
    shutil.rmtree(folder / "ours")
    return found


def row(case: dict[str, Any]) -> str:
    """A line of the table of the README."""
    plain, kept = case["baseline"], case["save"]
    others = [each for name, each in case.items() if name.startswith("restore: ")]
    seconds = (
        kept["stand_still_s"],
        plain["write_s"],
        kept["complete_s"],
        plain["read_s"],
        case["restore"]["restore_s"],
        max(each["restore_s"] for each in others),
    )
    cells = [f"{case['gigabytes']:g} GB", case["devices"]]
    cells += [f"{each:.2f}" for each in seconds]
    cells += [f"{kept['peak_bytes'] / case['bytes']:.2f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="in GB")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = output_of(parser, options, HERE / "results.json", free=["folder"])
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    cases = []
    for gigabytes in options.sizes:
        for devices in DEVICES:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                case = measure(gigabytes, devices, Path(folder))
            cases.append(case)
            print(row(case), flush=True)
    out.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
