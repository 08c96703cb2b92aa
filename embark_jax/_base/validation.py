"""Makes sections of a config from mappings and overrides.

Overrides change a mapping, and pydantic validates it once, so that all problems are
reported together, in its own words.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from embark_jax._base import yaml_text
from embark_jax._base.config import (
    Config,
    ConfigError,
    each_section,
    is_named,
    nearest,
    sections,
)

Section = TypeVar("Section", bound=Config)


def validated(
    schema: type[Section],
    data: Any,
    changes: Iterable[str],
    source: str,
) -> Section:
    """Makes a section of a config from a mapping and changes to it.

    Args:
      schema: class of the section.
      data: the mapping, as a parser gives it.
      changes: changes to it, each ``dotted.key=value``.
      source: says in messages where the mapping is from.

    Raises:
      ConfigError: with every problem, one a line.
    """
    problems: dict[str, str] = {}
    # Kinds first, so that a key set by another override is not dropped with the file's.
    for change in sorted(changes, key=lambda text: ".kind=" not in text):
        try:
            key, equals, text = change.partition("=")
            if not equals:
                raise ConfigError("must read dotted.key=value, such as train.steps=100")
            data = with_key(data, key, yaml_text.parse(text), schema)
        except ConfigError as error:
            problems[change] = str(error)
    try:
        section = schema.model_validate(data)
    except pydantic.ValidationError as error:
        problems |= problems_of(error, data, schema)
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


def problems_of(
    error: pydantic.ValidationError, data: Any, schema: Any = None
) -> dict[str, str]:
    """Returns pydantic's texts by dotted key; a key of several types has one of each.

    Args:
      error: what pydantic raised.
      data: what it validated.
      schema: section that it validated for, which says the keys that are known.
    """
    problems: dict[str, str] = {}
    may_be_null = set()
    for details in error.errors(include_url=False):
        keys, section = _followed(details, data)
        match details["type"]:
            case "extra_forbidden" | "unexpected_keyword_argument":
                *path, key = map(str, keys)
                known = _fields_at(schema, path, section.get("kind"))
                text = f"unknown key; {_hint(key, path, known, schema)}"
            case "too_short" if details["input"] and "not 0" in details["msg"]:
                continue  # it counts only elements that are right, of which none is
            case "missing":
                text = "missing, must be set"
                field = _fields_at(schema, keys[:-1], section.get("kind")).get(keys[-1])
                for example in (field and field.examples) or ():
                    text += f", such as {json.dumps(example)}"
            case "value_error":
                text = details["msg"].removeprefix("Value error, ")
            case _:
                _, should, rule = details["msg"].partition(" should ")
                rule = f"must {rule}" if should else details["msg"]
                text = f"{short(details['input'])} given, {rule}"
                fields = _fields_at(schema, keys[:-1], None)
                if keys and keys[-1] in fields and fields[keys[-1]].default is None:
                    may_be_null.add(".".join(map(str, keys)))
        key = ".".join(map(str, keys))
        if problems.setdefault(key, text) != text:
            problems[key] += f"; or {text}"
    for key in may_be_null:
        problems[key] += ", or null"
    return problems


def _hint(key: str, path: Sequence[str], known: Collection[str], schema: Any) -> str:
    """Returns a hint for an unknown key: the same one of another section, unless its
    own has it, too, where it is of another kind; or else those of its own."""
    walked = each_section(schema) if isinstance(schema, type) else ()
    places = [place for place, each in walked if key in each.__pydantic_fields__]
    if not places or ".".join(path) in places:
        return nearest(key, known)
    return f"did you mean {f'{places[0]}.{key}'.lstrip('.')}?"


def with_key(data: Any, key: str, value: Any, schema: type[Config]) -> Any:
    """Returns a copy of a mapping with the value of a dotted key set. A new ``kind`` of
    a section drops the keys that only the old kind has.

    Raises:
      ConfigError: if the key lies in something that is no mapping.
    """
    # Keys of this section are dotted themselves.
    keys = key.split(".", 1 if key.startswith("search.") else -1)
    if not all(keys):
        raise ConfigError(f"{key!r} is no dotted key, must be such as train.steps")
    return _set(data, keys, value, schema, keys[:-1])


def _set(
    section: Any, keys: Sequence[str], value: Any, schema: Any, path: Sequence[str]
) -> Any:
    """As ``with_key``; a copy, as YAML aliases may share the original."""
    key, *rest = keys
    section = {} if section is None else section
    if not isinstance(section, dict):
        raise ConfigError(f"cannot set {key!r} in {short(section)}, not a mapping")
    if rest:
        value = _set(section.get(key), rest, value, schema, path)
    elif key == "kind":
        before = section.get("kind")
        old, new = (_fields_at(schema, path, kind) for kind in (before, value))
        if is_named(before):  # its keys are no other kind's
            old = section
        section = {k: v for k, v in section.items() if k not in old or k in new}
    return section | {key: value}


def _fields_at(schema: Any, path: Sequence[Any], kind: Any) -> Mapping[str, FieldInfo]:
    """Returns the fields of the section at a path, if it is of this kind."""
    for key in path:
        field = _fields(schema).get(key)
        schema = _element(schema) or (field and field.annotation)
    return _fields(schema, kind)


def _fields(annotation: Any, kind: Any = None) -> Mapping[str, FieldInfo]:
    """Returns the fields of the sections that a field may hold and that are of this
    kind; None stands for all kinds."""
    fields = {}
    for section in sections(annotation):
        own = section.__pydantic_fields__
        its_kind = own["kind"].default if "kind" in own else kind
        is_named_too = is_named(kind) and is_named(its_kind)
        if kind is None or kind == its_kind or is_named_too:
            fields |= own
    return fields


def _element(annotation: Any) -> Any:
    """Returns the annotation of what a mapping or list holds; None of all else."""
    for choice in (annotation, *get_args(annotation)):
        origin = get_origin(choice)
        if isinstance(origin, type) and issubclass(origin, Collection):
            return get_args(choice)[issubclass(origin, Mapping)]
    return None


def _followed(details: Any, data: Any) -> tuple[list[Any], Any]:
    """Follows a pydantic location in the data.

    Returns:
      Its keys, without what pydantic adds, such as the kind or type that it tried; and
      the mapping or list around the last one.
    """
    keys, around = [], data
    for i, key in enumerate(details["loc"]):
        is_key = isinstance(data, Mapping) and key in data
        if is_key or (isinstance(data, Sequence) and isinstance(key, int)):
            around, data = data, data[key]
        elif details["type"] != "missing" or i + 1 < len(details["loc"]):
            continue
        else:
            around = data
        keys.append(key)
    return keys, around


def short(value: Any) -> str:
    """Returns a value for a message, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
