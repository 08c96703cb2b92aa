"""The page of a run, in the run's folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from embark_jax.plans.plan import Plan
from embark_jax.report.page import plan_html, runs_page
from embark_jax.run.logs import read_metrics
from embark_jax.run.profile import traces

REPORT = "report.html"


@contextlib.contextmanager
def reported(workdir: Path, plan: Plan) -> Iterator[None]:
    """Writes a run's report twice: with its plan when it begins, and with its curves,
    metrics and traces, too, when it ends or is stopped."""
    plans = {workdir.name: plan_html(plan, in_full=True)}

    def write():
        records = read_metrics(workdir)
        links = [path.relative_to(workdir).as_posix() for path in traces(workdir)]
        text = runs_page({workdir.name: records}, plans, links)
        (workdir / REPORT).write_text(text, "utf-8")

    write()
    yield
    write()
