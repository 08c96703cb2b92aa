"""The plot of this experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

PUBLISHED, SIMULATED = "#9aa5b1", "#1f6feb"
STEPS = ("#b6d4fe", "#6ea8fe", "#1f6feb")


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Throughput, ablation and exposed communication, beside what was published.

    Args:
      results: as ``run.py`` writes them.
      path: of the PNG.
    """
    figure, axes = plt.subplots(
        1, 3, figsize=(16, 4.6), layout="constrained", width_ratios=(1.5, 1, 1)
    )
    _throughput(axes[0], results)
    _ablation(axes[1], results)
    _communication(axes[2], results)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _throughput(axis, results) -> None:
    rows = [
        *((row["model"], row) for row in results["table1"]),
        ("DLRM-DCNv2,\nbatch 135,168", results["dcnv2_at_mlperf_batch"]),
    ]
    place = np.arange(len(rows))
    published = np.array([row["published"] for _, row in rows])
    simulated = np.array([row["simulated"] for _, row in rows])
    axis.bar(place - 0.2, published, 0.4, color=PUBLISHED, label="published")
    axis.bar(place + 0.2, simulated, 0.4, color=SIMULATED, label="simulated")
    axis.errorbar(
        place - 0.2,
        published,
        0.25 * published,
        fmt="none",
        ecolor="#4b5563",
        capsize=3,
        label="± 25 %",
    )
    for x, (_, row) in zip(place, rows, strict=True):
        text = f"{row['error']:+.0%}"
        axis.text(x + 0.2, row["simulated"] + 1, text, ha="center", fontsize=7)
    axis.set_xticks(place, [name for name, _ in rows], fontsize=7)
    axis.set_ylabel("million samples/s")
    axis.set_ylim(0, 120)
    axis.set_title("Throughput, 128 GPUs unless said otherwise")
    axis.legend(frameon=False, ncols=3, loc="upper left")


def _ablation(axis, results) -> None:
    rows = results["table1"]
    place = np.arange(len(rows))
    below = np.ones(len(rows))
    for k, color in enumerate(STEPS, start=1):
        speedup = np.array(
            [row["steps"][0]["step_ms"] / row["steps"][k]["step_ms"] for row in rows]
        )
        name = rows[0]["steps"][k]["system"]
        axis.bar(place, speedup - below, 0.6, below, color=color, label=name)
        below = speedup
    for x, speedup in zip(place, below, strict=True):
        axis.text(x, speedup + 0.02, f"{speedup:.2f}", ha="center", fontsize=8)
    for name, value in results["published_speedup"].items():
        axis.axhline(value, color="#4b5563", linestyle="--", linewidth=1)
        text = f"published\n{name}, {value}"
        axis.text(len(rows) - 0.45, value, text, fontsize=7, va="center")
    axis.set_xticks(place, [row["model"] for row in rows], fontsize=8)
    axis.set_xlim(-0.5, len(rows) + 0.2)
    axis.set_ylim(1, 1.1 * below.max())
    axis.set_ylabel("times the baseline's throughput")
    axis.set_title("Ablation, 128 GPUs")
    axis.legend(frameon=False, loc="upper left")


def _communication(axis, results) -> None:
    rows = results["communication"]
    gpus = sorted({row["gpus"] for row in rows})

    def mean(of):
        return [np.mean([of(r) for r in rows if r["gpus"] == count]) for count in gpus]

    axis.plot(
        gpus,
        mean(lambda r: r["exposed"]),
        "o-",
        color=SIMULATED,
        label="simulated, mean of four models",
    )
    axis.plot(
        gpus,
        mean(lambda r: r["exposed"] + r["waiting"]),
        "o--",
        color=STEPS[1],
        label="and waiting for slower GPUs",
    )
    published = results["published_communication"]
    axis.plot(
        [int(count) for count in published],
        list(published.values()),
        "D",
        color="#4b5563",
        label="published",
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks(gpus, [str(count) for count in gpus])
    axis.set_ylim(0, 1)
    axis.set_xlabel("GPUs")
    axis.set_title("Communication, share of the baseline's step")
    axis.legend(frameon=False)
