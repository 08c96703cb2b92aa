"""Runs as one HTML page: curves, test metrics, and the plan of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from embark_jax.planner import Plan
from embark_jax.planner.report import html
from embark_jax.train.figures import Records, run_curves
from embark_jax.train.logs import read_metrics

REPORT = "report.html"
SPLIT = "test_"


@contextlib.contextmanager
def reported(workdir: Path, plan: Plan) -> Iterator[None]:
    """Writes a run's report twice: with its plan when it begins, and with its curves
    and metrics, too, when it ends or is stopped."""
    plans = {workdir.name: html.body(plan)}

    def write():
        records = read_metrics(workdir)
        (workdir / REPORT).write_text(page({workdir.name: records}, plans), "utf-8")

    write()
    yield
    write()


def page(runs: Mapping[str, Records], plans: Mapping[str, str]) -> str:
    """Returns a whole page, which fetches nothing from a network.

    Args:
      runs: the records of each run, by its name.
      plans: HTML that shows the plan, for runs that have one.
    """
    title = escape(", ".join(runs))
    parts = [f"<h2>{title}</h2>", _results(runs)]
    if any(runs.values()):
        curves = run_curves(runs)
        parts.append(html.image(curves, "Loss, AUC, throughput and fill of buffers"))
    for name, plan in plans.items():
        parts.append(f"<hr><h2>Plan of {escape(name)}</h2>{plan}")
    body = f'<div class="embark-plan">{"".join(parts)}</div>'
    return html.whole_page(f"Runs: {title}", body)


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
    return html.table(("run", *names), rows)


def _final(records: Records) -> dict[str, Any]:
    """Returns the final figures of a run: its test metrics and median throughput."""
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
