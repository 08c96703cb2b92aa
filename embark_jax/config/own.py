"""Your own models and data, which a config names as ``my_package.my_module:Name``.

Such a config runs the code that it names, as Python's ``import`` does. A run has
copies of it, which are loaded from their files, under names of their own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag

from embark_jax._base.config import Config, ConfigError, kind_of, nearest

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
    mapped_kind = section.get("kind") if isinstance(section, Mapping) else None
    kind = getattr(section, "kind", mapped_kind)
    return OWN_KIND if ":" in str(kind) else kind


def one_of(kinds: Iterable[type[Config]]) -> Any:
    """Returns the type of a section that is any of these, which differ in ``kind``."""
    tagged = (Annotated[section, Tag(kind_of(section))] for section in kinds)
    return Annotated[functools.reduce(operator.or_, tagged), Discriminator(kind_tag)]


CODE = "code"
"""Folder in a run with copies of the modules that its config names."""
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextlib.contextmanager
def code_of(folder: Path) -> Iterator[None]:
    """Makes names of modules mean the copies in a run."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def copy_path(kind: str) -> str:
    """Returns the path of a module's copy in a run.

    Raises:
      ConfigError: if the module's name is none.
    """
    module_name, _, _ = kind.partition(":")
    names = module_name.split(".")
    if not all(name.isidentifier() for name in names):
        raise ConfigError(
            f"{kind}: {module_name!r} is no name of a module, must be like "
            "my_package.my_module"
        )
    return f"{CODE}/{'/'.join(names)}.py"


def trusted(folder: Path, kind: str, trust_code: bool) -> None:
    """Lets code run that a folder names, if it is trusted.

    Args:
      folder: a run.
      kind: kind of its model, or another name in its config.
      trust_code: whether the user trusts the folder.

    Raises:
      ConfigError: if the code is not trusted; the message names its file.
    """
    if ":" not in kind or trust_code:
        return
    path = folder / copy_path(kind)
    where = f"in {path}" if path.is_file() else "which Python finds elsewhere"
    raise ConfigError(
        f"{folder}: names {kind}, code {where}; it would run with all your "
        "rights: read it, and pass --trust-code (trust_code=True) if you trust it"
    )


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
        parameters = list(signature.parameters)[is_class:]
        unknown = [name for name in options if name not in parameters]
        hint = f"; {nearest(unknown[0], parameters)}" if unknown else ""
        raise ConfigError(
            f"{kind}: {error}{hint}; its parameters are {', '.join(parameters)}"
        ) from None
    return named(*arguments, **options)


def import_named(kind: str) -> Callable[..., Any]:
    """Returns the object that ``kind`` names; raises as ``call_named`` does."""
    module_name, _, name = kind.partition(":")
    module = _import_module(kind)
    named = getattr(module, name, None)
    if not callable(named):
        callables = [n for n, value in vars(module).items() if callable(value)]
        hint = nearest(name, [n for n in callables if not n.startswith("_")])
        raise ConfigError(
            f"{kind}: {module_name} has no class or function {name!r}; {hint}"
        )
    return named


def source_file(kind: str) -> Path | None:
    """Returns the file of the module that ``kind`` names; None if it is a package, or
    not in Python, so that a copy of one file would not do."""
    module = _import_module(kind)
    file = getattr(module, "__file__", None)
    if file is None or hasattr(module, "__path__") or not file.endswith(".py"):
        return None
    return Path(file)


def _import_module(kind: str) -> ModuleType:
    path = copy_path(kind)  # checks the name, too
    folder = _folder.get()
    if folder is not None and (folder / path).is_file():
        return _import_copy(folder, path)
    module_name, _, _ = kind.partition(":")
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
    if folder is not None and not hasattr(module, "__path__"):
        file = str(getattr(module, "__file__", None))
        if file.endswith(".py"):
            raise ConfigError(
                f"{folder / path}: no such file; the module {module_name} that Python "
                f"finds in {file} may be another one: copy it there if it is the one"
            )
    return module


class _SourceLoader(SourceFileLoader):
    """Runs what the file says, whatever a cache beside it holds."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_copy(folder: Path, path: str) -> ModuleType:
    """Imports a copy under a name that no other module has: that of its content, in the
    package that it was of.

    Raises:
      ConfigError: if the copy is a link out of the folder.
    """
    file = (folder / path).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ConfigError(f"{folder / path}: is a link to {file}, outside the folder")
    names = path.removeprefix(f"{CODE}/").removesuffix(".py").split("/")
    digest = hashlib.sha256(f"{file}\0".encode() + file.read_bytes()).hexdigest()
    unique = f"{'.'.join(names)}_{digest[:16]}"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(
        unique, file, loader=_SourceLoader(unique, str(file))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module
