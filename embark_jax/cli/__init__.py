"""The ``embark`` command."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Annotated

import typer

from embark_jax._base.devices import has_gpu
from embark_jax.cli import (
    bench,
    compare,
    data,
    doctor,
    errors,
    export,
    keys,
    launch,
    plan,
    predict,
    recommend,
    search,
    simulate,
    train,
)
from embark_jax.launch.one_host import exit_status

app = typer.Typer(
    help="Sharded embedding tables and recommendation models, in JAX.\n\n"
    "For a first run on any computer: embark train quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def show_version(is_set: bool) -> None:
    """Prints the version and ends the command, if the option is set."""
    if is_set:
        print("embark_jax", importlib.metadata.version("embark_jax"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=show_version,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Takes the options that come before the name of a command."""
    if not has_gpu():  # a plugin that compiles for absent GPUs needs no cuDNN
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"


for command in (
    train.train,
    plan.plan,
    simulate.simulate,
    search.search,
    train.evaluate,
    compare.compare,
    export.export,
    predict.predict,
    recommend.recommend,
    keys.keys,
    doctor.doctor,
):
    app.command()(command)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="-n PROCESSES CONFIG [KEY=VALUE]... --workdir FOLDER [OPTIONS]",
)(launch.launch)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Runs the command; an error that a user can fix gives a message, no traceback."""
    try:
        app()
    except (KeyboardInterrupt, SystemExit) as end:  # Typer turns the former into 130
        if isinstance(end, SystemExit) and end.code != errors.CTRL_C_STATUS:
            raise
        errors.end_at_ctrl_c()
    except Exception as error:
        if not isinstance(error, errors.FIXABLE):
            raise
        errors.show(error)
        sys.exit(exit_status(error))
