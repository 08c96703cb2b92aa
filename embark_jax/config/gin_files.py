"""Reads a gin file into the nested mapping that the same config gives in YAML.

The names are those of the schema: ``TrainConfig.steps = 100`` sets ``train.steps``.
gin-config (https://github.com/google/gin-config) does the parsing. The package does not
use its runtime: bindings would be global to the process, and an ``import`` would run
code.
"""

from __future__ import annotations

import dataclasses
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gin import config_parser

from embark_jax._base.config import Config, ConfigError, kind_of, nearest, sections
from embark_jax.config import ExperimentConfig


def read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads a gin file and the files that it includes.

    A section that occurs once in the schema (``train``, ``mesh``, ``embedding``, …)
    needs no reference: binding its class is enough. The path of an include is relative
    to the file that has the include.

    Returns:
      The nested mapping, unvalidated, and the problems found so far by dotted key.

    Raises:
      ConfigError: if the file breaks gin's syntax, is empty, or refers to itself.
      OSError: if it or an included file cannot be read.
    """
    bindings = _Bindings()
    try:
        bindings.read(path)
        data = bindings.section(ExperimentConfig, scope="", key="")
    except RecursionError:
        raise ConfigError(
            f"{path}: an include, macro or reference leads back to itself"
        ) from None
    if not (bindings.values or bindings.problems):
        raise ConfigError(f"{path}: is empty, must bind at least ExperimentConfig.data")
    bindings.check_all_used()
    return data, bindings.problems


@dataclasses.dataclass(frozen=True)
class _Reference:
    """A reference ``@scope/Class()``, or ``@scope/Class`` that is not called."""

    name: str
    called: bool

    def __str__(self):
        return f"@{self.name}{'()' if self.called else ''}"


@dataclasses.dataclass(frozen=True)
class _Macro:
    """A macro ``%name``."""

    name: str


class _Bindings(config_parser.ParserDelegate):
    """The bindings of a gin file and its includes; a later one replaces an earlier one.

    Attributes:
      values: bound values by scope ("a/b", or "" for none) and class name.
      macros: values by name.
      used: scopes and class names that some reference reads, even one that was
        replaced: a file may include another and choose a different model.
      problems: text by dotted key.
    """

    def __init__(self):
        self.values: dict[tuple[str, str], dict[str, Any]] = {}
        self.macros: dict[str, Any] = {}
        self.used: set[tuple[str, str]] = set()
        self.problems: dict[str, str] = {}

    def configurable_reference(self, scoped_configurable_name, evaluate):
        scope, _, name = scoped_configurable_name.rpartition("/")
        self.used.update((outer, name) for outer in _enclosing(scope))
        return _Reference(scoped_configurable_name, evaluate)

    def macro(self, macro_name):
        return _Macro(macro_name)

    def read(self, path: Path) -> None:
        for statement in _statements(path, self):
            match statement:
                case config_parser.BindingStatement(scope, name, "", value):
                    self.macros[f"{scope}/{name}" if scope else name] = value
                case config_parser.BindingStatement(scope, name, argument, value, at):
                    if name in _CLASSES:
                        self.values.setdefault((scope, name), {})[argument] = value
                    else:
                        self.problems[f"{name}.{argument}"] = (
                            f"{path}, line {at.line_num}: unknown class {name}; "
                            + nearest(name, _CLASSES)
                        )
                case config_parser.IncludeStatement(filename):
                    self.read(path.parent / filename)
                case config_parser.ImportStatement(location=at):
                    self.problems[statement.format()] = (
                        f"{path}, line {at.line_num}: an import would run code, which "
                        "a config may not; remove it, the config classes are known"
                    )

    def section(self, cls: type[Config], scope: str, key: str) -> dict[str, Any]:
        """Returns the bindings of a class as seen from a scope, with references
        resolved."""
        values = {}
        for outer in _enclosing(scope):
            self.used.add((outer, cls.__name__))
            values |= self.values.get((outer, cls.__name__), {})
        for name, field in cls.model_fields.items():
            if (inner := sections(field.annotation)) == [field.annotation]:
                values.setdefault(name, _Reference(inner[0].__name__, True))
        return {
            name: self.resolve(
                value, scope, f"{key}.{name}".lstrip("."), _choices(cls, name)
            )
            for name, value in values.items()
        }

    def resolve(
        self, value: Any, scope: str, key: str, choices: list[type[Config]]
    ) -> Any:
        """Returns a bound value as plain data; ``choices`` are the sections it may
        name."""
        match value:
            case _Macro(name):
                if name not in self.macros:
                    hint = nearest(name, self.macros)
                    self.problems[key] = f"%{name} given, but no such macro; {hint}"
                    return None
                return self.resolve(self.macros[name], scope, key, choices)
            case _Reference(name, called):
                inner, _, name = name.rpartition("/")
                if not called or name not in {cls.__name__ for cls in choices}:
                    references = [f"@{cls.__name__}()" for cls in choices]
                    rule = " or ".join(references) or "a value, not a reference"
                    self.problems[key] = f"{value} given, must be {rule}"
                    return None
                cls = _CLASSES[name]
                bound = self.section(cls, inner or scope, key)
                return {"kind": kind_of(cls)} | bound if len(choices) > 1 else bound
            case dict():
                return {
                    name: self.resolve(item, scope, f"{key}.{name}", choices)
                    for name, item in value.items()
                }
            case list() | tuple():
                return [
                    self.resolve(item, scope, f"{key}.{index}", choices)
                    for index, item in enumerate(value)
                ]
        return value

    def check_all_used(self) -> None:
        """Adds a problem for each binding that no reference reads."""
        used = ["/".join(filter(None, reference)) for reference in self.used]
        for scope, name in self.values:
            if (scope, name) in self.used:
                continue
            reference = f"{scope}/{name}" if scope else name
            self.problems[reference] = (
                f"is bound, but nothing refers to @{reference}(); "
                f"{nearest(reference, used)}"
            )


def _statements(path: Path, bindings: _Bindings) -> Iterator[Any]:
    """Yields the statements of one file; gin's syntax errors become ``ConfigError``."""
    try:
        yield from config_parser.ConfigParser(path.read_text("utf-8"), bindings)
    except SyntaxError as error:
        message = error.msg.splitlines()[-1].strip()  # the lines above are internals
        raise ConfigError(
            f"{path}, line {error.lineno}: gin syntax error: {message}"
        ) from None
    except tokenize.TokenError as error:  # a bracket or string left open
        message, (line, _) = error.args
        raise ConfigError(f"{path}, line {line}: gin syntax error: {message}") from None


def _enclosing(scope: str) -> list[str]:
    """Turns ``"a/b"`` into ``["", "a", "a/b"]``: outermost first; inner bindings
    win."""
    names = scope.split("/") if scope else []
    return ["/".join(names[:depth]) for depth in range(len(names) + 1)]


def _choices(cls: type[Config], name: str) -> list[type[Config]]:
    field = cls.model_fields.get(name)
    return sections(field.annotation) if field else []


def _classes(cls: type[Config]) -> dict[str, type[Config]]:
    """Returns a section and all sections below it, by class name."""
    classes = {cls.__name__: cls}
    for name in cls.model_fields:
        for inner in _choices(cls, name):
            classes |= _classes(inner)
    return classes


_CLASSES = _classes(ExperimentConfig)
