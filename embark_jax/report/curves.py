"""Plots of a run's records, drawn without any state of pyplot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from embark_jax.report.display import TEST_STEP

Records = Sequence[dict[str, Any]]
"""The records of one run, as ``logs.read_metrics`` gives them."""

CAPACITY = "capacity_used/"
HITS = "cache_hits/"
LATE = "cache_late"
SHORT, MOST_SHOWN = 20, 90
"""Characters of a name in the legend: four of the former fit into a line, and one of
the latter."""
STEPS = {"validation": "step", "test": TEST_STEP}
"""Keys of the steps that the splits were evaluated at."""
MARKERS = {"validation": "o", "test": "x"}
"""Markers of the splits that are evaluated."""


def run_curves(runs: Mapping[str, Records]) -> Figure:
    """Draws loss, AUC, throughput and fill of the exchange buffers by step.

    Lines are the training batches since the record before, dots the whole validation
    set, and crosses the whole test set.
    With several runs, each shows its fullest buffer; one run shows every buffer.
    Where tables are cached, two more plots show the share of rows that had a slot (each
    storage of one run, or the lowest storage of each of several) and the share of steps
    that waited for rows.

    Args:
      runs: records by the name that the legend shows.
    """
    cached = any(LATE in r for records in runs.values() for r in records)
    rows = 3 if cached else 2
    figure = Figure(figsize=(10, 3.5 * rows), layout="constrained")
    loss, auc, speed, fill, *cache = figure.subplots(rows, 2, sharex=True).ravel()
    for color, records in zip(_colors(len(runs)), runs.values(), strict=True):
        _line(loss, records, "loss", color)
        _line(auc, records, "train_auc", color)
        for split, marker in MARKERS.items():
            evaluated = [r | {"step": r.get(STEPS[split], r["step"])} for r in records]
            _dots(loss, evaluated, f"{split}_log_loss", color, marker)
            _dots(auc, evaluated, f"{split}_auc", color, marker)
        _line(speed, records, "samples_per_s", color)
        if cached:
            _line(cache[1], records, LATE, color)
    _by_storage(fill, runs, CAPACITY, max)
    fill.axhline(1, color="black", lw=1, ls=":")
    if cached:
        hits, late = cache
        _by_storage(hits, runs, HITS, min)
        hits.set(title="Rows that had a slot", ylabel="share of rows")
        late.set(title="Steps that waited", ylabel="share of steps")
        hits.set_ylim(0, 1)
        late.set_ylim(0, 1)
    loss.set(title="Log loss")
    auc.set(title="AUC")
    speed.set(title="Throughput", ylabel="samples/s")
    speed.set_ylim(bottom=0)
    fill.set(title="Capacity (dotted: full)", ylabel="share in use")
    fill.set_ylim(bottom=0)
    for axes in figure.axes[-2:]:
        axes.set_xlabel("step")
    _add_legend(figure, list(runs))
    return figure


def _add_legend(figure: Figure, names: Sequence[str]) -> None:
    """Adds a legend below the plots, in one column where names are long; the figure's
    height grows for it. The ends of long names tell runs apart."""
    shown = [n if len(n) <= MOST_SHOWN else f"…{n[1 - MOST_SHOWN :]}" for n in names]
    handles = [
        Line2D([], [], color=color, label=name)
        for color, name in zip(_colors(len(shown)), shown, strict=True)
    ]
    handles.append(Line2D([], [], color="black", lw=1, label="training"))
    handles += [
        Line2D([], [], color="black", ls="", marker=marker, label=split)
        for split, marker in MARKERS.items()
    ]
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=4 if max(map(len, shown)) <= SHORT else 1,
        frameon=False,
    )
    figure.draw_without_rendering()
    height = legend.get_window_extent().height / figure.dpi
    figure.set_figheight(figure.get_figheight() + height)


def _colors(number: int) -> list[Any]:
    """Returns distinct colors for ten; for more, colors along a scale, in order."""
    if number <= 10:
        return [colormaps["tab10"](i) for i in range(number)]
    return [colormaps["viridis"](i / (number - 1)) for i in range(number)]


def _by_storage(
    axes: Axes, runs: Mapping[str, Records], prefix: str, extreme: Callable
) -> None:
    """Draws a line per storage of one run; of several runs, of the extreme one."""
    if len(runs) == 1:
        (records,) = runs.values()
        names = sorted({k for r in records for k in r if k.startswith(prefix)})
        for color, name in zip(_colors(len(names)), names, strict=True):
            _line(axes, records, name, color, name.removeprefix(prefix))
        if names:
            axes.legend(title="storage", fontsize="small")
        return
    for color, records in zip(_colors(len(runs)), runs.values(), strict=True):
        extremes = []
        for record in records:
            values = [value for key, value in record.items() if key.startswith(prefix)]
            value_of_step = extreme(values, default=None)
            extremes.append({"step": record["step"], "extreme": value_of_step})
        _line(axes, extremes, "extreme", color)


def _points(records: Records, key: str) -> tuple[list[int], list[float]]:
    """Returns steps and values where there are any; NaN and infinities leave a gap."""
    points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
    values = [value if math.isfinite(value) else math.nan for _, value in points]
    return [step for step, _ in points], values


def _line(
    axes: Axes, records: Records, key: str, color: Any, label: str | None = None
) -> None:
    axes.plot(*_points(records, key), color=color, lw=1, label=label)


def _dots(axes: Axes, records: Records, key: str, color: Any, marker: str) -> None:
    axes.plot(*_points(records, key), color=color, ls="", marker=marker, ms=4)
