"""Plots of plans and statistics, drawn without any state of pyplot."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from embark_jax._base.memory import byte_unit
from embark_jax.plans.plan import Plan
from embark_jax.plans.prediction import HARDLY_LONGER
from embark_jax.report import summary
from embark_jax.statistics.accesses import Statistics

MOST_CURVES = 10
"""Tables that are drawn: those with the most accesses. More cannot be told apart."""
MOST_BARS = 30


def accesses(statistics: Statistics) -> Figure:
    """Draws how often rows are looked up, by rank and in sum, and how long bags are."""
    figure = Figure(figsize=(14, 5), layout="constrained")
    by_rank, in_sum, hotness = figure.subplots(1, 3)
    drawn = sorted(
        (item for item in statistics.tables.items() if item[1].histogram.accesses),
        key=lambda item: -item[1].histogram.accesses,
    )
    for name, table in drawn[:MOST_CURVES]:
        rows, counts = np.array(table.histogram.bins, np.float64).T
        last = np.cumsum(rows)
        share = counts / rows / table.histogram.accesses
        label = f"{name}: {table.zipf_exponent:.2f}"
        # Each bin from its first rank to its last.
        ranks = np.stack([last - rows + 1, last], axis=1).ravel()
        by_rank.loglog(ranks, np.repeat(share, 2), label=label)
        reached = np.concatenate([[0], np.cumsum(counts) / table.histogram.accesses])
        in_sum.plot(np.concatenate([[0], last / table.rows]), reached)
    left_out = len(drawn) - MOST_CURVES
    title = "table: Zipf exponent" + (f", {left_out} more" if left_out > 0 else "")
    by_rank.legend(title=title, fontsize="small")
    by_rank.set(xlabel="rank of the row", ylabel="share of the table's accesses")
    in_sum.set(xlabel="hottest rows, share of the table", ylabel="share of accesses")
    in_sum.set_xscale("symlog", linthresh=1e-4)
    _draw_hotness(hotness, statistics)
    figure.suptitle(f"Accesses in {statistics.samples:,} samples")
    return figure


def _draw_hotness(axes: Axes, statistics: Statistics) -> None:
    """Draws the longest and the mean bag of the features with the most ids."""
    hottest = sorted(
        statistics.features.items(), key=lambda item: -item[1].mean_hotness
    )[:MOST_BARS]
    names = [name for name, _ in hottest]
    longest = [feature.max_hotness for _, feature in hottest]
    mean = [feature.mean_hotness for _, feature in hottest]
    axes.barh(names, longest, color="lightgrey", label="most")
    axes.barh(names, mean, height=0.5, label="mean")
    axes.invert_yaxis()
    axes.set(xlabel="ids a bag")
    axes.legend(fontsize="small")


def table_devices(plan: Plan) -> Figure | None:
    """Draws how much of each table each device holds, the slowest tables first,
    copies in grey; None if there is one device."""
    if plan.devices == 1:
        return None
    names = [name for decision in summary.decisions(plan) for name in decision.tables]
    names = names[:MOST_BARS]
    held = summary.table_bytes(plan)
    matrix = np.array([held[name] / max(held[name].max(), 1) for name in names])
    height = 1.2 + 0.17 * len(names)
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(matrix, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, label="rows (1: the most)")
    copies = np.isin(names, [p.table.name for p in plan.placements if p.replicated])
    copied = np.where(copies[:, None], 0.5 * matrix, np.nan)
    axes.imshow(copied, aspect="auto", cmap="Greys", vmin=0, vmax=1)
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    left_out = len(plan.placements) - len(names)
    more = f" ({left_out} more tables take less time)" if left_out else ""
    title = f"Owners of each table{more}; grey: a copy on each device"
    axes.set(xlabel="device", title=title)
    return figure


def device_loads(plan: Plan) -> Figure:
    """Draws how long each device is busy, phase upon phase."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    devices = np.arange(plan.devices)
    if plan.prediction is None:
        axes.set_title("load: no prediction")
        return figure
    phase_ms = plan.prediction.breakdown.phase_ms
    below = np.zeros(plan.devices)
    for name, ms in phase_ms.items():
        axes.bar(devices, ms, bottom=below, width=0.9, label=name)
        below += ms
    axes.axhline(plan.prediction.lower_bound_ms, color="black", lw=1, ls=":")
    axes.set(xlabel="device", ylabel="ms", title="Load (dotted: lower bound)")
    figure.legend(loc="outside right upper", fontsize="small", reverse=True)
    return figure


def step_by_memory(plan: Plan) -> Figure | None:
    """Draws the step over the memory that plans take, and circles the least whose step
    is hardly longer; None if only one plan was made."""
    prediction = plan.prediction
    if prediction is None or len(prediction.by_memory) < 2:
        return None
    used = np.array([each.device_bytes for each in prediction.by_memory])
    step_ms = np.array([each.step_ms for each in prediction.by_memory])
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    unit, size = byte_unit(used.max())
    axes.step(used / size, step_ms, where="post", marker="o")
    hardly = step_ms <= (1 + HARDLY_LONGER) * step_ms.min()
    knee = np.argmin(np.where(hardly, used, np.inf))
    axes.plot(used[knee] / size, step_ms[knee], "o", ms=14, mfc="none", color="black")
    title = f"Step over memory (circle: at most {HARDLY_LONGER:.0%} longer)"
    axes.set(xlabel=f"{unit} a device", ylabel="ms", title=title)
    return figure


def device_memory(plan: Plan) -> Figure:
    """Draws the rows that each device owns, and the bytes that are allocated on it."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    devices = np.arange(plan.devices)
    held = summary.row_bytes(plan)
    allocated = np.array(plan.prediction.device_bytes if plan.prediction else held)
    unit, size = byte_unit(allocated.max())
    axes.bar(devices, allocated / size, color="lightgrey", label="allocated")
    axes.bar(devices, held / size, width=0.6, label="own rows")
    axes.set(xlabel="device", ylabel=unit, title="Memory")
    figure.legend(loc="outside right upper", fontsize="small")
    return figure
