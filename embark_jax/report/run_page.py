"""Runs as one HTML page: curves, test metrics, and the plan of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from embark_jax.report import plan_page
from embark_jax.report.curves import Records, run_curves

SPLIT = "test_"


def page(
    runs: Mapping[str, Records],
    plans: Mapping[str, str],
    traces: Sequence[str] = (),
) -> str:
    """Returns a whole page, which fetches nothing from a network.

    Args:
      runs: the records of each run, by its name.
      plans: HTML that shows the plan, for runs that have one.
      traces: paths of profiles, from the page's folder.
    """
    title = escape(", ".join(runs))
    sections = [f"<h2>{title}</h2>", _results(runs)]
    if any(runs.values()):
        curves = run_curves(runs)
        what = "Loss, AUC, throughput and fill of buffers"
        sections.append(plan_page.image(curves, what))
    for name, records in runs.items():
        sections.append(_windows(name, records))
    for path in traces:
        link = f'<a href="{escape(quote(path))}" download>{escape(path)}</a>'
        viewer = '<a href="https://ui.perfetto.dev">Perfetto</a>'
        sections.append(f"<p>Profile: {link}; open it in {viewer}.</p>")
    for name, plan in plans.items():
        sections.append(f"<hr><h2>Plan of {escape(name)}</h2>{plan}")
    body = f'<div class="embark-plan">{"".join(sections)}</div>'
    return plan_page.whole_page(f"Runs: {title}", body)


def _results(runs: Mapping[str, Records]) -> str:
    """Returns a table with the last throughput and the test metrics of each run."""
    last = {name: _final(records) for name, records in runs.items()}
    metrics = sorted({key for record in last.values() for key in record})
    if not metrics:
        return "<p>No run has finished yet.</p>"
    rows = [
        (
            (name, name),
            *((_shown(record.get(key)), record.get(key, "")) for key in metrics),
        )
        for name, record in last.items()
    ]
    names = (key.removeprefix(SPLIT).replace("_", " ") for key in metrics)
    return plan_page.table(("run", *names), rows)


def _windows(name: str, records: Records) -> str:
    """Returns a table of the time windows that a run was evaluated on, each before it
    was trained on; nothing if there are none."""
    metrics = ("validation_auc", "validation_log_loss", "validation_samples")
    windows = {r["window"]: r for r in records if "window" in r}
    if not windows:
        return ""
    rows = [
        (
            (window, window),
            (str(record["step"]), record["step"]),
            *((_shown(record.get(key)), record.get(key, "")) for key in metrics),
        )
        for window, record in windows.items()
    ]
    names = (key.removeprefix("validation_").replace("_", " ") for key in metrics)
    title = f"<h3>Time windows of {escape(name)}, each before it was trained on</h3>"
    return title + plan_page.table(("window", "step", *names), rows)


def _final(records: Records) -> dict[str, Any]:
    """Returns the final figures of a run: its test metrics and median throughput."""
    metrics = {
        key: value
        for record in records
        if record.get("final")
        for key, value in record.items()
        if key.startswith(SPLIT) and isinstance(value, int | float)
    }
    speeds = sorted(
        speed for record in records if (speed := record.get("samples_per_s"))
    )
    return metrics | ({"samples_per_s": speeds[len(speeds) // 2]} if speeds else {})


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.5g}"
