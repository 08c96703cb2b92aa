"""``embark plan``."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from embark_jax import planner
from embark_jax._base.config import ConfigError, read_text
from embark_jax.cli.arguments import (
    WITHOUT_DATA,
    ListOptions,
    Overrides,
    console,
    say,
    with_list_options,
)
from embark_jax.cli.paths import check_outputs
from embark_jax.config import reading
from embark_jax.report.plan_record import plan_record
from embark_jax.report.terminal import Report
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics


@with_list_options
def plan(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="Config to plan: a YAML or gin file."),
    ] = None,
    overrides: Overrides = None,
    *,
    options: ListOptions,
    stats: Annotated[
        Path | None,
        typer.Option(
            help="Statistics of the ids, which `embark data stats --out` wrote.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show each table on a line of its own.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print costs and shards as one JSON object.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the report as a page with plots.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the plan as JSON, for embark train --plan."),
    ] = None,
) -> None:
    """Plan where every table will live, and show why."""
    options.check(config_file)
    for path in (out, html):  # before a long search
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(
                f"{path}: there is no folder {path.parent}; create it first"
            )
    statistics = NO_STATISTICS
    if stats is not None:
        text = read_text(stats)
        try:
            statistics = Statistics.from_json(text)
        except ConfigError as error:
            raise ConfigError(f"{stats}: {error}") from None
    start = time.perf_counter()
    without_data = False
    if config_file is not None:
        config = reading.load(config_file, overrides or ())
        check_outputs({"out": out, "html": html}, config)
        from embark_jax.run import experiment

        model = experiment.plan_model(config, statistics)
        planned, without_data = model.plan, model.without_data
    else:
        try:
            listed, workload = options.read()
            planned = planner.advised_plan(
                dataclasses.replace(workload, statistics=statistics),
                *listed.specs(),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
    seconds = time.perf_counter() - start
    if out is not None:
        out.write_text(planned.to_json())
    if html is not None:
        from embark_jax.report.page import plan_page

        html.write_text(plan_page(planned), "utf-8")
    if as_json:
        record = {"planning_seconds": seconds, **plan_record(planned)}
        if config_file is not None:
            record["without_data"] = without_data
        print(json.dumps(record))
        return
    console.print(Report(planned, every))
    if without_data:
        say(WITHOUT_DATA)
    for path in (out, html):
        if path is not None:
            say(f"plan written to {path}")
