"""Compiles the published models' train steps for 8 and 128 H100s that are not there.

    python -m experiments.compile_at_scale.run [--models t180 …]

Needs `pip install -e .[gpu-compile]`. Writes results.json, results.md and growth.svg
beside this. See README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.progress import track

HERE = Path(__file__).parent
MODELS = ("dlrm_dcnv2", "t180", "t200", "t510", "t7")
SCALES = ((1, 8), (16, 8))
"""Nodes, and GPUs of each."""
ABSENT = {("t7", (1, 8))}
"""Does not fit."""
SMALLER = {("t510", (1, 8)): 16_384}
"""Batches of what does not fit with the published one."""
BATCH = 65_536
"""Of the others."""
GROWTH = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8))
GROWTH_MODEL, GROWTH_BATCH = "synthetic_tiny", 512
"""Fits one GPU; samples a device."""


def compiled(*arguments: Any) -> dict[str, Any]:
    """One case, in a process of its own: compilers keep memory."""
    command = [sys.executable, "-m", "experiments.compile_at_scale.compile"]
    command += map(str, arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def total_bytes(case: dict[str, Any]) -> int:
    """Of a device, by the compiler."""
    memory = case["compiled_memory"]
    return memory["arguments_bytes"] + memory["temporaries_bytes"]


def table(cases: list[dict[str, Any]]) -> str:
    lines = [
        "| model, GPUs | GB a device: compiler | plan | MB sent inside nodes: program "
        "| plan | between nodes: program | plan | exchanged bytes under compute "
        "| compile, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        compiler, plan = total_bytes(case) / 1e9, case["planned_memory"] / 1e9
        cells = [
            f"{case['model']}, {case['devices']}"
            + f", batch {case['batch_size']:,}" * (case["batch_size"] != BATCH),
            f"{compiler:.2f}",
            f"{plan:.2f} ({plan / compiler - 1:+.1%})",
        ]
        for where in ("inside_bytes", "between_bytes"):
            program, planned = case["compiled"][where], case["planned"][where]
            cells += [f"{program / 1e6:.1f}", f"{planned / 1e6:.1f}"]
        cells.append(f"{case['compiled']['overlapped_share']:.0%}")
        cells.append(f"{case['compile_s']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(cases: list[dict[str, Any]], path: Path) -> None:
    """Of each quantity, over devices, the program's and the plan's."""
    devices = [case["devices"] for case in cases]
    panels = {
        "compile time, s": [("", [case["compile_s"] for case in cases])],
        "program text, MB": [("", [case["hlo_bytes"] / 1e6 for case in cases])],
        "memory a device, MB": [
            ("compiler", [total_bytes(case) / 1e6 for case in cases]),
            ("plan", [case["planned_memory"] / 1e6 for case in cases]),
        ],
        "bytes a device sends, MB": [
            (name, [sum(sent(case[side])) / 1e6 for case in cases])
            for name, side in (("program", "compiled"), ("plan", "planned"))
        ],
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(14, 3.2))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for style, (name, values) in zip(("o-", "x--"), lines, strict=False):
            axis.plot(devices, values, style, label=name or None)
        axis.set(title=title, xlabel="devices", xscale="log", ylim=(0, None))
        axis.set_xticks(devices, list(map(str, devices)))
        if len(lines) > 1:
            axis.legend()
    figure.tight_layout()
    figure.savefig(path)


def sent(traffic: dict[str, Any]) -> tuple[float, float]:
    return traffic["inside_bytes"], traffic["between_bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    given = parser.parse_args()
    wanted = [
        (model, *scale, *([SMALLER[model, scale]] if (model, scale) in SMALLER else []))
        for scale in SCALES
        for model in given.models
        if (model, scale) not in ABSENT
    ]
    growth = [(GROWTH_MODEL, n, g, GROWTH_BATCH * n * g) for n, g in GROWTH]
    results: dict[str, list] = {"scale": [], "growth": []}
    for case in track([*wanted, *growth], "compiling"):
        results["growth" if case in growth else "scale"].append(compiled(*case))
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "results.md").write_text(table(results["scale"]) + "\n")
    plot(results["growth"], HERE / "growth.svg")


if __name__ == "__main__":
    main()
