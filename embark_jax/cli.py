"""The ``embark`` command."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path
from typing import Annotated

import absl.logging
import typer
from rich.console import Console
from rich.table import Table

from embark_jax import config_io, planner
from embark_jax import fleet as fleets
from embark_jax.config import ConfigError
from embark_jax.planner.workload import STATE_VALUES

app = typer.Typer(
    help="Sharded embedding tables and recommendation models, in JAX.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Fetch datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = Console()

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML or gin file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Such as train.batch_size=4096."),
]


@app.command()
def train(
    config_file: ConfigFile,
    overrides: Overrides = None,
    workdir: Annotated[
        Path | None,
        typer.Option(help="Where the run leaves everything; default runs/NAME-TIME."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --workdir.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(help="Train with this plan, as `embark plan --out` writes it."),
    ] = None,
) -> None:
    """Train a model and evaluate it on the test set."""
    if resume and workdir is None:
        raise typer.BadParameter("--resume needs the --workdir of the run to continue")
    config = config_io.load(config_file, overrides or ())
    from embark_jax import run

    if workdir is None:
        workdir = Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    run.train(config, workdir, resume, console, plan)
    _say(f"everything is in {workdir}")


@app.command()
def plan(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="YAML or gin file.")
    ] = None,
    overrides: Overrides = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            help="Instead of CONFIG: a JSON list of name, rows, dim, hotness."
        ),
    ] = None,
    fleet: Annotated[
        str, typer.Option(help="For --tables: " + ", ".join(fleets.BY_NAME))
    ] = "dgx-h100",
    nodes: Annotated[int, typer.Option(help="For --tables: machines.")] = 1,
    batch: Annotated[
        int, typer.Option(help="For --tables: samples a step, over all devices.")
    ] = 65_536,
    zipf: Annotated[
        float, typer.Option(help="For --tables: exponent of the ids' skew.")
    ] = 0.0,
    optimizer: Annotated[
        str, typer.Option(help="For --tables: " + ", ".join(STATE_VALUES))
    ] = "rowwise_adagrad",
    cost_model: Annotated[
        str, typer.Option(help="For --tables: program, or EMBark's formula, embark.")
    ] = "program",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print cost and shards as one JSON object.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan as JSON.")] = None,
) -> None:
    """Show where every table will live."""
    if (config_file is None) == (tables is None):
        raise typer.BadParameter("give either a CONFIG or --tables")
    start = time.perf_counter()
    if config_file is not None:
        config = config_io.load(config_file, overrides or ())
        from embark_jax import experiment

        planned = experiment.build(config).plan
    else:
        assert tables is not None
        try:
            if fleet not in fleets.BY_NAME:
                known = ", ".join(fleets.BY_NAME)
                raise ValueError(f"--fleet is {fleet!r}, must be one of {known}")
            planned = planner.plan(
                *planner.read_tables(tables.read_text()),
                fleets.BY_NAME[fleet](nodes),
                batch,
                zipf_exponent=zipf,
                optimizer=optimizer,
                cost_model=cost_model,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
    seconds = time.perf_counter() - start
    if out is not None:
        out.write_text(planned.to_json())
    if as_json:
        record = {"planning_seconds": seconds, **planner.plan_record(planned)}
        print(json.dumps(record))
        return
    console.print(planned)
    if out is not None:
        _say(f"written to {out}")


@app.command()
def evaluate(
    config_file: ConfigFile,
    checkpoint: Annotated[
        Path, typer.Option(help="A run's checkpoints folder, or one of those in it.")
    ],
    overrides: Overrides = None,
) -> None:
    """Evaluate a checkpoint on the test set; any mesh and plan will do."""
    config = config_io.load(config_file, overrides or ())
    from embark_jax import run

    run.evaluate_checkpoint(config, checkpoint, console)


@data_app.command("movielens-100k")
def movielens_100k(
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files; default the cache.")
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="The recbole 1.2.1 wheel, where there is no network."),
    ] = None,
) -> None:
    """Fetch MovieLens-100k and check its hash."""
    from embark_jax.data import fetch_movielens_100k

    folder = fetch_movielens_100k(out, wheel)
    _say(f"MovieLens-100k is in {folder}")


@app.command()
def doctor() -> None:
    """Show versions, devices, and which kernels are usable here."""
    import embark_kernels
    import jax

    versions = Table("package", "version", title="Versions")
    versions.add_row("python", platform.python_version())
    for package in ("embark_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint"):
        versions.add_row(package, importlib.metadata.version(package))
    console.print(versions)

    devices = Table("platform", "kind", "count", title="Devices")
    kinds = [(device.platform, device.device_kind) for device in jax.devices()]
    for kind in sorted(set(kinds)):
        devices.add_row(*kind, str(kinds.count(kind)))
    console.print(devices)

    kernels = Table("kernels", "usable", "why not", title="Kernels")
    for name, reason in embark_kernels.availability().items():
        kernels.add_row(name, "no" if reason else "yes", reason)
    console.print(kernels)


def main() -> None:
    """Runs the command; what a user can mend ends in one message, not a traceback."""
    absl.logging.set_verbosity(absl.logging.ERROR)  # Orbax tells each of its steps
    try:
        app()
    except Exception as error:
        if not isinstance(error, _mendable()):
            raise
        Console(stderr=True).print("[red]error:[/red] ", end="")
        print(error, file=sys.stderr)
        sys.exit(1)


def _mendable() -> tuple[type[Exception], ...]:
    """The errors that are about what a user gave, not about this program."""
    from embark_jax.data import DataError
    from embark_jax.train.checkpoint import CheckpointError
    from embark_jax.train.metrics import NonFiniteLogitError
    from embark_jax.train.trainer import NonFiniteLossError

    not_finite = NonFiniteLossError, NonFiniteLogitError
    return ConfigError, DataError, CheckpointError, OSError, *not_finite


def _say(text: str) -> None:
    """Prints text as it is: one line, and brackets are no markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)
