"""Files that a manifest lists, with their sizes and hashes."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.errors import DataError
from embark_jax._base.files import confined, sha256_of

MEND = "prepare the data again, in another folder"


class File(Config):
    """One file: its path in the folder, and what it must hold."""

    file: str
    bytes: PositiveInt
    sha256: str


def file_of(folder: Path, file: str) -> File:
    """A file as it is now."""
    path = folder / file
    return File(file=file, bytes=path.stat().st_size, sha256=sha256_of(path))


def verified(folder: Path, file: File) -> Path:
    """The path of a file, which is as it was written.

    Raises:
      DataError: if it is not, or is missing, or lies outside the folder.
    """
    path = sized(folder, file)
    if sha256_of(path) != file.sha256:
        raise DataError(f"{path}: is not as it was written; {MEND}")
    return path


def sized(folder: Path, file: File) -> Path:
    """The path of a file, which has the size that it was written with.

    Raises:
      DataError: if it has another, or is missing, or lies outside the folder.
    """
    path = confined(folder, file.file)
    size = path.stat().st_size if path.is_file() else None
    if size != file.bytes:
        found = "is missing" if size is None else f"has {size:,} bytes"
        raise DataError(f"{path}: {found}, must have {file.bytes:,}; {MEND}")
    return path
