"""A plan as one HTML page: no scripts, nothing from a network."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from html import escape

from matplotlib.figure import Figure

from embark_jax.planner.layout.plan import Plan
from embark_jax.planner.report import figures, summary

STYLE = """
.embark-plan { font-family: sans-serif; max-width: 75em; }
.embark-plan table { border-collapse: collapse; font-size: 90%; }
.embark-plan th, .embark-plan td { padding: .15em .7em; text-align: right; }
.embark-plan td:first-child, .embark-plan td:last-child { text-align: left; }
.embark-plan thead { border-bottom: 1px solid; }
.embark-plan .warning { font-weight: bold; color: #b35900; }
"""
PIXELS_PER_INCH = 110


def page(plan: Plan) -> str:
    """A whole page, which names each table."""
    title = escape(summary.headline(plan))
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Plan: {title}</title></head><body>{_body(plan, each=True)}"
        "</body></html>\n"
    )


def fragment(plan: Plan) -> str:
    """For a notebook: alike tables on one line, and all but the verdict folded."""
    return _body(plan, each=False)


def _body(plan: Plan, each: bool) -> str:
    cost, warning = summary.verdict(plan)
    parts = [
        f"<h2>{escape(summary.headline(plan))}</h2><p>{escape(cost)}</p>",
        f'<p class="warning">{escape(warning)}</p>' if warning else "",
        f"<p>{escape(uneven)}</p>" if (uneven := summary.uneven_rows(plan)) else "",
        _section("Tables", _decisions(plan, each), each),
    ]
    path = summary.critical_path(plan)
    if path:
        parts.append(_section(summary.PATH_TITLE, _critical_path(path), each))
    drawn = {
        "Load of each device": figures.device_loads(plan),
        "Memory of each device": figures.device_memory(plan),
        "Traffic between devices": figures.traffic_matrix(plan),
    }
    for title, figure in drawn.items():
        if figure is not None:
            parts.append(_section(title, _image(figure, title), each))
    return f'<div class="embark-plan"><style>{STYLE}</style>{"".join(parts)}</div>'


def _section(title: str, content: str, is_open: bool) -> str:
    tag = "<details open>" if is_open else "<details>"
    return f"{tag}<summary><b>{escape(title)}</b></summary>{content}</details>"


def _decisions(plan: Plan, each: bool) -> str:
    step_ms = plan.prediction.step_ms if plan.prediction else 0.0
    rows = []
    for row in summary.decisions(plan, each):
        share = "–" if row.ms is None or not step_ms else f"{row.ms / step_ms:.1%}"
        rows.append(
            (
                row.name,
                f"{row.rows:,}",
                f"{row.dim}",
                f"{row.ids}",
                "–" if row.ms is None else f"{row.ms:.3f}",
                share,
                row.placement,
                row.devices,
                row.why,
            )
        )
    headings = ("table", "rows", "dim", "ids", "ms", "share", "placement", "devices")
    return _table((*headings, "why"), rows)


def _critical_path(phase_ms: dict[str, float]) -> str:
    total_ms = sum(phase_ms.values())
    rows = [(k, f"{ms:.3f}", f"{ms / total_ms:.1%}") for k, ms in phase_ms.items()]
    return _table(("phase", "ms", "share"), rows)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _image(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{data}">'
