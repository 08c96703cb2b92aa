"""Reads and writes YAML 1.2: safe, and strict about keys."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.representer import SafeRepresenter

from embark_jax._base.config import ConfigError


def parse(text: str) -> Any:
    """Parses the text; a key twice in a mapping is an error, and 1e-3 a number.

    Raises:
      ConfigError: if it is not safe YAML; the message has the line.
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        location = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        if isinstance(error, DuplicateKeyError):  # its text has the values, too
            problem = error.problem.partition(" with value ")[0]
        line = f"line {location.line + 1}: " if location else ""
        raise ConfigError(f"{line}YAML error: {problem}") from None
    except RecursionError:
        raise ConfigError("YAML error: is nested too deeply") from None
    except (YAMLError, ValueError) as error:  # also a date such as 2024-13-01
        raise ConfigError(f"YAML error: {error}") from None


def dump(data: Any) -> str:
    """Returns YAML that ``parse`` reads back equal, keys in the order given."""
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Representer
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # pyright: ignore
    writer.allow_unicode = False  # else U+0085 would be read as a blank
    text = io.StringIO()
    writer.dump(data, text)
    return text.getvalue()


class _Representer(SafeRepresenter):
    """Puts lists on one line, such as the widths of a layer stack."""

    def represent_list(self, data: list, flow_style: bool | None = None) -> Any:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Representer.add_representer(list, _Representer.represent_list)
