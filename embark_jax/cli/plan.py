"""``embark plan``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import (
    WITHOUT_DATA,
    ConfigOrList,
    Overrides,
    check_outputs,
    console,
    say,
)


def plan(
    config_file: ConfigOrList,
    overrides: Overrides = None,
    *,
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
    advice: Annotated[
        bool, typer.Option(help="Try what would make the step faster.")
    ] = True,
) -> None:
    """Plan where every table will live, and show how long a step takes.

    For example: embark plan t180 fleet=dgx-h100 mesh.nodes=16
    embedding.wire.rows=bfloat16
    """
    from embark_jax._base.config import ConfigError, read_text
    from embark_jax.config import reading
    from embark_jax.run.experiment import plan_model
    from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

    config = reading.load(config_file, overrides or ())
    check_outputs([config_file, config.fleet, stats], out=out, html=html)
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
    _, planned, without_data = plan_model(config, statistics, advice)
    seconds = time.perf_counter() - start
    name = f"{config.name} on {config.fleet or 'this machine'}"
    if out is not None:
        out.write_text(planned.to_json())
    if html is not None:
        from embark_jax.report.page import plan_page

        html.write_text(plan_page(planned, name), "utf-8")
    if as_json:
        from embark_jax.report.plan_record import plan_record

        record = {"planning_seconds": seconds, **plan_record(planned)}
        print(json.dumps({**record, "without_data": without_data}))
        return
    from embark_jax.report.terminal import Report

    say(name)
    console.print(Report(planned, every))
    if without_data:
        say(WITHOUT_DATA)
    for path in (out, html):
        if path is not None:
            say(f"plan written to {path}")
