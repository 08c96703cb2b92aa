"""Your own models and data, which a config names as ``my_package.my_module:Name``.

Such a config runs the code that it names, as Python's ``import`` does.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from embark_jax._base.config import Config, ConfigError, nearest

OWN_KIND = "MODULE:NAME"
"""The name for all such kinds, in unions and messages."""


class OwnConfig(Config):
    """A section that names what to call; all its keys but ``kind`` are options."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] = OWN_KIND
    """Module and name, such as my_package.my_module:Name."""

    @property
    def options(self) -> dict[str, Any]:
        """Options that it is called with."""
        return dict(self.model_extra or {})


def kind_tag(section: Any) -> str | None:
    """Chooses among the sections that differ in ``kind``."""
    given = section.get("kind") if isinstance(section, Mapping) else None
    kind = getattr(section, "kind", given)
    return OWN_KIND if ":" in str(kind) else kind


CODE = "code"
"""Folder in a run or an export with copies of the modules that its config names."""


@contextlib.contextmanager
def code_of(folder: Path) -> Iterator[None]:
    """Makes Python find modules in the folder's copies, too, after all other places."""
    path = str((folder / CODE).absolute())
    sys.path.append(path)
    try:
        yield
    finally:
        sys.path.remove(path)


def call_named(kind: str, *arguments: Any, **options: Any) -> Any:
    """Calls the object that ``kind`` names.

    The working directory is searched too, after all other places that Python searches.

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
        signature.bind(*[None] * is_class, *arguments, **options)
    except TypeError as error:
        known = list(signature.parameters)[is_class:]
        unknown = [name for name in options if name not in known]
        hint = f"; {nearest(unknown[0], known)}" if unknown else ""
        raise ConfigError(
            f"{kind}: {error}{hint}; its parameters are {', '.join(known)}"
        ) from None
    return named(*arguments, **options)


def import_named(kind: str) -> Callable[..., Any]:
    """Returns the object that ``kind`` names; raises as ``call_named`` does."""
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
        found = [n for n, value in vars(module).items() if callable(value)]
        hint = nearest(name, [n for n in found if not n.startswith("_")])
        raise ConfigError(
            f"{kind}: {module_name} has no class or function {name!r}; {hint}"
        )
    return named


def source_file(kind: str) -> Path | None:
    """Returns the file of the module that ``kind`` names, if it is one file."""
    file = inspect.getsourcefile(import_named(kind))
    return Path(file) if file else None
