"""Writes files that appear whole or not at all, and finds those that others name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from embark_jax._base.errors import DataError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write to, which becomes ``path`` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.part")
    try:
        yield scratch
    except OSError as error:
        if error.filename is None:  # such as of a full disk: say which file it was for
            number, problem = error.errno or errno.EIO, error.strerror or str(error)
            raise OSError(number, problem, str(path)) from error
        raise
    scratch.replace(path)


def read_json(path: Path, mend: str) -> Any:
    """Reads a JSON file.

    Raises:
      DataError: if it is no JSON; the message ends with ``mend``, what to do about it.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # of the JSON, or of its encoding
        raise DataError(f"{path}: is damaged ({error}); {mend}") from None


def write_json(path: Path, data: Any) -> None:
    with replacing(path) as scratch:
        scratch.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def write_arrow(path: Path, table: pa.Table) -> None:
    """Writes an Arrow IPC file."""
    with (
        replacing(path) as scratch,
        pa.ipc.new_file(str(scratch), table.schema) as writer,
    ):
        writer.write_table(table.combine_chunks())


def read_arrow(path: Path) -> pa.Table:
    """Reads the whole of an Arrow IPC file, mapped into memory.

    Raises:
      DataError: if it is damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: is no Arrow file, or is damaged: {error}") from None
    return table.combine_chunks()


def confined(folder: Path, name: str) -> Path:
    """Returns the path of a file of a folder that one of the folder's files names.

    Args:
      folder: the folder.
      name: path in the folder, as a manifest or a description gives it.

    Raises:
      DataError: if the path leads out of the folder, links followed, or is no path.
    """
    outside = f"{folder}: names the file {name!r}, which must lie in this folder"
    try:
        inside = (folder / name).resolve().relative_to(folder.resolve())
    except (ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise DataError(f"{outside}; get the folder anew from who made it") from error
    if inside == Path():
        raise DataError(f"{outside}, and is the folder itself")
    return folder / name


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def xxh3_of(path: Path) -> str:
    """Returns the 128-bit XXH3 of a file, in hexadecimal: as fast as disks, for large
    files."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
