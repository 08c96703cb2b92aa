"""``embark compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import check_outputs, console, say


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs; that of a search stands for its trials.",
        ),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of the validation set, such as auc or hr@10, by whose best "
            "value runs are ordered."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page, with curves, and values against the metric."),
    ] = None,
) -> None:
    """Compare runs: the keys that differ, metrics, steps, time and memory."""
    check_outputs(runs, html=html)
    from embark_jax.report.comparison import comparison_page, comparison_table, legend
    from embark_jax.run.compare import deciding_key, read_runs

    compared = read_runs(runs)
    deciding = None if metric is None else deciding_key(compared, metric)
    console.print(comparison_table(compared, deciding))
    say(legend(compared))
    if html is not None:
        html.write_text(comparison_page(compared, deciding), "utf-8")
        say(f"page written to {html}")
