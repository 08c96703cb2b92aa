"""Everything up to the first step of a run, without training: data, plan, program."""

from __future__ import annotations

import functools
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import jax
from rich.console import Console
from rich.table import Table

from embark_jax._base.devices import has_gpu
from embark_jax._base.memory import bytes_text
from embark_jax.config import ExperimentConfig, tasks_of
from embark_jax.data import Description
from embark_jax.launch.processes import make_host_devices
from embark_jax.planner.cost.work import PHASES
from embark_jax.plans import fleet as fleets
from embark_jax.plans.plan import Plan
from embark_jax.report.display import say
from embark_jax.report.summary import overview
from embark_jax.run import experiment
from embark_jax.run.dataset import merged_model, source_of, with_negatives
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import RunFolder
from embark_jax.run.optimizers import build_loss
from embark_jax.run.planning import hot_row_bytes, machines, read_plan
from embark_jax.train.absent import (
    absent_mesh,
    allow_absent_gpus,
    lower_model,
)
from embark_jax.train.collectives import collectives
from embark_jax.train.gradients import StepOptions
from embark_jax.train.step_model import step_model


def dry_run(
    config: ExperimentConfig, workdir: str, console: Console, plan_file: Path | None
) -> None:
    """Finds and checks the data by one batch, plans, compiles the step from shapes
    alone, and says how long that took, what the step takes, and what a run writes.

    A fleet of GPUs that this machine lacks has its step compiled for them, in plain
    XLA; if the data are not here, either, only the config says what they are like.

    Args:
      config, workdir, console, plan_file: as for ``training.train``.

    Raises:
      ConfigError, DataError, OSError: as ``training.train``; also if JAX has no
        compiler for absent GPUs.
    """
    tell, start = functools.partial(say, console), time.perf_counter()
    is_of_gpus = config.fleet is not None and not fleets.load(config.fleet).shared
    if is_of_gpus and not has_gpu():
        allow_absent_gpus()
    else:
        make_host_devices(config.mesh.devices)
    fleet = machines(config)
    is_absent = is_of_gpus and not (has_gpu() and jax.device_count() >= fleet.devices)
    RunFolder(workdir).open(resume=False)
    if (absent := source_of(config).absent()) is not None:
        setup = _described(config, absent, plan_file)
        tell("the data are not here: tables and features are those of the config")
    else:
        setup = experiment.build(config, plan_file)
        batch = setup.checker()(setup.training_data.train_batch(0, 64))
        tell(
            f"data: {setup.dataset.train_samples:,} training samples; the first "
            f"{len(batch)} follow all rules"
        )
    console.print(overview(setup.plan), markup=False, highlight=False)
    tell(f"found and planned in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    mesh = absent_mesh(fleet, fleet.device.memory_bytes) if is_absent else None
    compiled, state = _compiled(setup, mesh or setup.plan.make_mesh(), is_absent)
    where = f"{fleet.devices} absent GPUs" if is_absent else f"{fleet.devices} devices"
    tell(f"step compiled for {where} in {time.perf_counter() - start:.1f} s")
    memory = fleet.device.memory_bytes
    tell(_memory_text(compiled.memory_analysis(), setup.plan, memory))
    if setup.plan.devices > 1:
        console.print(_collectives(compiled.as_text() or ""))
    tell(_writing_text(setup, state.params, workdir))


def _described(
    config: ExperimentConfig, absent: Description, plan_file: Path | None
) -> Experiment:
    """Returns the experiment of data that are not here, which would say how many steps
    an epoch has; the program is the same for any number."""
    train = config.train.model_copy(update={"epochs": None})
    config = config.model_copy(update={"train": train})
    description = with_negatives(config, absent)
    tables, features = merged_model(config, description)
    if plan_file is None:
        plan = experiment.plan_model(config).plan
    else:
        plan = read_plan(plan_file, config, tables, features)
    no_data = cast(Any, None)
    return Experiment(config, description, tables, features, plan, no_data)


def _compiled(
    setup: Experiment, mesh: Any, is_absent: bool
) -> tuple[jax.stages.Compiled, Any]:
    """Returns the compiled step of a run, and the shapes of its state."""
    train, kernels = setup.config.train, setup.config.embedding.kernels
    implementation = None
    if is_absent:  # of a GPU that is not here nobody knows whether its kernels run
        implementation = "xla" if kernels == "auto" else kernels
    embeddings = setup.collection(mesh, implementation)
    loss = build_loss(setup.config)
    lowered, state = lower_model(
        embeddings,
        step_model(setup.model(embeddings)),
        setup.optimizers(),
        setup.description.dense_features,
        options=StepOptions(train.micro_batches, train.dense, loss, train.dense_wire),
        tasks=len(tasks_of(setup.config.model)),
    )
    return lowered.compile(), state


def _memory_text(found: Any, plan: Plan, device_bytes: float) -> str:
    """Says what a device's memory holds: by XLA, which knows the program, and by the
    plan."""
    temporary = found.temp_size_in_bytes
    whole = found.argument_size_in_bytes + temporary
    whole += found.output_size_in_bytes - found.alias_size_in_bytes
    planned = max(plan.prediction.device_bytes) if plan.prediction else 0
    return (
        f"memory of a device: XLA takes {bytes_text(whole)}, {bytes_text(temporary)} "
        f"of it for temporaries; the plan says {bytes_text(planned)}, and there are "
        f"{bytes_text(device_bytes)}"
    )


def _collectives(hlo: str) -> Table:
    """Returns a table of what the collectives of the compiled step move."""
    moved: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in collectives(hlo):
        phases = [scope for scope in each.scopes if scope in PHASES]
        if "(dense)" in str(each.scopes):  # combined with those of other phases
            phases = ["sums over all devices"]
        moved[phases[-1] if phases else "others", each.kind].append(each.buffer_bytes)
    table = Table("phase", "collective", "number", "bytes of a device", title="A step")
    for (phase, kind), sizes in moved.items():
        table.add_row(phase, kind, str(len(sizes)), bytes_text(sum(sizes)))
    return table


def _writing_text(setup: Experiment, params: Any, workdir: str) -> str:
    """Says what a run writes, and where."""
    config, options = setup.config, setup.config.train
    fixed = (table for table in setup.tables if not table.is_dynamic)
    rows = sum(hot_row_bytes(config, table) * table.rows for table in fixed)
    dense = sum(x.dtype.itemsize * math.prod(x.shape) for x in jax.tree.leaves(params))
    every = options.checkpoint_every
    when = f"every {every:,} steps" if every else "at the end"
    size, kept = bytes_text(rows + dense), options.keep_checkpoints
    return (
        f"a run would write into {workdir}: metrics, a report, and checkpoints of "
        f"about {size} {when}, of which it keeps {kept}"
    )
