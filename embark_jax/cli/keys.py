"""``embark keys``: the keys of a config, as the schema's docstrings explain them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from embark_jax.cli.arguments import console

PREPARE = "prepare"
"""What the keys of ``embark data prepare`` are called."""
MINIMAL = {"data": {"kind": "synthetic"}}
"""A config of nothing but what has no default."""


def keys(
    key: Annotated[
        str,
        typer.Argument(
            metavar="[KEY]",
            help="Show this key or section only, such as embedding.wire; prepare shows "
            "those of `embark data prepare`.",
        ),
    ] = "",
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print a JSON Schema, for editors, instead."),
    ] = False,
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
    from embark_jax.data.columns import Columns

    if schema:
        print(json.dumps(ExperimentConfig.model_json_schema(), indent=1))
        return
    sections = each_section(ExperimentConfig)
    kinds = _default_kinds(ExperimentConfig.model_validate(MINIMAL).model_dump())
    if key == PREPARE or key.startswith(f"{PREPARE}."):
        sections, key = each_section(Columns), key[len(PREPARE) + 1 :]
    shown = set()
    for outer, section in sections:
        of_place = [each.model_fields for place, each in sections if place == outer]
        for name, field in section.model_fields.items():
            dotted = f"{outer}.{name}".lstrip(".")
            default = field.get_default(call_default_factory=True)
            wanted = not key or f"{dotted}.".startswith(f"{key}.")
            of_all = name != "kind" and all(name in each for each in of_place)
            if isinstance(default, Config) or dotted == "model" or not wanted:
                continue  # of a section, its keys are shown
            if of_all and dotted in shown:
                continue
            shown.add(dotted)
            value = "required" if field.is_required() else f"default {default}"
            if name == "kind":
                value = f"{default}{', the default' * (default == kinds.get(outer))}"
            elif not of_all:
                value += f" (of kind {kind_of(section)})"
            meaning = field.description or section.__doc__ or ""
            console.print(Text(dotted, "bold") + Text(f"  {value}"), soft_wrap=True)
            console.print(Padding(Text(" ".join(meaning.split())), (0, 0, 0, 4)))
    if not shown:
        known = {outer for outer, _ in sections} - {""}
        raise ConfigError(f"no key {key!r}; {nearest(key, known)}")


def _default_kinds(section: Mapping[str, Any], outer: str = "") -> dict[str, str]:
    """Returns the kind of each section of a config, by its dotted key; of data, which
    has no default, none."""
    kinds = {outer: section["kind"]} if "kind" in section else {}
    for name, inner in section.items():
        if isinstance(inner, Mapping) and name != "data":
            kinds |= _default_kinds(inner, f"{outer}.{name}".lstrip("."))
    return kinds
