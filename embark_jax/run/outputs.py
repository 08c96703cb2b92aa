"""What a run writes beside its checkpoints: config, plan, metrics, a report."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from html import escape
from pathlib import Path

import jax

from embark_jax.report.page import run_page
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import PLAN, RunFolder
from embark_jax.run.logs import MetricsLog, read_metrics
from embark_jax.run.profile import traces

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
    files = folder.files
    folder.save_config(setup.config)
    setup.save_encoding(files)
    (files / PLAN).write_text(setup.plan.to_json())
    with folder.published(), MetricsLog(files, step) as log:
        write_report(files, setup)
        yield log
        write_report(files, setup)


def write_report(workdir: Path, setup: Experiment) -> None:
    """Writes the page of a run, with what its log has so far."""
    links = [path.relative_to(workdir).as_posix() for path in traces(workdir)]
    records, about = read_metrics(workdir), _about(setup)
    text = run_page(workdir.name, records, setup.plan, links, about)
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
