"""``embark simulate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from embark_jax.cli.arguments import (
    WITHOUT_DATA,
    ConfigOrList,
    Overrides,
    check_outputs,
    console,
    say,
)

if TYPE_CHECKING:
    from embark_jax.simulator import Simulation

EMBEDDINGS_ALONE = (
    "there is no model: these are the embeddings alone, and a step with dense layers "
    "takes longer"
)


def simulate(
    config_file: ConfigOrList,
    overrides: Overrides = None,
    *,
    all_hot: Annotated[
        float | None,
        typer.Option(
            help="Share of the samples that have hot rows alone, as `embark data "
            "stats` counts them: simulates the batches of train.hot_batches, too.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write the step as a Chrome trace, for https://ui.perfetto.dev."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as one JSON object.")
    ] = False,
) -> None:
    """Simulate how a train step runs over time, on any fleet."""
    from embark_jax import simulator
    from embark_jax._base.config import ConfigError
    from embark_jax.config import reading
    from embark_jax.report.summary import PLACEHOLDERS, assumptions
    from embark_jax.run.experiment import plan_model

    config = reading.load(config_file, overrides or ())
    check_outputs([config_file, config.fleet], trace=trace)
    notes = []
    with Console(stderr=True).status("planning"):
        workload, plan, without_data = plan_model(config)
        if not workload.dense.parameters:
            notes.append(EMBEDDINGS_ALONE)
        if without_data:
            notes.append(WITHOUT_DATA)
        if plan.prediction is not None and plan.prediction.placeholders:
            notes.append(PLACEHOLDERS)
        try:
            step = plan.placements, plan.features, workload
            simulations = [simulator.simulate_program(*step)]
            if all_hot is not None:
                simulations += simulator.simulate_hot_batches(*step, all_hot)
                notes.append(_gain(all_hot, simulations))
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if trace is not None:
        trace.write_text(simulator.chrome_trace(simulations[0].timeline))
    if as_json:
        record = {
            "simulations": [simulation.record() for simulation in simulations],
            "kernels": workload.kernels,
            "overlap": workload.overlap,
            "notes": notes,
        }
        print(json.dumps(record))
        return
    console.print(simulator.report(simulations))
    say(assumptions(plan))
    for note in notes:
        say(note)
    if trace is not None:
        say(f"trace written to {trace}")


def _gain(all_hot: float, simulations: Sequence[Simulation]) -> str:
    """Says what sorted batches gain."""
    from embark_jax import simulator
    from embark_jax.data import WINDOW_BATCHES

    own, hot, mixed = simulations
    own_ms = own.timeline.step_ms
    mean_ms = simulator.mean_step_ms(hot, mixed, all_hot, WINDOW_BATCHES)
    return (
        f"with train.hot_batches a step takes {mean_ms:.3f} ms in the mean, "
        f"{own_ms / mean_ms:.2f} times as fast"
    )
