"""Experiment configs in and out: YAML and gin are read, YAML is written.

Either syntax becomes one nested mapping, overrides change it, and pydantic validates it
once, so that all problems of a file are reported together and alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import pydantic
import yaml

from embark_jax import config_gin
from embark_jax.config import (
    Config,
    ConfigError,
    ExperimentConfig,
    kind_of,
    nearest,
    sections,
)


def load(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads an experiment config.

    Args:
      path: of a ``.yaml``, ``.yml`` or ``.gin`` file.
      overrides: changes of the file, each ``dotted.key=value`` with the value in YAML,
        such as ``"train.batch_size=4096"`` or ``"model.bottom=[64, 16]"``. The last one
        of a key wins. Changing the ``kind`` of a section drops the keys that the file
        sets and the new kind does not have.

    Raises:
      ConfigError: with every problem of the file and the overrides: dotted key, value
        and rule, one a line. What involves several keys is checked once each key is
        right by itself.
    """
    path = Path(path)
    readers = {".yaml": _read_yaml, ".yml": _read_yaml, ".gin": config_gin.read}
    if path.suffix not in readers:
        raise ConfigError(f"{path}: must end in {', '.join(readers)}")
    try:
        data, problems = readers[path.suffix](path)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error})") from None

    # Kinds first: a key that another override sets must not be dropped with the file's.
    applied = []
    for override in sorted(overrides, key=lambda text: ".kind=" not in text):
        try:
            data = _override(data, override)
        except ConfigError as error:
            problems[f"override {override!r}"] = str(error)
        else:
            applied.append(override)
    try:
        config = ExperimentConfig.model_validate(data)
    except pydantic.ValidationError as error:
        for key, text in map(_explain, error.errors(include_url=False)):
            blamed = [f" (override {o!r})" for o in applied if _touches(o, key)]
            problems.setdefault(key, text + "".join(blamed))
    else:
        if not problems:
            return config
    source = f"{path} with {', '.join(overrides)}" if overrides else str(path)
    lines = [
        f"  {key}: {text}" if key else f"  {text}" for key, text in problems.items()
    ]
    plural = "s" if len(problems) > 1 else ""
    raise ConfigError("\n".join([f"{source}: {len(problems)} problem{plural}", *lines]))


def dump_yaml(config: ExperimentConfig) -> str:
    """The whole config, defaults included, as YAML that loads back equal.

    A key that is not set (``None``) is left out.
    """
    data = config.model_dump(mode="json", exclude_none=True)
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


def save(config: ExperimentConfig, path: str | Path) -> None:
    """Writes ``dump_yaml(config)``."""
    Path(path).write_text(dump_yaml(config), "utf-8")


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


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        data = parse_yaml(path.read_text("utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None
    if data is None:
        raise ConfigError(f"{path}: is empty, must be a mapping with at least data")
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: {_short(data)} given, must be a mapping of sections (data, …)"
        )
    return data, {}


def parse_yaml(text: str) -> Any:
    """What the text says; a key twice in a mapping is an error, and 1e-3 a number.

    Raises:
      ConfigError: with the line, if it is not safe YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        line = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{line}YAML error: {problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # also a date such as 2024-13-01
        raise ConfigError(f"YAML error: {error}") from None


def _override(data: Mapping[str, Any], override: str) -> dict[str, Any]:
    """A copy of the mapping with one ``dotted.key=value`` applied."""
    key, equals, text = override.partition("=")
    keys = key.split(".")
    if not (equals and all(keys)):
        raise ConfigError("must read dotted.key=value, such as train.steps=100")
    _, holder = _locate(keys[:-1])
    return _set(data, keys, parse_yaml(text), sections(holder))


def _set(
    section: Any, keys: Sequence[str], value: Any, choices: Sequence[type[Config]]
) -> dict[str, Any]:
    """A copy with one value set; a copy, as YAML aliases may share the original.

    ``choices`` are the sections that the innermost mapping may be.
    """
    key, *rest = keys
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise ConfigError(f"cannot set {key!r} in {_short(section)}, not a mapping")
    if rest:
        value = _set(section.get(key), rest, value, choices)
    elif key == "kind" and len(choices) > 1:
        fields = {kind_of(cls): cls.model_fields for cls in choices}
        old, new = (fields.get(str(kind), {}) for kind in (section.get(key), value))
        section = {k: v for k, v in section.items() if k not in old or k in new}
    return section | {key: value}


def _locate(location: Iterable[str | int]) -> tuple[str, Any]:
    """Follows a pydantic error location, or the keys of an override, into the schema.

    Returns:
      The dotted key, without what pydantic adds to a location (the ``kind`` chosen,
      "[key]"), and the annotation there, or of the section around it if it has none.
    """
    keys, annotation = [], ExperimentConfig
    for part in location:
        choices = sections(annotation)
        chosen = [cls for cls in choices if len(choices) > 1 and kind_of(cls) == part]
        if chosen:
            (annotation,) = chosen
            continue
        if part == "[key]":
            continue
        keys.append(str(part))
        if get_origin(annotation) is Mapping:
            annotation = get_args(annotation)[1]
        elif len(choices) == 1 and part in choices[0].model_fields:
            annotation = choices[0].model_fields[part].annotation
    return ".".join(keys), annotation


def _explain(error: Mapping[str, Any]) -> tuple[str, str]:
    """The dotted key of a pydantic error, and what is wrong in our words."""
    key, annotation = _locate(error["loc"])
    given = _short(error["input"])
    choices = sections(annotation)
    kinds = " or ".join(repr(kind_of(cls)) for cls in choices if len(choices) > 1)
    if error["type"] == "invalid_key" or error["loc"][-1:] == ("[key]",):
        return key, f"{given} given as a key, must be text: put it in quotes"
    match error["type"]:
        case "extra_forbidden":
            hint = nearest(str(error["loc"][-1]), choices[0].model_fields)
            return key, f"unknown key; {hint}"
        case "missing" | "union_tag_not_found":
            return f"{key}.kind" if kinds else key, f"missing, must be {kinds or 'set'}"
        case "union_tag_invalid":
            given = _short(error["input"]["kind"])
            return f"{key}.kind", f"{given} given, must be {kinds}"
        case "value_error":
            return key, str(error["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dict_type":
            return key, f"{given} given, must be a mapping"
        case "tuple_type":
            return key, f"{given} given, must be a list"
    return key, f"{given} given, {error['msg'].replace('Input should', 'must')}"


def _touches(override: str, key: str) -> bool:
    """Whether an override sets the key, something in it, or something around it."""
    ours, theirs = override.partition("=")[0].split("."), key.split(".")
    shorter = min(len(ours), len(theirs))
    return ours[:shorter] == theirs[:shorter]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
