"""Plans and runs as one HTML page, which fetches nothing from a network.

Text and tables are those of the terminal, as rich exports them; figures are pictures.
"""

from __future__ import annotations

import base64
import io
import string
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from matplotlib.figure import Figure
from rich.console import Console, RenderableType
from rich.text import Text

from embark_jax.plans.plan import Plan
from embark_jax.report import figures, summary
from embark_jax.report.curves import Records, run_curves
from embark_jax.report.terminal import Report, new_table

COLUMNS, UNLIMITED = 160, 2000
"""Columns of a plan's tables, and of those of runs, where no figure may be cut."""
PIXELS_PER_INCH = 110
TEST, VALIDATION = "test_", "validation_"
"""Prefixes of the metrics of a split."""
BEST = "bayes_auc"
"""Key of the best AUC that any model can reach on synthetic data."""
WINDOW_METRICS = ("validation_auc", "validation_log_loss", "validation_samples")
PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>body { margin: 1em; } img { max-width: 100%; } pre { overflow-x: auto; }</style>
</head>
<body>
$body
</body>
</html>
""")


def plan_page(plan: Plan, name: str = "") -> str:
    """Returns a whole page, which names each table; ``name`` is its heading."""
    title = escape(f"Plan: {name or summary.headline(plan)}")
    heading = f"<h2>{title}</h2>" if name else ""
    return PAGE.substitute(title=title, body=heading + plan_html(plan, in_full=True))


def plan_html(plan: Plan, in_full: bool = False) -> str:
    """Returns HTML for a page or a notebook; ``in_full`` gives each table a line, also
    where several are alike."""
    drawn = {
        "Owners of each table": figures.table_devices(plan),
        "Load of each device": figures.device_loads(plan),
        "Memory of each device": figures.device_memory(plan),
    }
    pictures = (_image(figure, title) for title, figure in drawn.items() if figure)
    return "\n".join([_html(Report(plan, in_full)), *pictures])


def runs_page(
    runs: Mapping[str, Records],
    plans: Mapping[str, str],
    traces: Sequence[str] = (),
    about: str = "",
) -> str:
    """Returns a whole page.

    Args:
      runs: the records of each run, by its name.
      plans: HTML that shows the plan, for runs that have one.
      traces: paths of profiles, from the page's folder.
      about: HTML that says of what model and config they are.
    """
    title = escape(", ".join(runs))
    sections = [f"<h2>{title}</h2>{about}"]
    sections.append(_html(*_results(runs), columns=UNLIMITED))
    if any(runs.values()):
        what = "Loss, AUC, throughput and fill of buffers"
        sections.append(_image(run_curves(runs), what))
    for path in traces:
        link = f'<a href="{escape(quote(path))}" download>{escape(path)}</a>'
        viewer = '<a href="https://ui.perfetto.dev">Perfetto</a>'
        sections.append(f"<p>Profile: {link}; open it in {viewer}.</p>")
    for name, plan in plans.items():
        sections.append(f"<h2>Plan of {escape(name)}</h2>{plan}")
    return PAGE.substitute(title=f"Runs: {title}", body="\n".join(sections))


def _results(runs: Mapping[str, Records]) -> Iterator[RenderableType]:
    """Gives a table with the test metrics and the median throughput of each run, and
    one with the time windows of each, if it has some."""
    last = {name: _final(records) for name, records in runs.items()}
    metrics = sorted({key for record in last.values() for key in record})
    if metrics:
        table = new_table("run", *map(_words, metrics), title="Results")
        for name, record in last.items():
            table.add_row(Text(name), *(_shown(record.get(key)) for key in metrics))
        yield table
    else:
        yield "No run has finished yet."
    for name, records in runs.items():
        windows = {r["window"]: r for r in records if "window" in r}
        if windows:
            table = new_table("window", "step", *map(_words, WINDOW_METRICS))
            for window, record in windows.items():
                shown = (_shown(record.get(key)) for key in WINDOW_METRICS)
                table.add_row(Text(str(window)), str(record["step"]), *shown)
            yield Text(f"Time windows of {name}, each before it was trained on")
            yield table


def _final(records: Records) -> dict[str, Any]:
    """Returns the final figures of a run: its test metrics, the best AUC that it could
    have, and its median throughput."""
    metrics = {
        key: value
        for record in records
        if record.get("final")
        for key, value in record.items()
        if (key.startswith(TEST) or key == BEST) and isinstance(value, int | float)
    }
    speeds = sorted(
        speed for record in records if (speed := record.get("samples_per_s"))
    )
    return metrics | ({"samples_per_s": speeds[len(speeds) // 2]} if speeds else {})


def _words(key: str) -> str:
    if key == BEST:
        return "best attainable auc"
    return key.removeprefix(TEST).removeprefix(VALIDATION).replace("_", " ")


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.5g}"


def _html(*contents: RenderableType, columns: int = COLUMNS) -> str:
    """Returns what a terminal of so many columns would show."""
    console = Console(
        record=True, file=io.StringIO(), width=columns, force_jupyter=False
    )
    console.print(*contents, sep="\n")
    return console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)


def _image(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<p><img alt="{escape(title)}" src="data:image/png;base64,{data}"></p>'
