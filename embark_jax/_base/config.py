"""The parts that all sections of a config share."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from embark_jax._base.errors import UserError
from embark_jax._base.object_store import local


class ConfigError(UserError, ValueError):
    """A config that cannot be used; the message names every problem, one a line."""


@contextlib.contextmanager
def config_error_at(where: str) -> Iterator[None]:
    """Turns a ``ValueError`` into a ``ConfigError`` that names the wrong part."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def read_text(path: Path) -> str:
    """Returns the text of a file that a user names.

    Raises:
      ConfigError: if it cannot be read, or is not UTF-8 text.
    """
    try:
        return local(path).read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error})") from None


DESCRIBED = {"use_attribute_docstrings": False}
"""Of a section that is made by ``create_model``, whose fields have their descriptions:
Pydantic looks for docstrings in the sources of all callers, which takes long."""


class Config(BaseModel):
    """Base of all sections: immutable, and closed to keys it does not know.

    ``None`` means "not set", so ``None`` must be the default of a key that accepts it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def of_all_kinds(cls) -> list[type[Config]]:
        """Returns the sections that it stands for."""
        return [cls]


def given(section: Config) -> dict[str, Any]:
    """Returns the keys of a section that are set, with their values."""
    return {key: value for key, value in section if value is not None}


def sections(annotation: Any) -> list[Any]:
    """Returns the sections, or pydantic's dataclasses, that a field may hold: none,
    one, or several that differ in ``kind``.

    Args:
      annotation: annotation of the field, from ``model_fields``.
    """
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return annotation.of_all_kinds()
    if hasattr(annotation, "__pydantic_fields__"):
        return [annotation]
    return [section for inner in get_args(annotation) for section in sections(inner)]


def each_section(section: type[Config]) -> list[tuple[str, type[Config]]]:
    """Returns a section and all in it, each with its dotted key, outermost first; NAME
    stands for a name of the user's choice."""
    return list(dict.fromkeys(_walk(section, "")))  # several kinds may share some


def _walk(section: type[Config], prefix: str) -> Iterator[tuple[str, type[Config]]]:
    yield prefix, section
    for name, field in section.__pydantic_fields__.items():
        key = f"{prefix}.{name}".lstrip(".")
        mapping = "Mapping" in str(field.annotation)
        for inner in sections(field.annotation):
            yield from _walk(inner, f"{key}.NAME" if mapping else key)


def kind_of(section: type[Config]) -> str:
    """Returns the value of ``kind`` that chooses this section among several."""
    return section.model_fields["kind"].default


def is_named(kind: Any) -> bool:
    """Says whether a kind names an object of Python, such as my_module:Name."""
    return bool({":", "."} & {*str(kind)})


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns a hint for an unknown name: the name it resembles, or else all names."""
    names = sorted(names)
    if close := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(names) or 'none'}"
