"""``embark data``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, track
from rich.table import Column, Table

from embark_jax.cli import prepare
from embark_jax.cli.arguments import Overrides, console, say
from embark_jax.cli.paths import Commands
from embark_jax.config import ExperimentConfig, PreparedConfig, reading
from embark_jax.statistics.accesses import Statistics

app = Commands(help="Fetch, prepare and examine data sets.", no_args_is_help=True)
app.command("prepare")(prepare.prepare)
app.command("synth")(prepare.synth)


@app.command("movielens-100k")
def movielens_100k(
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files; the cache by default.")
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(
            help="Take the files from this wheel of recbole 1.2.1, without a network."
        ),
    ] = None,
) -> None:
    """Fetch MovieLens-100k and check its hash."""
    from embark_jax.data import fetch_movielens_100k

    folder = fetch_movielens_100k(out, wheel)
    say(f"MovieLens-100k is in {folder}")


@app.command("verify")
def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder that `embark data prepare` or `embark data synth` wrote.",
        ),
    ],
) -> None:
    """Read all files of prepared data and compare their hashes with the manifest."""
    from embark_jax.data.verify import verify

    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("verify")
        found = verify(
            folder,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    say(f"{found.files:,} files, {found.bytes:,} bytes: all match the manifest")


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
            help="Samples to examine; take more than the planned batch size.",
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
    """Show how often rows are looked up, and how long bags are."""
    if config_file.is_dir():
        if overrides:
            raise typer.BadParameter("a folder of prepared data takes no KEY=VALUE")
        config = ExperimentConfig(data=PreparedConfig(path=config_file))
    else:
        config = reading.load(config_file, overrides or ())
    from embark_jax.run.dataset import sample_accesses

    found = sample_accesses(
        config,
        samples,
        lambda steps: track(
            steps, "reading", console=console, transient=True, disable=len(steps) < 2
        ),
    )
    _show(found)
    if out is not None:
        out.write_text(found.to_json())
        say(f"statistics written to {out}")
    if plot is not None:
        from embark_jax.report.figures import accesses

        accesses(found).savefig(plot)
        say(f"plot written to {plot}")


def _show(found: Statistics) -> None:
    title = f"Bags of {found.samples:,} samples"
    features = Table(Column("feature", overflow="fold"), title=title)
    for heading in ("ids per bag, mean", "largest", "unique ids"):
        features.add_column(heading, justify="right")
    for name, bags in found.features.items():
        features.add_row(
            name,
            f"{bags.mean_hotness:.2f}",
            str(bags.max_hotness),
            f"{bags.ids_seen:,}",
        )
    console.print(features)
    tables = Table(Column("table", overflow="fold"), title="Accesses of rows")
    for heading in (
        "rows",
        "seen",
        "accesses",
        "share of hottest 1 %",
        "Zipf exponent",
    ):
        tables.add_column(heading, justify="right")
    for name, table in found.tables.items():
        histogram = table.histogram
        hottest = histogram.share_of_hottest(math.ceil(table.rows / 100))
        tables.add_row(
            name,
            f"{table.rows:,}",
            f"{histogram.rows_seen:,}",
            f"{histogram.accesses:,}",
            f"{hottest:.1%}",
            f"{table.zipf_exponent:.2f}",
        )
    console.print(tables)
    sureness = Table(
        Column("table", overflow="fold"),
        title="Hottest rows of one half of the samples, in the other half",
    )
    for heading in ("rows", "hottest there too", "share of accesses"):
        sureness.add_column(heading, justify="right")
    for name, table in found.tables.items():
        if (halves := table.halves) is not None:
            sureness.add_row(
                name,
                f"{halves.listed:,}",
                f"{halves.agreed:,}",
                f"{halves.share:.2%} ± {halves.share_error:.2%}",
            )
    console.print(sureness)
