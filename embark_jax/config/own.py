"""Your own models and data, which a config names as ``my_package.my_module:Name``.

Such a config runs the code that it names, as Python's ``import`` does, and so does a
run: it keeps the name, and a version control system the code.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag

from embark_jax._base.config import Config, ConfigError, is_named, kind_of, nearest

OWN_KIND = "MODULE:NAME"
"""The name for all such kinds, in unions and messages."""
NAMED = r"\w+(\.\w+)*:\w+"
"""Pattern of such kinds."""


class OwnConfig(Config):
    """A section that names what to call; all its keys but ``kind`` are options."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(pattern=f"^{NAMED}$")] = OWN_KIND
    """Module and name, such as my_package.my_module:Name."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments that it is called with."""
        return dict(self.model_extra or {})


def one_of(kinds: Iterable[type[Config]], default: str | None = None) -> Any:
    """Returns the type of a section that is any of these, which differ in ``kind``.

    Args:
      kinds: the sections.
      default: kind of a section that has none.
    """
    kinds = tuple(kinds)

    def tag(section: Any) -> str | None:
        mapped_kind = (
            section.get("kind", default) if isinstance(section, Mapping) else None
        )
        kind = getattr(section, "kind", mapped_kind)
        return OWN_KIND if is_named(kind) else kind

    tagged = (Annotated[section, Tag(kind_of(section))] for section in kinds)
    names = " or ".join(repr(kind_of(section)) for section in kinds)
    chosen = Discriminator(
        tag,
        custom_error_type="kind",
        custom_error_message=f"Input should be a mapping whose kind is {names}",
    )
    return Annotated[functools.reduce(operator.or_, tagged), chosen]


def trusted(folder: Path, kind: str, trust_code: bool) -> None:
    """Lets code run that a folder names, if it is trusted.

    Args:
      folder: a run.
      kind: kind of its model, or another name in its config.
      trust_code: whether the user trusts what the folder names.

    Raises:
      ConfigError: if the code is not trusted.
    """
    if ":" in kind and not trust_code:
        raise ConfigError(
            f"{folder}: names {kind}, code that Python would find and run with all "
            "your rights: read it, and pass --trust-code (trust_code=True) if you "
            "trust it"
        )


def call_named(kind: str, *arguments: Any, **options: Any) -> Any:
    """Calls the object that ``kind`` names.

    Args:
      kind: ``my_package.my_module:Name``.
      arguments, options: arguments of the call.

    Raises:
      ConfigError: if there is no such module or name, or it takes other arguments.
    """
    named = import_named(kind)
    # Metaclasses, such as Flax's, hide the arguments that a class takes.
    is_class = inspect.isclass(named)
    signature = inspect.signature(named.__init__ if is_class else named)
    try:
        for bind in signature.bind_partial, signature.bind:  # misspelt before missing
            bind(*[None] * is_class, *arguments, **options)
    except TypeError as error:
        parameters = ", ".join(list(signature.parameters)[is_class:])
        raise ConfigError(f"{kind}: {error}; it takes {parameters}") from None
    return named(*arguments, **options)


def import_named(kind: str) -> Callable[..., Any]:
    """Returns the object that ``kind`` names; raises as ``call_named`` does. The
    working directory is searched after all other places that Python searches."""
    module_name, _, name = kind.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module's own import failed
        raise ConfigError(
            f"{kind}: no module {error.name!r} is installed, in PYTHONPATH or in {here}"
        ) from None
    named = getattr(module, name, None)
    if not callable(named):
        callables = [n for n, value in vars(module).items() if callable(value)]
        hint = nearest(name, [n for n in callables if not n.startswith("_")])
        raise ConfigError(
            f"{kind}: {module_name} has no class or function {name!r}; {hint}"
        )
    return named
