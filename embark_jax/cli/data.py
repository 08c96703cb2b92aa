"""``embark data``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embark_jax.cli import prepare
from embark_jax.cli.arguments import (
    Overrides,
    check_outputs,
    end_like_ctrl_c,
    say,
    show_table,
    tracked,
)

if TYPE_CHECKING:
    from embark_jax.config import ExperimentConfig
    from embark_jax.statistics.accesses import Statistics

app = typer.Typer(help="Fetch, prepare and examine data sets.", no_args_is_help=True)


app.callback()(end_like_ctrl_c)
app.command("prepare")(prepare.prepare)


@app.command("stats")
def stats(
    config_file: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="Config (YAML or gin), or a folder of prepared data."
        ),
    ],
    overrides: Overrides = None,
    samples: Annotated[
        int,
        typer.Option(
            min=1,
            help="Random samples to examine; take more than the planned batch size.",
        ),
    ] = 100_000,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the statistics as JSON, for embark plan --stats."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw accesses and hotness into this picture, such as a .png."
        ),
    ] = None,
) -> None:
    """Show how often rows are looked up, how long bags are, and how many samples need
    hot rows alone."""
    check_outputs([config_file], out=out, plot=plot)
    from embark_jax.config import ExperimentConfig, PreparedConfig, reading

    if config_file.is_dir():
        if overrides:
            raise typer.BadParameter("a folder of prepared data takes no KEY=VALUE")
        config = ExperimentConfig(data=PreparedConfig(path=config_file))
    else:
        config = reading.load(config_file, overrides or ())
    from embark_jax.run.accesses import sample_accesses

    statistics = sample_accesses(config, samples, tracked("reading"))
    _show(statistics)
    _show_hot_samples(config, statistics)
    if out is not None:
        out.write_text(statistics.to_json())
        say(f"statistics written to {out}")
    if plot is not None:
        from embark_jax.report.figures import accesses

        accesses(statistics).savefig(plot)
        say(f"plot written to {plot}")


def _show(statistics: Statistics) -> None:
    show_table(
        f"Bags of {statistics.samples:,} samples",
        {"feature": "", "ids per bag, mean": ".2f", "largest": "", "unique ids": ","},
        (
            (name, bags.mean_hotness, bags.max_hotness, bags.ids_seen)
            for name, bags in statistics.features.items()
        ),
    )
    formats = {"table": "", "rows": ",", "seen": ",", "accesses": ","}
    formats |= {"share of hottest 1 %": ".1%", "Zipf exponent": ".2f"}
    rows = []
    for name, table in statistics.tables.items():
        histogram = table.histogram
        hottest = histogram.share_of_hottest(math.ceil(table.rows / 100))
        accesses = (histogram.rows_seen, histogram.accesses, hottest)
        rows.append((name, table.rows, *accesses, table.zipf_exponent))
    show_table("Accesses of rows", formats, rows)


def _show_hot_samples(config: ExperimentConfig, statistics: Statistics) -> None:
    """Shows how many samples have hot rows alone, by the memory that these take."""
    from embark_jax._base.memory import bytes_text
    from embark_jax.run.planning import hot_row_bytes
    from embark_jax.statistics import hot_rows

    row_bytes = {
        name: hot_row_bytes(config, config.embedding.table(name, table.rows))
        for name, table in statistics.tables.items()
    }
    table_bytes = sum(
        row_bytes[name] * table.rows for name, table in statistics.tables.items()
    )
    rows = []
    for budget_bytes in hot_rows.budgets(table_bytes):
        hot = hot_rows.within_budget(statistics, row_bytes, budget_bytes)
        if not any(hot.rows.values()):
            continue  # no row is as small
        rows.append(
            (
                bytes_text(budget_bytes),
                sum(hot.rows.values()),
                hot.accesses,
                sum(not count for count in hot.rows.values()),
                statistics.all_hot_share(hot.accesses),
            )
        )
    formats = {"hot_budget": "", "hot rows": ",", "accesses of the rarest": ",.1f"}
    formats |= {"tables with none": ",", "all-hot samples": ".1%"}
    show_table("Samples of hot rows alone, by embedding.hot_budget", formats, rows)
