"""Checks every kernel on this machine's GPU against the textbook, in processes of their
own: a kernel that hangs or breaks the GPU's context costs its group of cases.

``python -m embark_kernels.check GROUP`` prints, as JSON, a line before and after each
case of a group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embark_kernels._implementation import availability
from embark_kernels.check_cases import WIDTHS, Case, cases
from embark_kernels.verdict import keep_verdict

GROUPS = {"integers": None, **{f"width{width}": width for width in WIDTHS}}
LIMIT_S = 240
"""Time of a group: some 20 programs, each of which compiles in one or two seconds."""
AT_ONCE = 4
"""Groups at a time: they compile most of the time."""
Row = dict[str, Any]
"""A case with ``error``, ``limit``, and ``problem``, which is "" if it passed."""


def check_kernels(say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Runs all groups, some at a time, and keeps the verdict for this kind of GPU.

    Args:
      say: called with the name of each group that is waited for.

    Returns:
      A row for each case, in the order of the groups.

    Raises:
      ValueError: if the kernels cannot run here.
    """
    # The GPU's memory is for the processes that this one starts.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if reason := availability()["mosaic_gpu"]:
        raise ValueError(f"mosaic_gpu {reason}: there is nothing to check")
    rows = []
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        command = [sys.executable, "-m", "embark_kernels.check"]
        running = {
            group: pool.submit(run_group, group, [*command, group], LIMIT_S)
            for group in GROUPS
        }
        for group, result in running.items():
            say(group)
            rows += result.result()
    keep_verdict([row["op"] for row in rows if row["problem"]])
    return rows


def run_group(group: str, command: Sequence[str], limit_s: float) -> list[Row]:
    """Runs the command of a group's cases, and reads their rows from its output. A
    case that it began but did not finish gets how the command ended as its problem."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
            last = (err.strip().splitlines() or [""])[-1]
            code = process.returncode
            problem = f"ended with exit code {code}: {last[:200]}" if code else ""
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            problem = f"stopped after {limit_s:g} s"
    # A killed process may leave half a line.
    lines = [json.loads(line) for line in out.splitlines() if line.endswith("}")]
    rows = [line for line in lines if "problem" in line]
    if problem or not rows:
        problem = problem or "ran no case"
        begun = lines[-1] if lines and "problem" not in lines[-1] else {"op": group}
        rows.append({**begun, "error": None, "limit": None, "problem": problem})
    return rows


def run_case(case: Case) -> Row:
    """Runs a case twice."""
    row: Row = {**case.fields, "error": None, "limit": case.limit, "problem": ""}
    try:
        first, second = _results(case), _results(case)
    except Exception as error:  # a failure is a row of the result
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return {**row, "problem": reason[:200]}
    error = max(
        largest_error(actual, *expected)
        for actual, expected in zip(first, case.expected(), strict=True)
    )
    row["error"] = error if np.isfinite(error) else None
    if not error <= case.limit:
        row["problem"] = "differs from the textbook"
    elif [x.tobytes() for x in first] != [x.tobytes() for x in second]:
        row["problem"] = "differs from one call to the next"
    return row


def largest_error(
    actual: np.ndarray, expected: np.ndarray, magnitudes: np.ndarray
) -> float:
    """Returns the largest error relative to its magnitude: infinite where that is 0
    and there is an error, and for what is not finite or not of the expected shape."""
    if actual.shape != expected.shape:
        return np.inf
    difference = np.abs(actual.astype(np.float64) - expected)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference == 0, 0.0, difference / magnitudes)
    return float(
        np.max(np.nan_to_num(relative, nan=np.inf, posinf=np.inf), initial=0.0)
    )


def _results(case: Case) -> list[np.ndarray]:
    arguments = jax.tree.map(jnp.array, case.arguments)
    return [np.asarray(x) for x in jax.tree.leaves(case.program(*arguments))]


def main(group: str) -> None:
    jax.config.update("jax_cuda_visible_devices", "0")  # one is enough
    for case in cases(GROUPS[group]):
        print(json.dumps(case.fields), flush=True)
        print(json.dumps(run_case(case)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
