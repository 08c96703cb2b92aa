"""Reads from compiled kernels, with no GPU, what bounds their speed.

    python -m experiments.step_bytes.kernels

Writes results/kernels.md and results/kernels.json beside this. Needs
`pip install -e .[gpu-compile] nvidia-cuda-nvdisasm`. See README.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from embark_jax.plans import fleet

RESULTS = Path(__file__).parent / "results"
WIDTHS = (16, 32, 64, 128, 256, 512)
WARPS = 4  # per block
MULTIPROCESSORS, SCHEDULERS, CLOCK_HZ = 132, 4, 1.755e9
REGISTERS, WARPS_HELD, SHARED_BYTES = 65_536, 64, 227 * 1024
"""An H200's figures, per multiprocessor
(https://docs.nvidia.com/cuda/hopper-tuning-guide/). Registers are given in lots of 8 a
thread."""
LATENCY_S = 800e-9
"""Of a read from device memory under load: an assumption."""
DRIVER = """
import jax, jax.numpy as jnp, embark_kernels as ek
from jax.sharding import SingleDeviceSharding
from embark_jax.plans import fleet
from experiments.step_bytes.absent import absent_mesh
width, batch, rule = {width}, 1024, ek.RowwiseAdagrad(0.1)
device = absent_mesh(fleet.dgx_h200(1, 1)).devices.item()
def of(shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))
def compile_(function, *arguments):
    jax.jit(function).lower(*arguments).compile()
table, ids = of((1_000_000, width)), of((batch, 40), jnp.int32)
state = {{"accumulator": of((1_000_000, 1))}}
kernels = {{"implementation": "mosaic_gpu"}}
compile_(lambda *a: ek.pooled_lookup(*a, **kernels), table, ids)
compile_(lambda t, s, i, g: ek.update_from_bags(t, s, i, g, rule, **kernels),
         table, state, ids, of((batch, width)))
compile_(lambda t, s, i, g: ek.update_rows(t, s, i, g, rule, **kernels),
         table, state, of((batch,), jnp.int32), of((batch, width)))
if width == 128:
    marks = of((batch * 40,), bool)
    compile_(lambda m: ek.number_segments(m, batch, **kernels), marks)
"""
KERNELS = (
    "lookup",
    "sum of segments begun before",
    "sum and update",
    "update of listed rows",
    "numbering of segments",
)
"""In the order in which they are compiled."""


def compiled(width: int) -> list[str]:
    """The text of each kernel: what ptxas says of it, and its instructions."""
    tools = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu13/bin")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "MOSAIC_GPU_DUMP_PTXAS": "1",
        "MOSAIC_GPU_DUMP_SASS": "1",
        "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]]),
    }
    command = [sys.executable, "-c", DRIVER.format(width=width)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.split("ptxas info    : Compiling entry function '")[1:]


def loop_of(text: str) -> tuple[int, int]:
    """``(fewest, most)`` instructions of an iteration of the kernel's longest loop:
    with every forward jump taken, and with none; loops inside it run once. A jump over
    half of the loop is not taken: it is for ids that are no rows."""
    lines = re.findall(r"^(\.L_x_\d+):|/\*[0-9a-f]{4,}\*/ +(.*?) ;", text, re.M)
    label_at = {label: i for i, (label, _) in enumerate(lines) if label}
    jumps = {}
    for i, (_, instruction) in enumerate(lines):
        if found := re.search(r"\bBRA .*?`\((\.L_x_\d+)\)", instruction):
            jumps[i] = label_at.get(found[1], i)
    back = [(target, i) for i, target in jumps.items() if target < i]
    if not back:
        return 0, 0
    begin, end = max(back, key=lambda each: each[1] - each[0])
    counts = []
    for taken in (True, False):
        place, count = begin, 0
        while place <= end:
            count += bool(lines[place][1])
            target = jumps.get(place, 0)
            jumps_some = place < target <= min(end, place + (end - begin) // 2)
            place = target if taken and jumps_some else place + 1
        counts.append(count)
    return min(counts), max(counts)


def describe(kernel: str, text: str, width: int) -> dict:
    from embark_kernels import LookupConfig, UpdateConfig
    from embark_kernels._mosaic import Rows

    registers = int(re.search(r"Used (\d+) registers", text)[1])
    blocks = min(
        REGISTERS // (-(-registers // 8) * 8 * 32 * WARPS), WARPS_HELD // WARPS
    )
    row = {
        "kernel": kernel,
        "width": width,
        "registers": registers,
        "spilled_bytes": int(re.search(r"(\d+) bytes spill stores", text)[1]),
        "warps": blocks * WARPS,
    }
    fewest, most = loop_of(text)
    if kernel == KERNELS[3]:  # the shortest way is that of unused rows
        fewest = most
    if kernel == KERNELS[4]:  # a tile of 64 marks of 1 byte, each numbered in 4
        return row | {"rows_at_once": 64, "fewest": fewest / 64, "most": most / 64}
    lookup = kernel == KERNELS[0]
    config = (
        LookupConfig.heuristic(width, 40, 1)
        if lookup
        else UpdateConfig.heuristic(width)
    )
    at_once = config.rows_in_flight
    programs = Rows(width).programs_per_block
    issued = MULTIPROCESSORS * SCHEDULERS * CLOCK_HZ / (WARPS / programs)
    row |= {"rows_at_once": at_once, "fewest": fewest / at_once, "most": most / at_once}
    sums = kernel in KERNELS[:2]
    # Each id's value is read. With an id that ends a segment, its row is read and
    # written, too, and with one that ends a bag, a sum is written.
    values = {KERNELS[0]: (1, 2), KERNELS[1]: (1, 1), KERNELS[2]: (1, 3)}
    least, whole = (4 * width * n for n in values.get(kernel, (3, 3)))
    in_flight = blocks * programs * at_once * 4 * width * (1 if sums else 2)
    copy = 0.9 * fleet.dgx_h200(1, 1).device.memory_bytes_per_s
    return row | {
        "in_flight_bytes": in_flight,
        "issue_share": [
            issued / row[path] * row_bytes / copy
            for path, row_bytes in (("fewest", least), ("most", whole))
        ],
        "latency_share": in_flight * MULTIPROCESSORS / LATENCY_S / copy,
    }


def _range(ends: list[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def table(rows: list[dict]) -> str:
    lines = [
        "| kernel | width | registers | warps | rows at once | instructions a row and "
        "warp | KB in flight | bound by instructions | bound by latency |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            row[k] for k in ("kernel", "width", "registers", "warps", "rows_at_once")
        ]
        cells.append(_range([f"{row[path]:.0f}" for path in ("fewest", "most")]))
        if "in_flight_bytes" in row:
            shares = [f"{100 * each:.0f} %" for each in row["issue_share"]]
            cells += [f"{row['in_flight_bytes'] / 1e3:.0f}", _range(shares)]
            cells.append(f"{100 * row['latency_share']:.0f} %")
        else:
            cells += ["", "", ""]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    rows = []
    for width in WIDTHS:
        kernels = compiled(width)
        names = KERNELS[: len(kernels)]
        rows += [describe(*each, width) for each in zip(names, kernels, strict=True)]
    rows.sort(key=lambda row: KERNELS.index(row["kernel"]))
    RESULTS.joinpath("kernels.json").write_text(json.dumps(rows, indent=1) + "\n")
    RESULTS.joinpath("kernels.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
