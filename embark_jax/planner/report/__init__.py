"""Reports show a plan: the words of this folder.

- **decision**: where a table lives and why, or several tables that are alike.
- **critical phase**: how long a phase lasts, until its fullest device is done.
- **record**: a plan as JSON for other programs.

Importing this folder enters its views of plans into ``layout/plan.py``; rich and
Matplotlib are imported when one is asked for.
"""

from __future__ import annotations

from typing import Any

from embark_jax.planner.layout.plan import VIEWS, Plan


def _rich(plan: Plan) -> Any:
    from embark_jax.planner.report.terminal import Report

    return Report(plan)


def _text(plan: Plan) -> str:
    from embark_jax.planner.report.terminal import as_text

    return as_text(plan)


def _html(plan: Plan) -> str:
    from embark_jax.planner.report.html import fragment

    return fragment(plan)


VIEWS.update(rich=_rich, text=_text, html=_html)
