"""Results as tables in Markdown and as plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from compare import OURS, PLANNERS, TORCHREC
from matplotlib import pyplot as plt

TITLES = {
    "program": "By the cost model of the compiled program",
    "embark": "By EMBark's formula",
}
MARKERS = "ovs^DPX*<"


def write(folder: Path) -> None:
    """Makes README.md and the plots of ``folder`` from its JSON files."""
    results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    results.sort(key=lambda result: (result["gpus"], result["model"]))
    sections = ["# Results", "", _origin(results)]
    for cost, title in TITLES.items():
        sections += [f"## {title}\n", _summary(results, cost), _steps(results, cost)]
    sections.append(_seconds(results))
    (folder / "README.md").write_text("\n".join(sections))
    mpl.use("Agg")
    _plot_steps(results, folder / "steps.svg")
    _plot_seconds(results, folder / "seconds.svg")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def _summary(results: Sequence[dict[str, Any]], cost: str) -> str:
    """How each planner compares with ours."""
    rows = []
    for name in PLANNERS:
        ratios, fit = [], []
        for result in results:
            planners = result["costs"][cost]["planners"]
            if "step_ms" in planners[name] and "step_ms" in planners[OURS]:
                ratios.append(planners[name]["step_ms"] / planners[OURS]["step_ms"])
                fit.append(planners[name]["fits"])
        row = [name, str(len(ratios)), str(sum(fit)), "–", "–"]
        if any(fit):
            row[3] = f"{np.exp(np.log(ratios).mean(where=fit)):.2f}"
        if ratios:
            row[4] = f"{min(ratios):.3f}"
        rows.append(row)
    head = ["planner", "plans", "fit", f"step / {OURS}, geometric mean where it fits"]
    return f"{_table([*head, 'least of all'], rows)}\n"


def _steps(results: Sequence[dict[str, Any]], cost: str) -> str:
    """ms a step of every plan."""
    rows = []
    for result in results:
        planners = result["costs"][cost]["planners"]
        fitting = [p["step_ms"] for p in planners.values() if p.get("fits")]
        row = [f"{result['model']}, {result['gpus']}"]
        bound_ms = result["costs"][cost]["bound_ms"]
        row.append(f"{bound_ms:.3g}" if bound_ms else "–")
        for name in PLANNERS:
            entry = planners[name]
            text = f"{entry['step_ms']:.4g}" if "step_ms" in entry else "–"
            if not entry.get("fits", True):
                text = f"({text})"
            elif "step_ms" in entry and entry["step_ms"] == min(fitting):
                text = f"**{text}**"
            row.append(text)
        rows.append(row)
    table = _table(["model, GPUs", "bound", *PLANNERS], rows)
    return f"ms a step; in brackets if it does not fit, the least is bold:\n\n{table}\n"


def _seconds(results: Sequence[dict[str, Any]]) -> str:
    rows = []
    for result in results:
        row = [f"{result['model']}, {result['gpus']}", str(result["tables"])]
        planners = result["costs"]["program"]["planners"]
        for name in PLANNERS[:3]:
            entry = planners[name]
            seconds = [entry[key] for key in ("cpu_s", "wall_s")]
            row.append(" / ".join("–" if s is None else f"{s:.2f}" for s in seconds))
        if not result["torchrec_in_this_run"] and row[-1] != "– / –":
            row[-1] += " †"
        ours, theirs = (planners[name]["cpu_s"] for name in (OURS, TORCHREC))
        done = "step_ms" in planners[TORCHREC] and "step_ms" in planners[OURS]
        row.append(f"{ours / theirs:.2f}" if done else "–")
        rows.append(row)
    head = ["model, GPUs", "tables", *PLANNERS[:3], f"{OURS} / {TORCHREC}, CPU"]
    return f"## Seconds of planning, CPU / wall\n\n{_table(head, rows)}\n"


def _origin(results: Sequence[dict[str, Any]]) -> str:
    """Where and with what the results were made."""
    versions: dict[str, str] = {}
    for result in results:
        versions |= result["versions"]
    machines = sorted({result["machine"] for result in results})
    listed = ", ".join(f"{name} {found}" for name, found in sorted(versions.items()))
    text = f"Planned on {'; '.join(machines)}, with {listed}."
    if not all(result["torchrec_in_this_run"] for result in results):
        text += f" {TORCHREC}'s plans and seconds with a † are those of an earlier run."
    return f"{text}\n"


def _plot_steps(results: Sequence[dict[str, Any]], path: Path) -> None:
    fleets = sorted({result["gpus"] for result in results})
    figure, panels = plt.subplots(
        len(fleets), 1, figsize=(10, 3.2 * len(fleets)), sharey=True, squeeze=False
    )
    for gpus, axes in zip(fleets, panels[:, 0], strict=True):
        shown = [r for r in results if r["gpus"] == gpus]
        shown = [r for r in shown if r["costs"]["program"]["bound_ms"]]
        for place, (name, marker) in enumerate(zip(PLANNERS, MARKERS, strict=True)):
            x, y, full = [], [], []
            for i, result in enumerate(shown):
                cost = result["costs"]["program"]
                entry = cost["planners"][name]
                if "step_ms" in entry:
                    x.append(i + (place - len(PLANNERS) / 2) * 0.07)
                    y.append(entry["step_ms"] / cost["bound_ms"])
                    full.append(entry["fits"])
            x, y, full = np.array(x), np.array(y), np.array(full, bool)
            color = f"C{place}"
            axes.scatter(x[full], y[full], marker=marker, color=color, label=name)
            axes.scatter(
                x[~full], y[~full], marker=marker, edgecolor=color, facecolor="none"
            )
        axes.set_yscale("log")
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_xticks(range(len(shown)), [r["model"] for r in shown], fontsize=8)
        axes.set_title(f"{gpus} H100")
        axes.set_ylabel("step / lower bound")
        axes.grid(axis="y", alpha=0.3)
    panels[0, 0].legend(ncol=3, fontsize=8)
    figure.text(0.01, 0.002, "hollow: does not fit the devices' memory", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _plot_seconds(results: Sequence[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for place, (name, marker) in enumerate(zip(PLANNERS[:3], MARKERS, strict=False)):
        points = [
            (result["tables"] * result["gpus"], entry["cpu_s"])
            for result in results
            for entry in [result["costs"]["program"]["planners"][name]]
            if "step_ms" in entry
        ]
        if points:
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, marker, color=f"C{place}", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("tables × GPUs")
    axes.set_ylabel("CPU seconds of planning")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
