"""``embark keys``: the keys of a config, as the schema's docstrings explain them."""

from __future__ import annotations

from typing import Annotated

import typer

from embark_jax.cli.arguments import console


def keys(
    key: Annotated[
        str,
        typer.Argument(
            metavar="[KEY]",
            help="Show this key or section only, such as embedding.wire.",
        ),
    ] = "",
) -> None:
    """Show the keys of a config with their defaults and meanings."""
    from rich.padding import Padding
    from rich.text import Text

    from embark_jax._base.config import (
        Config,
        ConfigError,
        each_section,
        kind_of,
        nearest,
    )
    from embark_jax.config import ExperimentConfig

    sections = list(each_section(ExperimentConfig))
    found = False
    for outer, section in sections:
        for name, field in section.model_fields.items():
            dotted = f"{outer}.{name}".lstrip(".")
            default = field.get_default(call_default_factory=True)
            wanted = not key or f"{dotted}.".startswith(f"{key}.")
            if isinstance(default, Config) or dotted == "model" or not wanted:
                continue  # of a section, its keys are shown
            found = True
            meaning = field.description or section.__doc__ or ""
            shown = "required" if field.is_required() else f"default {default}"
            if name != "kind" and "kind" in section.model_fields:
                shown += f" (of kind {kind_of(section)})"
            console.print(Text(dotted, "bold") + Text(f"  {shown}"), soft_wrap=True)
            console.print(Padding(Text(" ".join(meaning.split())), (0, 0, 0, 4)))
    if not found:
        known = {outer for outer, _ in sections} - {""}
        raise ConfigError(f"no key {key!r}; {nearest(key, known)}")
