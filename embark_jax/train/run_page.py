"""Runs as one HTML page: curves, test metrics, and the plan of each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from embark_jax.planner import Plan
from embark_jax.planner.report import html
from embark_jax.train.figures import Records, run_curves

SPLIT = "test_"


def page(runs: Mapping[str, Records], plans: Mapping[str, Plan]) -> str:
    """A whole page, which fetches nothing from a network.

    Args:
      runs: the records of each run, by its name.
      plans: the plans of runs that have one.
    """
    title = escape(", ".join(runs))
    parts = [
        f"<h2>{title}</h2>",
        _results(runs),
        html.image(run_curves(runs), "Loss, AUC, throughput and fill of buffers"),
    ]
    body = f'<div class="embark-plan">{"".join(parts)}</div>'
    shown = "".join(
        f"<hr><h2>Plan of {escape(name)}</h2>{html.fragment(plan)}"
        for name, plan in plans.items()
    )
    return html.whole_page(f"Runs: {title}", body + shown)


def _results(runs: Mapping[str, Records]) -> str:
    """A table with the last throughput and the test metrics of each run."""
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
    return html.table(("run", *(key.removeprefix(SPLIT) for key in metrics)), rows)


def _final(records: Records) -> dict[str, Any]:
    """What a run ended with: its test metrics, and its median throughput."""
    found = {
        key: value
        for record in records
        if record.get("final")
        for key, value in record.items()
        if key.startswith(SPLIT) and isinstance(value, int | float)
    }
    speeds = sorted(
        speed for record in records if (speed := record.get("samples_per_s"))
    )
    return found | ({"samples_per_s": speeds[len(speeds) // 2]} if speeds else {})


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.5g}"
