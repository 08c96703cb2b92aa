"""Commands that say which of their paths may be in a bucket, and which they write."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import typer

from embark_jax._base.config import ConfigError
from embark_jax._base.storage import file_system_or_bucket, in_bucket, local

DRAWN = (".png", ".svg", ".pdf", ".html")
"""Suffixes of pictures and pages, which are no input of any command."""
SCORES = (".csv", ".parquet")
DESCRIBED_BY = ("config.yaml", "model.json", "data.json")
"""Files of runs, exports and prepared data, which may have scores beside them."""


class Commands(typer.Typer):
    """Commands that refuse wrong paths before they do anything else: those with a
    scheme, such as ``s3://``, where they cannot be used, and files to write that are
    files to read."""

    def command(
        self,
        *args: Any,
        buckets: Container[str] = (),
        writes: Container[str] = (),
        **options: Any,
    ) -> Callable[[Any], Any]:
        """As Typer's; ``buckets`` are the arguments that may be in a bucket, ``writes``
        those that name a file to write."""
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

                arguments = {n: checked(n, v) for n, v in arguments.items()}
                outputs = {n: v for n, v in arguments.items() if n in writes}
                inputs = {n: v for n, v in arguments.items() if n not in writes}
                check_outputs(outputs, inputs)
                return function(**arguments)

            register(with_checked_paths)
            return function

        return registered


def check_outputs(outputs: Mapping[str, Path | None], inputs: Any) -> None:
    """Checks that what a command writes is nothing that it reads: itself, by a link, or
    as one of the files of a folder. Pictures and pages may be made anew there, and
    scores beside a model.

    Args:
      outputs: the files to write, by the name of their option.
      inputs: what is read: paths among the leaves of mappings, lists and models.

    Raises:
      ConfigError: if one is written and read, or is a folder, or two are one file.
    """
    written: dict[Path, str] = {}
    for name, out in outputs.items():
        if out is None:
            continue
        problem = None
        if out.is_dir():
            problem = "is a folder, must be a file"
        elif other := written.get(out.resolve()):
            problem = f"is the file of --{other}, too"
        elif out.exists():
            problem = next(
                filter(None, (_read_as(out, p) for p in _paths(inputs))), None
            )
        if problem:
            raise ConfigError(f"--{name} {out}: {problem}; name another file")
        written[out.resolve()] = name


def _read_as(out: Path, path: Path) -> str | None:
    """Returns how an input makes a file, which exists, one that is read, if it does."""
    if not path.exists():
        return None
    if out.samefile(path):
        return f"is read, as {path}"
    if not (path.is_dir() and out.resolve().is_relative_to(path.resolve())):
        return None
    described = any((path / name).exists() for name in DESCRIBED_BY)
    if out.suffix in (DRAWN + SCORES if described else DRAWN):
        return None
    return f"is a file of {path}, which is read"


def _paths(value: Any) -> Iterator[Path]:
    """Yields the paths among the leaves of a value, and the texts that name a file."""
    if isinstance(value, pydantic.BaseModel):
        value = dict(value)
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for element in value:
            yield from _paths(element)
    elif isinstance(value, Path) and not in_bucket(value):
        yield value
    elif isinstance(value, str):
        with contextlib.suppress(OSError, ValueError):  # of what is no name of a file
            if Path(value).is_file():
                yield Path(value)
