"""A file that a manifest lists, with its size and its hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.errors import DataError
from embark_jax._base.files import confined, sha256_of

MEND = "prepare the data again, in another folder"


class HashedFile(Config):
    """One file: its path in the folder, and what it must hold."""

    file: str
    bytes: PositiveInt
    sha256: str

    @classmethod
    def of(cls, folder: Path, file: str, **fields: Any) -> Self:
        """Describes a file as it is now; ``fields`` are further ones."""
        path = folder / file
        size = path.stat().st_size
        return cls(file=file, bytes=size, sha256=sha256_of(path), **fields)

    def sized(self, folder: Path, mend: str = MEND) -> Path:
        """Returns the path of the file, which has the size that it was written with;
        ``mend`` ends the message of an error.

        Raises:
          DataError: if it has another, or is missing, or lies outside the folder.
        """
        path = confined(folder, self.file)
        size = path.stat().st_size if path.is_file() else None
        if size != self.bytes:
            problem = "is missing" if size is None else f"has {size:,} bytes"
            raise DataError(f"{path}: {problem}, must have {self.bytes:,}; {mend}")
        return path

    def verified(self, folder: Path, mend: str = MEND) -> Path:
        """Returns the path of the file, which is as it was written.

        Raises:
          DataError: if it is not, or is missing, or lies outside the folder.
        """
        path = self.sized(folder, mend)
        if sha256_of(path) != self.sha256:
            raise DataError(f"{path}: is not as it was written; {mend}")
        return path
