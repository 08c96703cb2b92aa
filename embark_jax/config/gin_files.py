"""Reads a gin file: flat keys, macros and includes.

``train.steps = 100`` sets the key that ``train: {steps: 100}`` sets in YAML, and a name
that is no key is a macro: ``rate = 0.1``, then ``%rate``. gin-config
(https://github.com/google/gin-config) does the parsing. The package does not use its
runtime: bindings would be global to the process, and an ``import`` would run code.
"""

from __future__ import annotations

import tokenize
from pathlib import Path
from typing import Any, NoReturn

from gin import config_parser

from embark_jax._base.config import ConfigError, nearest, read_text
from embark_jax._base.validation import with_key
from embark_jax.config.schema import ExperimentConfig

KEYS = ExperimentConfig.model_fields.keys()


def read(path: Path) -> Any:
    """Reads a gin file and the files that it includes; a later binding replaces an
    earlier one. The path of an include is relative to the file that has it.

    Returns:
      The nested mapping that the same config gives in YAML, unvalidated.

    Raises:
      ConfigError: if the file breaks gin's syntax, is empty, refers to itself, has an
        import, a reference or a scope, or a macro that nothing names; or it or an
        included file cannot be read.
    """
    bindings = _Bindings()
    data: Any = {}
    try:
        bindings.read(path)
        for key, value in bindings.values:
            data = with_key(data, key, bindings.resolved(value), ExperimentConfig)
    except RecursionError:
        raise ConfigError(f"{path}: an include or macro leads back to itself") from None
    for name in bindings.macros.keys() - bindings.named:
        raise ConfigError(
            f"{path}: {name} is no key, and no macro that a value names; "
            + nearest(name, {*KEYS, *bindings.named})
        )
    if not data:
        raise ConfigError(f"{path}: is empty, must set at least data.kind")
    return data


class _Macro(str):
    """The name of a macro, ``%name``."""


class _Bindings(config_parser.ParserDelegate):
    """The bindings of a gin file and its includes.

    Attributes:
      values: pairs of dotted key and value, in order.
      macros: values by name.
      named: macros that a value names.
    """

    def __init__(self):
        self.values: list[tuple[str, Any]] = []
        self.macros: dict[str, Any] = {}
        self.named: set[str] = set()

    def configurable_reference(self, scoped_configurable_name, evaluate) -> NoReturn:
        raise SyntaxError(
            f"@{scoped_configurable_name} given, must be a value: a section has no "
            "name, set its keys"
        )

    def macro(self, macro_name):
        self.named.add(macro_name)
        return _Macro(macro_name)

    def read(self, path: Path) -> None:
        """Reads one file, and those that it includes."""
        try:
            for statement in config_parser.ConfigParser(read_text(path), self):
                self._add(path, statement)
        except SyntaxError as error:
            message = error.msg.splitlines()[-1].strip()  # the rest are internals
            where = f"{path}, line {error.lineno}" if error.lineno else path
            raise ConfigError(f"{where}: gin syntax error: {message}") from None
        except tokenize.TokenError as error:  # a bracket or string left open
            message, (line, _) = error.args
            raise ConfigError(
                f"{path}, line {line}: gin syntax error: {message}"
            ) from None

    def _add(self, path: Path, statement: Any) -> None:
        match statement:
            case config_parser.BindingStatement("", name, "", value) if (
                name not in KEYS
            ):
                self.macros[name] = value
            case config_parser.BindingStatement(scope, section, name, value):
                keys = filter(None, (scope, section, name))
                self.values.append((".".join(keys), value))
            case config_parser.IncludeStatement(filename):
                self.read(path.parent / filename)
            case config_parser.ImportStatement(location=at):
                raise ConfigError(
                    f"{path}, line {at.line_num}: an import would run code, which a "
                    "config may not"
                )

    def resolved(self, value: Any) -> Any:
        """Returns a value with what its macros stand for."""
        match value:
            case _Macro():
                if value not in self.macros:
                    raise ConfigError(
                        f"%{value} given, but no such macro; "
                        + nearest(value, self.macros)
                    )
                return self.resolved(self.macros[value])
            case dict():
                return {key: self.resolved(item) for key, item in value.items()}
            case list() | tuple():
                return [self.resolved(item) for item in value]
        return value
