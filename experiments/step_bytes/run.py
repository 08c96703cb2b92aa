"""Audits the bytes that train steps move in device memory: `audit.py`, again and again.

    python -m experiments.step_bytes.run NAME [--cases "dlrm_dcnv2 1" …]

Writes results/NAME.json and results/NAME.md beside this, and bytes.svg of all results.
Needs `pip install -e .[gpu-compile]`. See README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROWWISE = ("--optimizer", "rowwise_adagrad", "--zipf", "0")
CASES = {
    "dlrm_dcnv2 1": ("dlrm_dcnv2", "--gpus", "1", *ROWWISE),
    "dlrm_dcnv2 8": ("dlrm_dcnv2", "--gpus", "8", *ROWWISE),
    "t180 1": ("t180", "--gpus", "1", "--batch", "8192"),
    "t180 8": ("t180", "--gpus", "8"),
    "t510 1": ("t510", "--gpus", "1", "--batch", "2048"),
    "t510 8": ("t510", "--gpus", "8", "--batch", "16384"),
}
"""The whole MLPerf model fits one H200 with row-wise Adagrad; its data draw the ids of
bags uniformly. Of T180 and T510, one H200 gets an eighth of a batch, and of the rows of
large tables."""
SHRUNK = ("t180 1", "t510 1")
LARGE_ROWS = 100_000
MODELS = HERE.parents[1] / "configs" / "models"
KERNELS = ("xla", "mosaic_gpu")


def audit(case: str, kernels: str) -> dict[str, Any]:
    """In a process of its own: compilers keep memory."""
    name, *options = CASES[case]
    tables = (MODELS / f"{name}.yaml").read_text()
    if case in SHRUNK:
        tables = re.sub(r"(?<=\brows: )[\d_]+", an_eighth, tables)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(tables)
        file.flush()
        command = [sys.executable, "-m", "experiments.step_bytes.audit", file.name]
        command += options
        command += ["--kernels", kernels]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def an_eighth(rows: re.Match) -> str:
    count = int(rows[0])
    return str(count // 8 if count > LARGE_ROWS else count)


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| model, GPUs, kernels | GB moved | at least | ratio | ms | at least |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case, result in found.items():
        moved, least = result["bytes"] / 1e9, result["least_bytes"] / 1e9
        lines.append(
            f"| {case} | {moved:.1f} | {least:.1f} | {moved / least:.2f} "
            f"| {result['ms']:.1f} | {result['least_ms']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def plot(all_found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """One bar of phases for each audit of a case, and one of the least."""
    cases = list(dict.fromkeys(case for found in all_found.values() for case in found))
    figure, axes = plt.subplots(
        1, len(cases), figsize=(3.2 * len(cases), 4), layout="constrained"
    )
    for axis, case in zip(axes, cases, strict=True):
        bars = {n: found[case] for n, found in all_found.items() if case in found}
        names, last = [*bars, "least"], list(bars.values())[-1]
        bottom = [0.0] * len(names)
        for phase in last["phases"]:
            parts = [each["phases"][phase] for each in bars.values()]
            heights = [(p["read_bytes"] + p["written_bytes"]) / 1e9 for p in parts]
            heights.append(last["phases"][phase]["least_bytes"] / 1e9)
            axis.bar(names, heights, bottom=bottom, label=phase)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axis.set_title(case, fontsize=9)
        axis.set_ylabel("GB of a step, a device")
    axes[-1].legend(fontsize=7)
    figure.savefig(HERE / "bytes.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="Of the results, such as before.")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--kernels", nargs="*", default=KERNELS, choices=KERNELS)
    arguments = parser.parse_args()
    file = RESULTS / f"{arguments.name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    for case in arguments.cases:
        for kernels in arguments.kernels:
            found[f"{case} {kernels}"] = audit(case, kernels)
            file.write_text(json.dumps(found, indent=1) + "\n")
            print(table(found), flush=True)
    file.with_suffix(".md").write_text(table(dict(sorted(found.items()))))
    audits = (each for each in RESULTS.glob("*.json") if each.stem != "kernels")
    order = sorted(audits, key=lambda each: each.stat().st_mtime)
    plot({each.stem: json.loads(each.read_text()) for each in order})


if __name__ == "__main__":
    main()
