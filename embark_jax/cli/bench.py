"""``embark bench``: what this machine does in what time."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from embark_jax import config_io
from embark_jax.cli.arguments import ConfigFile, Overrides, console
from embark_jax.cli.host_memory import keep_freed_memory

app = typer.Typer(
    help="Measure this machine: medians after a warm-up.", no_args_is_help=True
)
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def step(
    config_file: ConfigFile,
    overrides: Overrides = None,
    rounds: Annotated[int, typer.Option(min=1, help="Whose median is taken.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Time the train step of an experiment, and its lookups and updates alone."""
    config = config_io.load(config_file, overrides or ())
    keep_freed_memory()
    from embark_jax import experiment
    from embark_jax.bench.step import draw_batches, measure_step

    experiment.make_host_devices(config)
    with Console(stderr=True).status("planning") as status:
        setup = experiment.build(config)
        status.update("drawing batches")
        batches = draw_batches(setup)
        result = measure_step(setup, batches, rounds, status.update)
    _show(result, as_json)


def _show(result: dict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else value
        console.print(f"{name:24} {shown}", highlight=False, markup=False)
