"""Generates reference pages from the code: every command and every config key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperGroup

from embark_jax._base.config import Config, each_section, kind_of, sections
from embark_jax.cli import app
from embark_jax.config import ExperimentConfig
from embark_jax.config.table_lists import TableList
from embark_jax.data.columns import Columns

ROOT = Path(__file__).parents[1]


def experiments() -> str:
    """A page with the question of each experiment's README."""
    lines = [
        "# Experiments",
        "",
        "Each page has its question, its command and its result.",
    ]
    for path in sorted(ROOT.glob("experiments/*/README.md")):
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"\n- [{title}](experiments/{path.parent.name}.md)")
    return "\n".join([*lines, ""])


def commands() -> str:
    """A page with each command, its arguments and its options."""
    lines = [
        "# Commands",
        "",
        "This page is generated from the code; `embark COMMAND --help` shows the same. "
        "`KEY=VALUE` overrides a [config key](config.md).",
    ]
    for name, command in each_command(typer.main.get_command(app), "embark"):
        lines += ["", f"## {name} {{#{name.replace(' ', '-')}}}", ""]
        lines += [command.help or "", ""]
        if isinstance(command, TyperGroup):
            continue
        context = typer.Context(command, info_name=name)
        lines += ["```text", command.get_usage(context), "```", ""]
        rows = [_parameter(each, context) for each in command.params]
        if rows := [row for row in rows if row]:
            lines += ["| | default | |", "|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def each_command(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields a command and all commands in it, each with its full name."""
    yield name, command
    if isinstance(command, TyperGroup):
        for inner, each in command.commands.items():
            yield from each_command(each, f"{name} {inner}")


def _parameter(parameter: Any, context: typer.Context) -> str | None:
    """A row of a command's table."""
    record = parameter.get_help_record(context)
    if record is None or parameter.name == "help":
        return None
    names = ", ".join(parameter.opts) if record[0].startswith("-") else record[0]
    text = re.sub(r"\s*\[(default|required|env var|x[<>]).*$", "", record[1] or "")
    default = "required" if parameter.required else parameter.default
    shown = "" if default in (None, (), False) else f"`{default}`"
    return f"| `{names.strip()}` | {shown.strip()} | {_cell(text)} |"


def config_keys() -> str:
    """A page with each key of a config: type, default and meaning."""
    lines = [
        "# Config keys",
        "",
        "This page is generated from the schema. Set a key in YAML or gin, or override "
        "it on the command line as `section.key=value`; an unknown key is an error "
        "that names the nearest known key. `NAME` stands for a name of your choice.",
    ]
    lines += _sections(each_section(ExperimentConfig))
    lines += [
        "",
        "## Columns of your own files",
        "",
        "`embark data prepare csv` and `parquet` take these keys, from the YAML file "
        "of `--columns` or as `KEY=VALUE`.",
    ]
    lines += _sections(each_section(Columns))
    lines += ["", "## Table lists", "", "`embark plan LIST` takes these keys."]
    lines += _sections(each_section(TableList))
    return "\n".join([*lines, ""])


def _sections(sections_: Iterable[tuple[str, type[Config]]]) -> list[str]:
    """The lines of a table for each section."""
    lines = []
    for prefix, section in sections_:
        kind, fields = "", section.model_fields
        # One section may have several kinds, or each of several sections one.
        chosen_inside = (
            "kind" in fields and len(get_args(fields["kind"].annotation)) > 1
        )
        if prefix and "kind" in fields and not chosen_inside:
            kind = f" (`kind: {kind_of(section)}`)"
        heading = f"`{prefix}`{kind}" if prefix else "Top level"
        lines += ["", f"## {heading}", "", _prose(section.__doc__), ""]
        lines += ["| key | type | default | |", "|---|---|---|---|"]
        for name, field in section.model_fields.items():
            if name == "kind" and not chosen_inside:
                continue
            default = field.get_default(call_default_factory=True)
            if field.is_required():
                shown = "required"
                if field.examples:
                    shown += f", such as `{_plain(field.examples[0])}`"
            elif default is None:
                shown = "not set"
            elif isinstance(default, Config):
                shown = f"`kind: {default.kind}`" if hasattr(default, "kind") else ""
            else:
                shown = f"`{_plain(default)}`"
            text = _cell(_prose(field.description or ""))
            lines.append(f"| `{name}` | {_cell(_type(field))} | {shown} | {text} |")
    return lines


def _type(field: Any) -> str:
    """A field's type in words."""
    limits = map(_limit, field.metadata)
    return ", ".join([_words(field.annotation), *filter(None, limits)])


def _limit(bound: Any) -> str:
    """Such as "at least 1" of an annotated-types bound."""
    for attribute, words in (
        ("ge", "at least"),
        ("gt", "above"),
        ("le", "at most"),
        ("lt", "below"),
    ):
        if (value := getattr(bound, attribute, None)) is not None:
            return f"{words} {value}"
    return ""


def _words(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if sections(annotation) and "Mapping" not in str(annotation):
        return "section"
    if origin is Annotated:
        limits = [_limit(each) for each in inner[1:]]
        return ", ".join([_words(inner[0]), *filter(None, limits)])
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if origin in (Union, UnionType):
        return " or ".join(_words(each) for each in inner if each is not NoneType)
    if origin is tuple:
        return f"list of {_words(inner[0])}"
    if origin is not None:
        return "mapping by name"
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    return names.get(
        annotation, getattr(annotation, "__name__", str(annotation)).lower()
    )


def _plain(default: Any) -> str:
    """A default as YAML writes it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"[{', '.join(map(_plain, default))}]"
    return str(default)


def _prose(text: str | None) -> str:
    """A docstring on one line, with Markdown's code marks."""
    return " ".join((text or "").replace("``", "`").split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
