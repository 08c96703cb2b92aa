"""What a run writes beside its checkpoints: config, plan, metrics, a report."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from html import escape
from pathlib import Path

import jax

from embark_jax.report.page import plan_html, runs_page
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import PLAN, RunFolder
from embark_jax.run.logs import MetricsLog, read_metrics
from embark_jax.run.profile import traces
from embark_jax.run.trackers import open_tracker

REPORT = "report.html"


@contextlib.contextmanager
def outputs(folder: RunFolder, setup: Experiment, step: int) -> Iterator[MetricsLog]:
    """Gives the log of a run that goes on from ``step``, and writes all else: the
    report with its plan at the beginning, and with curves, metrics and traces, too,
    when the run ends or is stopped. Process 0 writes; the others' logs go nowhere."""
    if jax.process_index() != 0:
        with MetricsLog(folder.files, writes=False) as log:
            yield log
        return
    files, config = folder.files, setup.config
    folder.save_config(config, step)
    setup.save_encoding(files)
    (files / PLAN).write_text(setup.plan.to_json())
    settings = config.model_dump(mode="json")
    trackers = [open_tracker(name, files, settings) for name in config.train.trackers]
    with folder.published(), MetricsLog(files, step, trackers=trackers) as log:
        write_report(files, setup)
        yield log
        write_report(files, setup)


def write_report(workdir: Path, setup: Experiment) -> None:
    """Writes the page of a run, with what its log has so far."""
    plans = {workdir.name: plan_html(setup.plan, in_full=True)}
    links = [path.relative_to(workdir).as_posix() for path in traces(workdir)]
    runs = {workdir.name: read_metrics(workdir)}
    text = runs_page(runs, plans, links, _about(setup))
    (workdir / REPORT).write_text(text, "utf-8")


def _about(setup: Experiment) -> str:
    """Says in HTML of what model and config a page is, and how its times compare."""
    config = setup.config
    facts = (
        f"{datetime.date.today()}: model {config.model.kind}, rows updated by "
        f"{config.embedding.optimizer.kind}, dense layers by "
        f"{config.dense_optimizer.kind}, batch {config.train.batch_size:,}, seed "
        f"{config.seed}; "
    )
    times = (
        "a measured step lasts batch / samples per s, with dense layers, input and "
        "host; the plan's step is of the embeddings alone, on the plan's fleet"
    )
    link = '<a href="config.yaml">config.yaml</a>'
    return f"<p>{escape(facts)}{link}. {times}.</p>"
