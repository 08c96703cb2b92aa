"""Plots of a run's records, drawn without any state of pyplot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from embark_jax.report.display import TEST_STEP

Records = Sequence[Mapping[str, Any]]
"""The records of a run, as ``logs.read_metrics`` gives them."""

CAPACITY, HITS, LATE = "capacity_used/", "cache_hits/", "cache_late"
STEPS = {"validation": "step", "test": TEST_STEP}
"""Keys of the steps that the splits were evaluated at."""
MARKERS = {"validation": "o", "test": "x"}
"""Markers of the splits that are evaluated."""


TITLES = {"loss": "training loss", "samples_per_s": "samples per s"}

MOST_LETTERS = 36
"""Letters of values that have room side by side below a plot."""


def run_curves(records: Records) -> Figure:
    """Draws loss, AUC, throughput and fill of each exchange buffer by step; where
    tables are cached, also the share of each storage's rows that had a slot, and that
    of the steps that waited for rows.

    Lines are the training batches since the record before, dots the whole validation
    set, and crosses the whole test set.
    """
    cached = any(LATE in record for record in records)
    rows = 3 if cached else 2
    figure = Figure(figsize=(10, 3.5 * rows), layout="constrained")
    loss, auc, speed, fill, *cache = figure.subplots(rows, 2, sharex=True).ravel()
    for axes, training, metric in (
        (loss, "loss", "log_loss"),
        (auc, "train_auc", "auc"),
    ):
        _line(axes, records, training, label="training")
        for split, marker in MARKERS.items():
            evaluated = [{**r, "step": r.get(STEPS[split], r["step"])} for r in records]
            style = {"ls": "", "marker": marker, "ms": 4, "label": split}
            _line(axes, evaluated, f"{split}_{metric}", **style)
        axes.legend(fontsize="small")
    _line(speed, records, "samples_per_s")
    _by_storage(fill, records, CAPACITY)
    fill.axhline(1, color="black", lw=1, ls=":")
    loss.set(title="Log loss")
    auc.set(title="AUC")
    speed.set(title="Throughput", ylabel="samples/s")
    speed.set_ylim(bottom=0)
    fill.set(title="Capacity (dotted: full)", ylabel="share in use")
    fill.set_ylim(bottom=0)
    if cached:
        hits, late = cache
        _by_storage(hits, records, HITS)
        _line(late, records, LATE)
        hits.set(title="Rows that had a slot", ylabel="share of rows", ylim=(0, 1))
        late.set(title="Steps that waited", ylabel="share of steps", ylim=(0, 1))
    for axes in figure.axes[-2:]:
        axes.set_xlabel("step")
    return figure


def compared_curves(
    groups: Mapping[str, Sequence[Records]], deciding: str | None = None
) -> Figure:
    """Draws the curves of several runs over each other, those of a group in one colour:
    training loss, two metrics of the validation set, or of the test set where that was
    evaluated, the deciding one first, and throughput."""
    every_run = [records for group in groups.values() for records in group]
    found = {key for records in every_run for record in records for key in record}
    metrics = [f"{split}_{m}" for split in STEPS for m in ("auc", "log_loss", "hr@10")]
    shown = [key for key in dict.fromkeys([deciding, *metrics]) if key in found]
    panels = ["loss", *filter(None, shown[:2]), "samples_per_s"]
    rows = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(10, 3.5 * rows), layout="constrained")
    every = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes, key in zip(every, panels, strict=False):
        for number, (name, (first, *others)) in enumerate(groups.items()):
            _line(axes, first, key, color=f"C{number}", label=name)
            for records in others:
                _line(axes, records, key, color=f"C{number}")
        axes.set(title=TITLES.get(key, key.replace("_", " ")), xlabel="step")
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    figure.legend(
        *every[0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    return figure


def value_plots(
    points: Mapping[str, Sequence[tuple[Any, float | None]]], metric: str
) -> Figure:
    """Draws the value of each key, and the metric that a run with it has reached."""
    rows = math.ceil(len(points) / 3)
    figure = Figure(figsize=(10, 3 * rows), layout="constrained")
    every = figure.subplots(rows, 3, squeeze=False).ravel()
    for axes, (key, pairs) in zip(every, points.items(), strict=False):
        known = [(value, y) for value, y in pairs if y is not None]
        values = [value for value, _ in known]
        if not all(type(value) in (int, float) for value in values):
            values = [*map(str, values)]
            if sum(map(len, {*values})) > MOST_LETTERS:
                axes.tick_params(axis="x", labelrotation=30)
        elif values and 0 < 20 * min(values) < max(values):
            axes.set_xscale("log")
            subs = (1, 3) if max(values) < 1000 * min(values) else (1,)
            axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=5))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.locator_params(axis="x", nbins=5)
        axes.plot(values, [y for _, y in known], ls="", marker="o", ms=4)
        axes.set(xlabel=key, ylabel=metric)
    for axes in every[len(points) :]:
        axes.set_visible(False)
    return figure


def _by_storage(axes: Axes, records: Records, prefix: str) -> None:
    """Draws a line per storage."""
    names = sorted({k for record in records for k in record if k.startswith(prefix)})
    for name in names:
        _line(axes, records, name, label=name.removeprefix(prefix))
    if names:
        axes.legend(title="storage", fontsize="small")


def _line(axes: Axes, records: Records, key: str, **style: Any) -> None:
    """Draws values where there are any; NaN and infinities leave a gap. One value has
    no line, it is a dot."""
    points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
    values = [value if math.isfinite(value) else math.nan for _, value in points]
    marker = "." if len(points) == 1 else ""
    axes.plot(
        [step for step, _ in points], values, **{"lw": 1, "marker": marker, **style}
    )
