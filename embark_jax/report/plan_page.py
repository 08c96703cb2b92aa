"""A plan as one HTML page, which fetches nothing from a network.

The first screen says how long a step is and why, where it is uneven, and what would
help; figures follow, then the tables, alike ones on one line.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

from matplotlib.figure import Figure

from embark_jax.plans.plan import Plan
from embark_jax.report import advice, figures, summary

STYLE = """
.embark-plan { font: 15px/1.45 system-ui, sans-serif; max-width: 75em; margin: auto; }
.embark-plan .answers { display: grid; gap: 0 2.5em;
  grid-template-columns: repeat(auto-fit, minmax(20em, 1fr)); }
.embark-plan h2 { font-size: 1.3em; } .embark-plan h3 { margin: .9em 0 .2em; }
.embark-plan ul { margin: 0; padding-left: 1.2em; }
.embark-plan .phases { display: flex; height: 1.6em; border-radius: 4px;
  overflow: hidden; }
.embark-plan .phases div { min-width: 1px; }
.embark-plan .swatch { display: inline-block; width: .8em; height: .8em; }
.embark-plan img { max-width: 100%; background: white; }
.embark-plan .wide { overflow-x: auto; }
.embark-plan table { border-collapse: collapse; font-size: 90%; }
.embark-plan th, .embark-plan td { padding: .15em .7em; text-align: right; }
.embark-plan td:first-child, .embark-plan td:last-child { text-align: left; }
.embark-plan thead { border-bottom: 1px solid; }
.embark-plan .nowrap { white-space: nowrap; }
.embark-plan .warning { font-weight: bold; color: light-dark(#a34f00, #ffb066); }
"""
PAGE_STYLE = ":root { color-scheme: light dark; } body { margin: 1em; }"
SORT = """
document.querySelectorAll(".embark-plan th").forEach((th) => {
  th.tabIndex = 0;
  th.style.cursor = "pointer";
  const sort = () => {
    const body = th.closest("table").tBodies[0], down = th.ariaSort !== "descending";
    const key = (row) => row.cells[th.cellIndex].dataset.key;
    const compare = (a, b) => isNaN(key(a) - key(b))
      ? key(b).localeCompare(key(a)) : key(b) - key(a);
    const sorted = [...body.rows].sort(compare);
    th.parentElement.querySelectorAll("th").forEach((each) => (each.ariaSort = null));
    th.ariaSort = down ? "descending" : "ascending";
    body.append(...(down ? sorted : sorted.reverse()));
  };
  th.addEventListener("click", sort);
  th.addEventListener("keydown", (event) => event.key === "Enter" && sort());
});
"""
"""Sorts a table by the column whose heading is chosen, at first from the largest."""
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bbbbbb",
    "#ee7733",
    "#009988",
    "#332288",
    "#882255",
    "#999933",
)
"""Colours of Paul Tol, which readers with any colour vision tell apart."""
PIXELS_PER_INCH = 110


def page(plan: Plan) -> str:
    """Returns a whole page, which names each table."""
    return whole_page(f"Plan: {escape(summary.headline(plan))}", body(plan))


def body(plan: Plan) -> str:
    """Returns the body of such a page."""
    every_table = _section("Every table", _decisions(plan, separately=True), False)
    return _body(plan, True, every_table)


def whole_page(title: str, body: str) -> str:
    """Returns a page that needs no other file; ``title`` and ``body`` are HTML."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{PAGE_STYLE}{STYLE}</style></head>"
        f"<body>{body}<script>{SORT}</script></body></html>\n"
    )


def fragment(plan: Plan) -> str:
    """Returns HTML for a notebook, in which all but the answers is folded."""
    return f"<style>{STYLE}</style>{_body(plan, False)}"


def _body(plan: Plan, is_open: bool, last: str = "") -> str:
    answers = {
        "Why": advice.why(plan),
        "Where it is uneven": advice.uneven(plan),
        "What would help": plan.prediction.advice if plan.prediction else (),
    }
    drawn = {
        "Owners of each table": figures.table_devices(plan),
        "Load of each device": figures.device_loads(plan),
        "Memory of each device": figures.device_memory(plan),
    }
    sections = [
        f"<h2>{escape(summary.headline(plan))}</h2><p>{escape(summary.verdict(plan))}</p>",
        f'<p class="warning">{escape(summary.PLACEHOLDERS)}</p>'
        if plan.prediction and plan.prediction.placeholders
        else "",
        f"<p>{escape(summary.assumptions(plan))}</p>",
        f"<p>{escape(summary.CLUSTERS)}</p>",
        _phases(summary.critical_path(plan)),
        '<div class="answers">',
        *(_list(title, sentences) for title, sentences in answers.items()),
        "</div>",
        *(
            _section(title, image(figure, title), is_open)
            for title, figure in drawn.items()
            if figure is not None
        ),
        _section("Tables", _decisions(plan, separately=False), is_open),
        f"<p>{escape(summary.COLUMNS)}</p>",
        last,
    ]
    return f'<div class="embark-plan">{"".join(sections)}</div>'


def _phases(path: dict[str, float]) -> str:
    """Returns the step as one bar, phase after phase, with its legend."""
    total_ms = sum(path.values())
    if not total_ms:
        return ""
    shown = [
        (name, ms, COLOURS[i % len(COLOURS)])
        for i, (name, ms) in enumerate(path.items())
        if ms
    ]
    bar = "".join(
        f'<div style="width:{ms / total_ms:.2%};background:{colour}"></div>'
        for name, ms, colour in shown
    )
    legend = " ".join(
        f'<span class="nowrap"><span class="swatch" style="background:{colour}">'
        f"</span> {escape(name)} {ms:.3f} ms, {ms / total_ms:.0%}</span>"
        for name, ms, colour in shown
    )
    return f'<div class="phases">{bar}</div><p>{legend}</p>'


def _list(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<div><h3>{escape(title)}</h3><ul>{items}</ul></div>"


def _section(title: str, content: str, is_open: bool) -> str:
    tag = "<details open>" if is_open else "<details>"
    return f"{tag}<summary><b>{escape(title)}</b></summary>{content}</details>"


def _decisions(plan: Plan, separately: bool) -> str:
    step_ms = plan.prediction.step_ms if plan.prediction else 0.0
    rows = []
    for row in summary.decisions(plan, separately):
        share = "–" if row.ms is None or not step_ms else f"{row.ms / step_ms:.1%}"
        rows.append(
            (
                (row.name, row.name),
                (f"{row.rows:,}", row.rows),
                (f"{row.dim}", row.dim),
                (f"{row.ids}", row.ids),
                ("–" if row.ms is None else f"{row.ms:.3f}", row.ms or 0.0),
                (share, row.ms or 0.0),
                (summary.without(plan, row), row.without_ms or 0.0),
                (row.placement, row.placement),
                (row.devices, row.devices),
                (row.why, row.why),
            )
        )
    headings = ("table", "rows", "dim", "ids", "ms", "share", "without")
    return table((*headings, "placement", "devices", "why"), rows)


def table(
    headings: Iterable[str], rows: Iterable[Iterable[tuple[str, str | float]]]
) -> str:
    """Returns a table. A cell is the text shown, and the value that a column sorts
    by."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-key="{escape(str(key))}">{escape(shown)}</td>'
            for shown, key in row
        )
        + "</tr>"
        for row in rows
    )
    markup = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{markup}</div>'


def image(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{data}">'
