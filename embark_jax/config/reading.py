"""Reads experiment configs in YAML and gin, and writes them in YAML.

Both syntaxes become one nested mapping. Overrides change it, and pydantic validates it
once, so that all problems of a file are reported together and alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import pydantic

from embark_jax._base import yaml_text
from embark_jax._base.config import Config, ConfigError, kind_of, nearest, sections
from embark_jax._base.storage import local
from embark_jax.config import ExperimentConfig, gin_files
from embark_jax.config.table_lists import experiment_of
from embark_jax.planner.request.table_list import read_table_list


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    point: Mapping[str, Any] | None = None,
) -> ExperimentConfig:
    """Reads an experiment config.

    Args:
      path: path of a ``.yaml``, ``.yml`` or ``.gin`` file, or of a table list in YAML,
        which stands for its model on synthetic data.
      overrides: changes to the file, each ``dotted.key=value`` with the value in YAML,
        such as ``"train.batch_size=4096"`` or ``"model.bottom=[64, 16]"``. The last one
        of a key wins. Changing the ``kind`` of a section drops the keys of the file
        that the new kind does not have. ``scale=0.001`` shrinks the experiment after
        all other overrides, as ``ExperimentConfig.shrunk`` does.
      point: values by dotted key that the config's ``sweep`` lists, or that its
        ``search`` gave. They take precedence over all else, and the config
        then has neither section.

    Raises:
      ConfigError: with every problem of the file and the overrides: dotted key, value
        and rule, one a line. Rules between several keys are checked once each key is
        right by itself.
    """
    path = local(path)
    readers = {".yaml": _read_yaml, ".yml": _read_yaml, ".gin": gin_files.read}
    if path.suffix not in readers:
        raise ConfigError(f"{path}: must end in {', '.join(readers)}")
    try:
        data, problems = readers[path.suffix](path)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error})") from None

    # Kinds first, so that a key set by another override is not dropped with the file's.
    changes = {override: f"override {override!r}" for override in overrides}
    if point is not None:
        changes |= {"sweep=null": "sweep", "search=null": "search"}
        for key, value in point.items():
            changes[f"{key}={json.dumps(value)}"] = f"tried with {value!r}"
    applied, scale = [], None
    for change in sorted(changes, key=lambda text: ".kind=" not in text):
        if change.startswith("scale="):
            scale = change.removeprefix("scale=")
            continue
        try:
            data = _override(data, change)
        except ConfigError as error:
            problems[changes[change]] = str(error)
        else:
            applied.append(change)
    try:
        config = ExperimentConfig.model_validate(data)
        if scale is not None and not problems:
            config = _shrunk(config, scale)
    except ConfigError as error:
        problems["scale"] = str(error)
    except pydantic.ValidationError as error:
        for key, text in map(_explain, error.errors(include_url=False)):
            blamed = [f" ({changes[c]})" for c in applied if _touches(c, key)]
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


def _shrunk(config: ExperimentConfig, text: str) -> ExperimentConfig:
    scale = yaml_text.parse(text)
    if not isinstance(scale, int | float) or not 0 < scale <= 1:
        raise ConfigError(f"{text} given, must be a number above 0, and at most 1")
    return config.shrunk(scale)


def dump_yaml(config: ExperimentConfig) -> str:
    """Returns the whole config, defaults included, as YAML that loads back equal.

    A key that is not set (``None``) is left out.
    """
    data = config.model_dump(mode="json", exclude_none=True)
    return yaml_text.dump(data)


def save(config: ExperimentConfig, path: str | Path) -> None:
    """Writes ``dump_yaml(config)``."""
    local(path).write_text(dump_yaml(config), "utf-8")


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        text = path.read_text("utf-8")
        data = yaml_text.parse(text)
        if isinstance(data, dict) and "tables" in data:
            data = {"name": path.stem, **experiment_of(read_table_list(text))}
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None
    if data is None:
        raise ConfigError(f"{path}: is empty, must be a mapping with at least data")
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: {_short(data)} given, must be a mapping of sections (data, …)"
        )
    return data, {}


_BY_KEY = ("sweep", "search")
"""Sections whose keys are dotted keys."""


def _override(data: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Returns a copy of the mapping with one ``dotted.key=value`` applied."""
    key, equals, text = override.partition("=")
    section, dot, inner = key.partition(".")
    keys = [section, inner] if dot and section in _BY_KEY else key.split(".")
    if not (equals and all(keys)):
        raise ConfigError("must read dotted.key=value, such as train.steps=100")
    _, holder = _locate(keys[:-1])
    return _set(data, keys, yaml_text.parse(text), sections(holder))


def _set(
    section: Any, keys: Sequence[str], value: Any, choices: Sequence[type[Config]]
) -> dict[str, Any]:
    """Returns a copy with one value set; a copy, as YAML aliases may share the
    original.

    ``choices`` are the sections that the innermost mapping may be.
    """
    key, *rest = keys
    if section is None:
        section = {}
    if not isinstance(section, dict):
        raise ConfigError(f"cannot set {key!r} in {_short(section)}, not a mapping")
    if rest:
        value = _set(section.get(key), rest, value, choices)
        return section | {key: value}
    fields = {k: v for cls in choices for k, v in cls.keys_by_kind().items()}
    if key == "kind" and len(fields) > 1:
        before = str(section.get(key))
        old, new = fields.get(before, {}), fields.get(str(value), {})
        if ":" in before:  # a user's own kind, whose keys no other kind has
            old = section
        section = {k: v for k, v in section.items() if k not in old or k in new}
    return section | {key: value}


def _locate(location: Iterable[str | int]) -> tuple[str, Any]:
    """Follows a pydantic error location, or the keys of an override, into the schema.

    Returns:
      The dotted key, without pydantic's additions to a location (the ``kind`` chosen,
      "[key]"), and the annotation there, or of the section around it if it has none.
    """
    keys, annotation = [], ExperimentConfig
    for component in location:
        choices = sections(annotation)
        chosen = [
            cls for cls in choices if len(choices) > 1 and kind_of(cls) == component
        ]
        if chosen:
            (annotation,) = chosen
            continue
        if component == "[key]":
            continue
        keys.append(str(component))
        if get_origin(annotation) is Mapping:
            annotation = get_args(annotation)[1]
        elif len(choices) == 1 and component in choices[0].model_fields:
            annotation = choices[0].model_fields[component].annotation
    return ".".join(keys), annotation


def _explain(error: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the dotted key of a pydantic error, and the problem in words of ours."""
    key, annotation = _locate(error["loc"])
    value = _short(error["input"])
    choices = sections(annotation)
    kinds = " or ".join(repr(kind_of(cls)) for cls in choices if len(choices) > 1)
    if error["type"] == "invalid_key" or error["loc"][-1:] == ("[key]",):
        return key, f"{value} given as a key, must be text: put it in quotes"
    match error["type"]:
        case "extra_forbidden":
            hint = nearest(str(error["loc"][-1]), choices[0].model_fields)
            return key, f"unknown key; {hint}"
        case "union_tag_not_found" if not isinstance(error["input"], Mapping):
            return key, f"{value} given, must be a mapping"
        case "missing" if not kinds:
            return key, f"missing, must be set{_meaning(error['loc'])}"
        case "missing" | "union_tag_not_found":
            return f"{key}.kind" if kinds else key, f"missing, must be {kinds or 'set'}"
        case "union_tag_invalid":
            value = _short(error["input"]["kind"])
            return f"{key}.kind", f"{value} given, must be {kinds}"
        case "value_error":
            return key, str(error["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dict_type":
            return key, f"{value} given, must be a mapping"
        case "tuple_type":
            return key, f"{value} given, must be a list"
        case "too_short":
            return key, f"{value} given, must not be empty"
    return key, f"{value} given, {error['msg'].replace('Input should', 'must')}"


def _meaning(location: Sequence[str | int]) -> str:
    """Returns what the schema says of the key at a pydantic error location, to end a
    message with, or "" if it says nothing."""
    _, annotation = _locate(location[:-1])
    for section in sections(annotation):
        if field := section.model_fields.get(str(location[-1])):
            return f": {field.description}" if field.description else ""
    return ""


def _touches(override: str, key: str) -> bool:
    """Whether an override sets the key, something in it, or something around it."""
    ours, theirs = override.partition("=")[0].split("."), key.split(".")
    shorter = min(len(ours), len(theirs))
    return ours[:shorter] == theirs[:shorter]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
