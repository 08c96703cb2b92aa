"""Reads and writes YAML the way this project does: safe, and strict."""

from __future__ import annotations

import re
from typing import Any

import yaml

from embark_jax._base.config import ConfigError


def parse(text: str) -> Any:
    """Parses the text; a key twice in a mapping is an error, and 1e-3 a number.

    Raises:
      ConfigError: if it is not safe YAML; the message has the line.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        location = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        line = f"line {location.line + 1}: " if location else ""
        raise ConfigError(f"{line}YAML error: {problem}") from None
    except RecursionError:
        raise ConfigError("YAML error: is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # also a date such as 2024-13-01
        raise ConfigError(f"YAML error: {error}") from None


def dump(data: Any) -> str:
    """Returns YAML that ``parse`` reads back equal, keys in the order given."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which the same key twice in a mapping is an error."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} is there twice",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Safe YAML with lists on one line, such as the widths of a layer stack."""

    def represent_list(self, data):
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(list, _Dumper.represent_list)
# YAML 1.1 reads 1e-3 as text for want of a dot; YAML 1.2 reads a number, and so do we.
# The dumper must know, to put quotes around a name like "1e3".
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )
