"""``embark bench``: measures how fast this machine is."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from embark_jax.cli.arguments import (
    ConfigFile,
    Overrides,
    Rounds,
    console,
    say,
)
from embark_jax.cli.jax_setup import set_up_jax

app = typer.Typer(
    help="Measure this machine. Figures are medians after a warm-up.",
    no_args_is_help=True,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def step(
    config_file: ConfigFile,
    overrides: Overrides = None,
    rounds: Rounds = 7,
    as_json: AsJson = False,
) -> None:
    """Time the train step of an experiment, and its lookups and updates alone."""
    from embark_jax.config import reading

    config = reading.load(config_file, overrides or ())
    set_up_jax(say)
    from embark_jax.bench.step import draw_batches, measure_step
    from embark_jax.launch.processes import make_host_devices
    from embark_jax.run import experiment

    make_host_devices(config.mesh.devices)
    with Console(stderr=True).status("planning") as status:
        setup = experiment.build(config)
        status.update("drawing batches")
        batches = draw_batches(setup)
        result = measure_step(setup, batches, rounds, status.update)
    _show(result, as_json)


@app.command()
def calibrate(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the figures to a fleet file, for the config key fleet."
        ),
    ] = None,
    devices: Annotated[
        int,
        typer.Option(min=1, help="Number of CPU devices to make if there is no GPU."),
    ] = 8,
    size: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Scale the measured sizes by this; small sizes measure caches.",
        ),
    ] = 1.0,
) -> None:
    """Measure the cost model's figures: memory, links, matrix products, sorts."""
    set_up_jax(say)
    import jax

    with contextlib.suppress(RuntimeError):  # JAX was used already
        jax.config.update("jax_num_cpu_devices", devices)
    from embark_jax.bench.calibrate import CPU_SIZES, GPU_SIZES, measure
    from embark_jax.bench.fleet_yaml import fleet_yaml

    on_cpu = jax.devices()[0].platform == "cpu"
    sizes = (CPU_SIZES if on_cpu else GPU_SIZES).scaled(size)
    with Console(stderr=True).status("starting") as status:
        text = fleet_yaml(measure(sizes, status.update))
    console.print(text, end="", highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        out.write_text(text, "utf-8")
        say(f"fleet written to {out}")


def _show(result: dict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else value
        console.print(f"{name:24} {shown}", highlight=False, markup=False)
