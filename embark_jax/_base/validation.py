"""Makes sections of a config from mappings and overrides.

Overrides change a mapping, and pydantic validates it once, so that all problems are
reported together and alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from embark_jax._base import yaml_text
from embark_jax._base.config import Config, ConfigError, kind_of, nearest, sections

Section = TypeVar("Section", bound=Config)


def validated(
    schema: type[Section],
    data: Any,
    changes: Mapping[str, str],
    source: str,
    problems: Mapping[str, str] = MappingProxyType({}),
) -> Section:
    """Makes a section of a config from a mapping and changes to it.

    Args:
      schema: class of the section.
      data: the mapping, as a parser gives it.
      changes: changes to it, each ``dotted.key=value``, and what to call them.
      source: says in messages where the mapping is from.
      problems: those that were met in reading it, by dotted key.

    Raises:
      ConfigError: with every problem, one a line.
    """
    problems, applied = dict(problems), []
    # Kinds first, so that a key set by another override is not dropped with the file's.
    for change in sorted(changes, key=lambda text: ".kind=" not in text):
        try:
            data = _override(data, change, schema)
        except ConfigError as error:
            problems[changes[change]] = str(error)
        else:
            applied.append(change)
    try:
        section = schema.model_validate(data)
    except pydantic.ValidationError as error:
        texts: dict[str, str] = {}
        for details in error.errors(include_url=False):
            key, text = _explain(details, schema)
            if details["type"] == "too_short" and any(
                other.startswith(f"{key}.") for other in texts
            ):
                continue  # pydantic counts only elements that are right
            if key not in texts:
                texts[key] = text
            elif _is_choice(_locate(details["loc"], schema)[1]):
                texts[key] += f"; or {text}"  # there is an error for each type
        for key, text in texts.items():
            blamed = [f" ({changes[c]})" for c in applied if _touches(c, key)]
            problems.setdefault(key, text + "".join(blamed))
    else:
        if not problems:
            return section
    raise listed(source, problems)


def listed(source: str, problems: Mapping[str, str]) -> ConfigError:
    """Returns an error that names every problem, by dotted key."""
    lines = [
        f"  {key}: {text}" if key else f"  {text}" for key, text in problems.items()
    ]
    plural = "s" if len(problems) > 1 else ""
    return ConfigError(
        "\n".join([f"{source}: {len(problems)} problem{plural}", *lines])
    )


_BY_KEY = "search"
"""The section whose keys are dotted keys."""


def _override(data: Any, override: str, schema: type[Config]) -> dict[str, Any]:
    """Returns a copy of the mapping with one ``dotted.key=value`` applied."""
    key, equals, text = override.partition("=")
    section, dot, inner = key.partition(".")
    keys = [section, inner] if dot and section == _BY_KEY else key.split(".")
    if not (equals and all(keys)):
        raise ConfigError("must read dotted.key=value, such as train.steps=100")
    _, holder = _locate(keys[:-1], schema)
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
        raise ConfigError(f"cannot set {key!r} in {short(section)}, not a mapping")
    if rest:
        value = _set(section.get(key), rest, value, choices)
        return section | {key: value}
    fields = {k: v for cls in choices for k, v in cls.keys_by_kind().items()}
    if key == "kind" and len(fields) > 1:
        # Of functions and classes by name, which ``MODULE:NAME`` stands for.
        named = next((keys for kind, keys in fields.items() if ":" in kind), {})
        before = str(section.get(key))
        old, new = fields.get(before, named), fields.get(str(value), named)
        if ":" in before:  # a user's own kind, whose keys no other kind has
            old = section
        section = {k: v for k, v in section.items() if k not in old or k in new}
    return section | {key: value}


def _locate(location: Iterable[str | int], annotation: Any) -> tuple[str, Any]:
    """Follows a pydantic error location, or the keys of an override, into a schema.

    Returns:
      The dotted key, without pydantic's additions to a location (the ``kind`` or type
      chosen, "[key]"), and the annotation there, or of the section around it if it has
      none.
    """
    keys = []
    for component in location:
        choices = _schemas(annotation)
        chosen = [
            cls for cls in choices if len(choices) > 1 and kind_of(cls) == component
        ]
        if chosen:
            (annotation,) = chosen
            continue
        if component == "[key]" or (not choices and _is_choice(annotation)):
            continue
        keys.append(str(component))
        if get_origin(annotation) is Mapping:
            annotation = get_args(annotation)[1]
        elif len(choices) == 1 and component in _fields(choices[0]):
            annotation = _fields(choices[0])[component].annotation
    return ".".join(keys), annotation


def _schemas(annotation: Any) -> list[Any]:
    """Returns the sections, or pydantic's dataclasses, that a field may hold."""
    if hasattr(annotation, "__pydantic_fields__"):
        return [annotation]
    return [schema for inner in get_args(annotation) for schema in _schemas(inner)]


def _is_choice(annotation: Any) -> bool:
    """Says whether a field may hold values of several types, but for ``None``."""
    types = [kind for kind in get_args(annotation) if kind is not NoneType]
    return get_origin(annotation) in (Union, UnionType) and len(types) > 1


def _fields(schema: Any) -> Mapping[Any, FieldInfo]:
    return schema.__pydantic_fields__


def _explain(error: Mapping[str, Any], schema: type[Config]) -> tuple[str, str]:
    """Returns the dotted key of a pydantic error, and the problem in words of ours."""
    key, annotation = _locate(error["loc"], schema)
    value = short(error["input"])
    choices = _schemas(annotation)
    kinds = " or ".join(repr(kind_of(cls)) for cls in choices if len(choices) > 1)
    keys = (
        f"kind: {kinds}" if kinds else ", ".join(_fields(choices[0]) if choices else ())
    )
    if error["type"] == "invalid_key" or error["loc"][-1:] == ("[key]",):
        return key, f"{value} given as a key, must be text: put it in quotes"
    match error["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            hint = nearest(str(error["loc"][-1]), _fields(choices[0]))
            return key, f"unknown key; {hint}"
        case "union_tag_not_found" if not isinstance(error["input"], Mapping):
            return key, f"{value} given, must be a mapping with {keys}"
        case "missing" if not kinds:
            return key, f"missing, must be set{_meaning(error['loc'], schema)}"
        case "missing" | "union_tag_not_found":
            return f"{key}.kind" if kinds else key, f"missing, must be {kinds or 'set'}"
        case "union_tag_invalid":
            value = short(error["input"]["kind"])
            return f"{key}.kind", f"{value} given, must be {kinds}"
        case "value_error":
            return key, str(error["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dataclass_type":
            return key, f"{value} given, must be a mapping with {keys}"
        case "dict_type":
            each = f", each with {keys}" if keys else ""
            return key, f"{value} given, must be a mapping by name{each}"
        case "tuple_type":
            return key, f"{value} given, must be a list, such as [{value}]"
        case "too_short" if not error["input"]:
            return key, f"{value} given, must not be empty"
    _, should, rule = error["msg"].partition(" should ")  # "Input should be …"
    return key, f"{value} given, {f'must {rule}' if should else error['msg']}"


def _meaning(location: Sequence[str | int], schema: type[Config]) -> str:
    """Returns what the schema says of the key at a pydantic error location, to end a
    message with, or "" if it says nothing."""
    _, annotation = _locate(location[:-1], schema)
    for section in sections(annotation):
        if field := section.model_fields.get(str(location[-1])):
            return f": {field.description}" if field.description else ""
    return ""


def _touches(override: str, key: str) -> bool:
    """Says whether an override sets the key, something in it, or something around
    it."""
    ours, theirs = override.partition("=")[0].split("."), key.split(".")
    shorter = min(len(ours), len(theirs))
    return ours[:shorter] == theirs[:shorter]


def short(value: Any) -> str:
    """Returns a value for a message, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
