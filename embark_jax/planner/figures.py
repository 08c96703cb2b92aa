"""Plots of what the planner knows. Drawn without any state of pyplot."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from embark_jax.planner.access import Statistics

MOST_CURVES = 12
"""Of the tables with the most accesses; more cannot be told apart."""


def rank_frequency(statistics: Statistics) -> Figure:
    """Share of accesses that each row takes, from the most frequent row on."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    drawn = sorted(
        (item for item in statistics.tables.items() if item[1].histogram.accesses),
        key=lambda item: -item[1].histogram.accesses,
    )
    for name, table in drawn[:MOST_CURVES]:
        rows, accesses = np.array(table.histogram.bins, np.float64).T
        share = accesses / rows / table.histogram.accesses
        last = np.cumsum(rows)
        label = f"{name}: {table.zipf_exponent:.2f}"
        # Each bin from its first rank to its last.
        axes.loglog(
            np.stack([last - rows + 1, last], axis=1).ravel(),
            np.repeat(share, 2),
            label=label,
        )
    left_out = len(drawn) - MOST_CURVES
    title = "table: Zipf exponent" + (f", {left_out} more" if left_out > 0 else "")
    axes.legend(title=title, fontsize="small")
    axes.set_xlabel("rank of the row")
    axes.set_ylabel("share of the table's accesses")
    axes.set_title(f"Accesses in {statistics.samples:,} samples")
    return figure
