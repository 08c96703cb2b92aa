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

    sections = each_section(ExperimentConfig)
    shown = set()
    for outer, section in sections:
        kinds = [each.model_fields for place, each in sections if place == outer]
        for name, field in section.model_fields.items():
            dotted = f"{outer}.{name}".lstrip(".")
            default = field.get_default(call_default_factory=True)
            wanted = not key or f"{dotted}.".startswith(f"{key}.")
            of_all = name != "kind" and all(name in each for each in kinds)
            if isinstance(default, Config) or dotted == "model" or not wanted:
                continue  # of a section, its keys are shown
            if of_all and dotted in shown:
                continue
            shown.add(dotted)
            value = "required" if field.is_required() else f"default {default}"
            if name == "kind":
                value = str(default)
            elif not of_all:
                value += f" (of kind {kind_of(section)})"
            meaning = field.description or section.__doc__ or ""
            console.print(Text(dotted, "bold") + Text(f"  {value}"), soft_wrap=True)
            console.print(Padding(Text(" ".join(meaning.split())), (0, 0, 0, 4)))
    if not shown:
        known = {outer for outer, _ in sections} - {""}
        raise ConfigError(f"no key {key!r}; {nearest(key, known)}")
