"""Plans and runs as one HTML page, which fetches nothing from a network.

Text and tables are those of the terminal, as rich exports them; figures are pictures.
"""

from __future__ import annotations

import base64
import io
import string
from collections.abc import Iterator, Sequence
from html import escape
from urllib.parse import quote

from matplotlib.figure import Figure
from rich.console import Console, RenderableType
from rich.text import Text

from embark_jax.plans.plan import Plan
from embark_jax.report import figures, summary
from embark_jax.report.curves import Records, run_curves
from embark_jax.report.display import result_table, value_text
from embark_jax.report.terminal import Report, new_table

COLUMNS, UNLIMITED = 160, 2000
"""Columns of a plan's tables, and of those of runs, where no figure may be cut."""
PIXELS_PER_INCH = 110
WINDOW_METRICS = ("auc", "log_loss", "samples")
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
        "Step over memory": figures.step_by_memory(plan),
    }
    pictures = (image(figure, title) for title, figure in drawn.items() if figure)
    return "\n".join([html_text(Report(plan, in_full)), *pictures])


def run_page(
    name: str,
    records: Records,
    plan: str,
    traces: Sequence[str] = (),
    about: str = "",
) -> str:
    """Returns the whole page of a run.

    Args:
      name: name of the run.
      records: its records.
      plan: its plan in HTML, by ``plan_html``.
      traces: paths of profiles, from the page's folder.
      about: HTML that says of what model and config it is.
    """
    title = escape(name)
    sections = [f"<h2>{title}</h2>{about}"]
    sections.append(html_text(*_results(records), columns=UNLIMITED))
    if records:
        what = "Loss, AUC, throughput and fill of buffers"
        sections.append(image(run_curves(records), what))
    for path in traces:
        link = f'<a href="{escape(quote(path))}" download>{escape(path)}</a>'
        viewer = '<a href="https://ui.perfetto.dev">Perfetto</a>'
        sections.append(f"<p>Profile: {link}; open it in {viewer}.</p>")
    sections.append(f"<h2>Plan</h2>{plan}")
    return PAGE.substitute(title=f"Run: {title}", body="\n".join(sections))


def _results(records: Records) -> Iterator[RenderableType]:
    """Gives a table with the test metrics and the median throughput of a run, and one
    with its time windows, if it has some."""
    final = [record for record in records if record.get("final")]
    if not final:
        yield "The run has not finished yet."
    else:
        table = result_table(final[-1])
        speeds = sorted(filter(None, (r.get("samples_per_s") for r in records)))
        if speeds:
            table.add_row("samples per s", f"{speeds[len(speeds) // 2]:,.0f}")
        yield table
    windows = {r["window"]: r for r in records if "window" in r}
    if windows:
        table = new_table("window", "step", *WINDOW_METRICS)
        for window, record in windows.items():
            values = (record.get(f"validation_{name}") for name in WINDOW_METRICS)
            cells = map(value_text, values)
            table.add_row(Text(str(window)), str(record["step"]), *cells)
        yield "Time windows, each before it was trained on"
        yield table


def html_text(*contents: RenderableType, columns: int = COLUMNS) -> str:
    """Returns what a terminal of so many columns would show, in HTML."""
    console = Console(
        record=True, file=io.StringIO(), width=columns, force_jupyter=False
    )
    console.print(*contents, sep="\n")
    return console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)


def image(figure: Figure, title: str) -> str:
    """Returns a picture as a part of a page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<p><img alt="{escape(title)}" src="data:image/png;base64,{data}"></p>'
