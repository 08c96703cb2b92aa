"""Commands whose paths are all of a file system."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from embark_jax._base.storage import local


class Commands(typer.Typer):
    """Commands that refuse any path with a scheme, such as ``s3://``, before they do
    anything else."""

    def command(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        register = super().command(*args, **options)

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def with_local_paths(**arguments: Any) -> Any:
                for argument in arguments.values():
                    values = argument if isinstance(argument, list) else [argument]
                    for path in values:
                        if isinstance(path, Path):
                            local(path)
                return function(**arguments)

            register(with_local_paths)
            return function

        return registered
