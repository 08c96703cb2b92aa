"""``embark simulate``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from embark_jax import planner, simulator
from embark_jax._base.config import ConfigError
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
from embark_jax.config.models import DLRMConfig, DLRMDCNv2Config
from embark_jax.plans.tables import embedding_width
from embark_jax.report.summary import assumptions
from embark_jax.simulator import Job, Simulation

if TYPE_CHECKING:
    from embark_jax.run.experiment import PlannedModel

EMBEDDINGS_ALONE = (
    "the list has no dense section: these are the embeddings alone, and a step with "
    "dense layers takes longer"
)


@with_list_options
def simulate(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="Config: a YAML or gin file."),
    ] = None,
    overrides: Overrides = None,
    *,
    options: ListOptions,
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
    options.check(config_file)
    with Console(stderr=True).status("planning"):
        plan, notes = None, []
        try:
            if config_file is not None:
                config = reading.load(config_file, overrides or ())
                check_outputs({"trace": trace}, config)
                from embark_jax.run import experiment

                model = experiment.plan_model(config)
                job, plan = _job(model), model.plan
                if model.without_data:
                    notes.append(WITHOUT_DATA)
            else:
                listed, workload = options.read()
                job = simulator.job_of_list(
                    listed, workload.fleet, optimizer=options.optimizer
                )
                job = dataclasses.replace(job, workload=workload)
                if listed.dense is None:
                    notes.append(EMBEDDINGS_ALONE)
            if plan is None:
                plan = planner.plan_for(job.workload, job.tables, job.features)
            simulations = [simulator.simulate_program(job, plan.placements)]
            if all_hot is not None:
                simulations += simulator.simulate_hot_batches(
                    job, plan.placements, all_hot
                )
                notes.append(_gain(all_hot, simulations))
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if trace is not None:
        trace.write_text(simulator.chrome_trace(simulations[0].timeline))
    if as_json:
        record = {
            "simulations": [simulation.record() for simulation in simulations],
            "kernels": job.workload.kernels,
            "overlap": job.workload.overlap,
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
    own_ms, hot_ms, mixed_ms = (
        simulation.timeline.step_ms for simulation in simulations
    )
    mean_ms = all_hot * hot_ms + (1 - all_hot) * mixed_ms
    return (
        f"with train.hot_batches a step takes {mean_ms:.3f} ms in the mean, "
        f"{own_ms / mean_ms:.2f} times as fast"
    )


def _job(model: PlannedModel) -> Job:
    """Returns the job that a config describes."""
    from embark_jax.run import planning

    config, dense_features = model.config, model.description.dense_features
    width = embedding_width(model.tables, model.features)
    layers = config.model
    match layers:
        case DLRMDCNv2Config():
            network = simulator.dlrm_dcnv2(
                width,
                dense_features,
                layers.bottom,
                layers.top,
                layers.cross_layers,
                layers.cross_rank,
                parallel=layers.structure == "parallel",
            )
        case DLRMConfig():
            network = simulator.dlrm(
                len(model.features), width, dense_features, layers.bottom, layers.top
            )
        case _:
            raise ConfigError(
                f"model.kind is {layers.kind!r}, whose layers cannot be simulated; "
                "choose dlrm_dcnv2 or dlrm"
            )
    if config.dense_optimizer.named is not None:
        raise ConfigError(
            f"dense_optimizer.kind is {config.dense_optimizer.kind!r}, which cannot be "
            "simulated; choose sgd, adagrad or adam"
        )
    return Job(
        model.tables,
        model.features,
        planning.workload(config, model.description, model.tables, model.features),
        network,
        layers.compute_dtype,
        config.dense_optimizer.kind,
    )
