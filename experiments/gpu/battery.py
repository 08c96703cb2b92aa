"""Checks every kernel on a GPU, and times it.

    PYTHONPATH=kernels python experiments/gpu/battery.py result.json

Needs the package, with jax for CUDA. Each group of cases runs in a process of
its own, so that a kernel that breaks the GPU's context costs its group; what fails is a
row of the result. See README.md beside this.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cases
import check_cases
import embark_kernels as ek
import jax
import numpy as np
import steps

LIMIT_S = 480
INPUT_SETS, WARM_UP, ROUNDS = 4, 3, 7
ROUND_S, MOST_CALLS = 0.03, 40
BOTH = ("mosaic_gpu", "xla")
OPTIMIZERS = (
    ek.SGD(0.01),
    ek.Adagrad(0.01, initial_accumulator=0.1),
    ek.RowwiseAdagrad(0.01, initial_accumulator=0.1),
    ek.LazyAdam(0.01),
)


def timings(group: str) -> Iterator[cases.Case]:
    if group == "copy":
        yield cases.copy()
    elif group.startswith("lookup"):
        width = int(group.removeprefix("lookup"))
        for hotness in (1, 10, 100):
            for ids in ("uniform", "zipf"):
                for name in BOTH:
                    yield cases.lookup(name, width, hotness, ids)
        for name in BOTH:
            yield cases.lookup(name, width, 10, "uniform", "bfloat16")
    elif group == "update":
        for optimizer in OPTIMIZERS:
            for name in BOTH:
                yield cases.update_rows(name, optimizer)
        for ids in ("uniform", "zipf"):
            for name in BOTH:
                yield cases.sum_and_update(name, OPTIMIZERS[2], ids)
                yield cases.group_rows(name, ids)
                yield cases.sum_groups(name, ids)
        yield cases.sum_groups("mosaic_gpu", "one row")
    elif group == "shapes":
        for model, devices in cases.MODELS.items():
            for width in cases.widths(model):
                for name in BOTH:
                    yield cases.model_lookup(name, model, width, devices)
    elif group == "attention":
        yield from attention_timings()
    elif group == "unique":
        for ids in ("uniform", "zipf"):
            for name in (*BOTH, "jnp.unique"):
                yield cases.unique(name, ids)


def attention_timings() -> Iterator[cases.Case]:
    """Forward alone, and forward with backward."""
    of_kernels = [("mosaic_gpu", "silu", 128), ("mosaic_gpu", "softmax", 64)]
    for implementation, weights, dim in [*of_kernels, ("xla", "silu", 128)]:
        for backward in (False, True):
            yield cases.attention(implementation, weights, dim, backward)


def cases_of(width: int | None) -> Callable[[], Iterator[check_cases.Case]]:
    return lambda: check_cases.cases(width)


CHECKS = {
    "check attention": check_cases.attention_cases,
    "check integers": cases_of(None),
    **{f"check width {width}": cases_of(width) for width in check_cases.WIDTHS},
}
TIMINGS = ("copy", "attention", "lookup128", "update", "lookup32", "unique", "shapes")
STEPS = {f"step {case}": case for case in steps.CASES}


def measure(case: cases.Case) -> dict:
    """Median time of a call on the device: calls are queued one behind the other, so
    that launching them costs nothing, and the queue is waited for once a round."""
    state = jax.jit(case.make_state)(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), INPUT_SETS)
    inputs = [jax.jit(case.make_inputs)(key) for key in keys]
    function = jax.jit(case.function, donate_argnums=(0,) if case.in_place else ())

    def seconds(calls):
        nonlocal state
        start = time.perf_counter()
        for call in range(calls):
            out = function(state, inputs[call % INPUT_SETS])
            if case.in_place:
                state = out
        jax.block_until_ready(out)
        return time.perf_counter() - start

    start = time.perf_counter()
    seconds(1)
    first_s = time.perf_counter() - start
    calls = int(np.clip(ROUND_S / (seconds(WARM_UP) / WARM_UP), 1, MOST_CALLS))
    rounds = [seconds(calls) / calls for _ in range(ROUNDS)]
    row = {"median_s": float(np.median(rounds)), "min_s": min(rounds)}
    row |= {"max_s": max(rounds), "calls_a_round": calls, "first_call_s": first_s}
    if case.bytes:
        row |= {"bytes": case.bytes, "bytes_per_s": case.bytes / row["median_s"]}
    if case.flops:
        row |= {"flops": case.flops, "flops_per_s": case.flops / row["median_s"]}
    return row


def checks(group: str) -> Iterator[dict]:
    """The cases that break kernels, against NumPy."""
    for case in CHECKS[group]():
        row = check_cases.run_case(case)
        found = {name: row[name] for name in ("op", "width", "dtype") if row.get(name)}
        problem = {"error": row["problem"]} if row["problem"] else {}
        errors = {"relative_error": row["error"], "tolerance": row["limit"]}
        yield {"group": group, **found, "about": row["about"]} | (problem or errors)


def run_group(group: str) -> None:
    """Prints a row of JSON for each case, as soon as it is done."""
    if group in CHECKS:
        for row in checks(group):
            print(json.dumps(row), flush=True)
        return
    if group in STEPS:
        print(json.dumps({"group": group, **steps.run_case(STEPS[group])}))
        return
    for case in timings(group):
        row = {"group": group, **case.fields}
        try:
            row |= measure(case)
        except Exception as error:  # a failure is a row of the result
            row["error"] = f"{type(error).__name__}: {error}"[:500]
        print(json.dumps(row), flush=True)


def run_in_process(group: str, timeout_s: float) -> list[dict]:
    command = [sys.executable, __file__, "--group", group]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(1.0, timeout_s))
            ended = f"exit code {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            ended = f"stopped after {timeout_s:.0f} s"
    lines = [line for line in output.splitlines() if line.startswith("{")]
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return rows + ([{"group": group, "error": ended}] if ended else [])


def summary(rows: list[dict]) -> str:
    lines = []
    for row in rows:
        names = (
            "op",
            "implementation",
            "shape",
            "optimizer",
            "about",
            "width",
            "dtype",
            "hotness",
            "ids",
        )
        what = " ".join(str(row[name]) for name in names if row.get(name))
        if "error" in row:
            value = row["error"].splitlines()[0][:100]
        elif "relative_error" in row:
            value = f"ok {row['relative_error']:.1e}"
        else:
            share = row.get("fraction_of_copy")
            value = f"{1e3 * row['median_s']:9.3f} ms"
            value += "" if share is None else f" {share:6.1%} of copy"
            if "predicted_ms" in row:
                value += f", predicted {row['predicted_ms']:.3f}"
            if "ms" in row:
                value += "".join(f"; {kind} {ms:.2f}" for kind, ms in row["ms"].items())
            if "flops_per_s" in row:
                value += f" {row['flops_per_s'] / 1e12:6.1f} TFLOP/s"
        lines.append(f"{row['group']:10} {what:60} {value}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument(
        "--group",
        choices=[*CHECKS, *STEPS, *TIMINGS],
        help="run one, print rows of JSON",
    )
    args = parser.parse_args()
    if args.group:
        run_group(args.group)
        return 0
    if args.out is None:
        parser.error("say where the result goes")
    # This process leaves the GPU to those it starts.
    start = time.monotonic()

    def run(group):
        return run_in_process(group, LIMIT_S - (time.monotonic() - start))

    with ThreadPoolExecutor(len(CHECKS)) as side_by_side:
        rows = [row for found in side_by_side.map(run, CHECKS) for row in found]
    checked_s = time.monotonic() - start
    rows += [row for group in (*STEPS, *TIMINGS) for row in run(group)]
    copies = [
        row["bytes_per_s"]
        for row in rows
        if row.get("op") == "copy" and "bytes_per_s" in row
    ]
    for row in rows:
        if copies and "bytes_per_s" in row:
            row["fraction_of_copy"] = row["bytes_per_s"] / copies[0]
    result = {
        "date": datetime.date.today().isoformat(),
        "device": device_kind(),
        "jax": jax.__version__,
        "python": sys.version.split()[0],
        "copy_bytes_per_s": copies[0] if copies else None,
        "check_s": checked_s,
        "seconds": time.monotonic() - start,
        "rows": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(summary(rows))
    return int(any("error" in row for row in rows))


def device_kind() -> str:
    command = [sys.executable, "-c", "import jax; print(jax.devices()[0].device_kind)"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "none"


if __name__ == "__main__":
    sys.exit(main())
