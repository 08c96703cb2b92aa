"""Commands that say which of their paths may be in a bucket."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import typer

from embark_jax._base.storage import file_system_or_bucket, local


class Commands(typer.Typer):
    """Commands that refuse other paths with a scheme, such as ``s3://``, before they do
    anything else."""

    def command(
        self, *args: Any, buckets: Container[str] = (), **options: Any
    ) -> Callable[[Any], Any]:
        """As Typer's; ``buckets`` are the arguments that may be in a bucket."""
        register = super().command(*args, **options)

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def with_checked_paths(**arguments: Any) -> Any:
                def checked(name: str, value: Any) -> Any:
                    if isinstance(value, list):
                        return [checked(name, element) for element in value]
                    if not isinstance(value, Path):
                        return value
                    return (file_system_or_bucket if name in buckets else local)(value)

                return function(**{n: checked(n, v) for n, v in arguments.items()})

            register(with_checked_paths)
            return function

        return registered
