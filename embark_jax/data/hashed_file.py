"""Files that say of others what they must hold, by size and hash, and of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pydantic
import xxhash
from pydantic import PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.errors import DataError
from embark_jax._base.files import confined, write_json

MEND = "prepare the data again, in another folder"


class HashedFile(Config):
    """One file, and what it must hold: its path in the folder, its size, and XXH3 of
    its bytes."""

    file: str
    bytes: PositiveInt
    xxh3: str

    @classmethod
    def of(cls, folder: Path, file: str, **fields: Any) -> Self:
        """Describes a file as it is now; ``fields`` are further ones."""
        path = folder / file
        size = path.stat().st_size
        return cls(file=file, bytes=size, xxh3=xxh3_of(path), **fields)

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
        if xxh3_of(path) != self.xxh3:
            raise DataError(f"{path}: is not as it was written; {mend}")
        return path


def xxh3_of(path: Path) -> str:
    """Returns XXH3 of a file, in hexadecimal digits."""
    with pa.memory_map(str(path)) as file:
        return xxhash.xxh3_128_hexdigest(file.read_buffer())


class ChecksummedFile(Config):
    """The content of a JSON file.

    Attributes:
      checksum: XXH3 of all the rest, as it was written.
    """

    checksum: str = ""

    def write(self, path: Path) -> None:
        """Writes the file."""
        content = self.model_dump(mode="json", exclude={"checksum"})
        write_json(path, content | {"checksum": checksum_of(content)})

    @classmethod
    def of_file(cls, path: Path, mend: str = MEND) -> Self:
        """Reads the file; ``mend`` ends the message of an error.

        Raises:
          FileNotFoundError: if there is none.
          DataError: if it is damaged.
        """
        content = path.read_bytes()
        try:
            read = cls.model_validate_json(content)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            problem = first["msg"].removeprefix("Value error, ")
            raise DataError(f"{path}: {where}: {problem}; {mend}") from None
        if read.checksum != checksum_of(json.loads(content)):
            raise DataError(f"{path}: is not as it was written; {mend}")
        return read


def checksum_of(content: Mapping[str, Any]) -> str:
    """Returns XXH3 of the content of a file but for this checksum."""
    text = json.dumps({k: v for k, v in content.items() if k != "checksum"})
    return xxhash.xxh3_128_hexdigest(text.encode())
