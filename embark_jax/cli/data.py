"""``embark data``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import say

app = typer.Typer(help="Fetch datasets.", no_args_is_help=True)


@app.command("movielens-100k")
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
    say(f"MovieLens-100k is in {folder}")
