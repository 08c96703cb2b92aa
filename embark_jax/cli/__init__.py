"""The ``embark`` command."""

from __future__ import annotations

import sys

import absl.logging
import typer
from rich.console import Console

from embark_jax.cli import bench, data, doctor, export, plan, plot, simulate, train
from embark_jax.config import ConfigError

app = typer.Typer(
    help="Sharded embedding tables and recommendation models, in JAX.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(train.train)
app.command()(plan.plan)
app.command()(simulate.simulate)
app.command()(train.evaluate)
app.command()(plot.plot)
app.command()(export.export)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.command()(doctor.doctor)


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
    from embark_jax.export import ExportError
    from embark_jax.train.checkpoint import CheckpointError
    from embark_jax.train.logs import LogError
    from embark_jax.train.metrics import NonFiniteLogitError
    from embark_jax.train.trainer import NonFiniteLossError

    not_finite = NonFiniteLossError, NonFiniteLogitError
    damaged = DataError, CheckpointError, LogError
    return ConfigError, ExportError, OSError, *damaged, *not_finite
