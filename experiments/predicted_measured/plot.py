"""The plot of this experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from experiments.predicted_measured.cases import Case

SEEN, ASIDE, EQUAL = "#1f6feb", "#d97706", "#4b5563"
BAND = 1.25


def plot(cases: Sequence[Case], path: Path) -> None:
    """Plots predicted over measured figures, one panel for each group.

    Args:
      cases: all cases.
      path: of the PNG.
    """
    groups = list(dict.fromkeys(case.group for case in cases))
    figure, axes = plt.subplots(
        1,
        len(groups),
        figsize=(5 * len(groups), 4.6),
        layout="constrained",
        squeeze=False,
    )
    for axis, group in zip(axes[0], groups, strict=True):
        _panel(axis, group, [case for case in cases if case.group == group])
    figure.savefig(path, dpi=110)


def _panel(axis, group: str, cases: Sequence[Case]) -> None:
    figures = [case.measured for case in cases] + [case.predicted for case in cases]
    ends = [min(figures) / 1.2, max(figures) * 1.2]
    axis.plot(ends, ends, color=EQUAL, linewidth=1)
    axis.fill_between(
        ends,
        [end / BAND for end in ends],
        [end * BAND for end in ends],
        color=EQUAL,
        alpha=0.12,
        label=f"within a factor of {BAND}",
    )
    for aside, color, label in ((False, SEEN, "seen"), (True, ASIDE, "kept aside")):
        chosen = [case for case in cases if case.kept_aside == aside]
        axis.scatter(
            [case.measured for case in chosen],
            [case.predicted for case in chosen],
            s=18,
            color=color,
            label=label,
        )
    axis.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        title=group,
        xlabel=f"measured, {cases[0].unit}",
        ylabel="predicted",
    )
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
