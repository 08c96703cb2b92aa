"""Says which paths lie on a file system. Object stores are not read or written yet, and
a path such as ``s3://bucket/run`` must not become the local folder ``s3:``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from embark_jax._base.errors import UserError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
"""A scheme has two letters at least: one is a drive. ``Path`` makes one slash of two.
"""


class StorageError(UserError, ValueError):
    """A path on storage that cannot be used."""


def local(path: str | os.PathLike[str]) -> Path:
    """Returns a path on a file system, local or on a network.

    Raises:
      StorageError: if the path has a scheme, such as that of an object store.
    """
    text = os.fspath(path)
    if scheme := _SCHEME.match(text):
        name = f"{scheme[1]}://"
        raise StorageError(
            f"{name}{text[scheme.end() :]}: {name} cannot be read or written yet, must "
            "be a path of a file system, local or on a network; copy from there or to "
            "there, or mount it"
        )
    return Path(path)


LocalPath = Annotated[Path, AfterValidator(local)]
"""A path in a config, which is on a file system."""
