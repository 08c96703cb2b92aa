"""The files of an export in NumPy alone: whether they are as they were written, and
their arrays.

An export's ``score.py`` holds this module's text.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np

from embark_jax.export.errors import ExportError

VERSION = 2
DESCRIPTION = "model.json"
MEND = "copy the export anew, or export the run again"
DIGESTED_BYTES = 1 << 20
KEYS = "keys"
"""Name of the keys, or row numbers, in the file of a dynamic table or a delta."""
DTYPES = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
FIELDS = {
    "description": {
        "name": str,
        "step": int,
        "model": dict,
        "dense_features": int,
        "features": dict,
        "tables": dict,
        "dense": str,
        "files": dict,
    },
    "features": {"table": str, "hotness": int, "pooling": str, "weighted": bool},
    "tables": {"rows": (int, type(None)), "dim": int, "file": str},
    "files": {"bytes": int, "sha256": str},
}
"""The types of what ``model.json`` says."""


def read_description(folder: Path) -> dict:
    """Reads ``model.json``, and every file that it lists, to compare their SHA-256.

    Raises:
      ExportError: if one is missing, damaged, or outside the folder.
      OSError: if one cannot be read.
    """
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path}: is no JSON ({error}); {MEND}") from None
    version = description.get("version") if isinstance(description, dict) else None
    if version != VERSION:
        raise ExportError(
            f"{path}: version is {version!r}, must be {VERSION}; export the run again"
        )
    if description.get("sha256") != checksum(description):
        raise ExportError(f"{path}: is not as it was written; {MEND}")
    check_fields(path, description)
    for name, file in description["files"].items():
        check_file(inside(folder, name), file["bytes"], file["sha256"])
    return description


def checksum(description: dict) -> str:
    """The SHA-256 of all of a description but itself."""
    known = {key: value for key, value in description.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def check_fields(path: Path, description: dict) -> None:
    """Raises ``ExportError`` unless a description has all that it must have."""

    def check(where: str, fields, types: dict) -> None:
        for key, kind in types.items():
            value = fields.get(key) if isinstance(fields, dict) else None
            is_flag = kind is not bool and isinstance(value, bool)
            if is_flag or not isinstance(value, kind):
                raise ExportError(f"{path}: {where}{key} is {value!r:.80}; {MEND}")

    check("", description, FIELDS["description"])
    for group in ("features", "tables", "files"):
        for name, fields in description[group].items():
            check(f"{group}.{name}.", fields, FIELDS[group])
    files, tables = description["files"], description["tables"]
    named = [description["dense"], *(table["file"] for table in tables.values())]
    if unlisted := [name for name in named if name not in files]:
        raise ExportError(f"{path}: files lack {unlisted[0]!r}; {MEND}")
    for name, feature in description["features"].items():
        if feature["table"] not in tables:
            table = feature["table"]
            raise ExportError(f"{path}: features.{name}: has no table {table!r}")


def inside(folder: Path, name: str) -> Path:
    """Returns the path of a file of the folder, links followed.

    Raises:
      ExportError: if it leads out of the folder.
    """
    try:
        path = (folder / name).resolve()
        path.relative_to(folder.resolve())
    except (ValueError, RuntimeError):  # RuntimeError: links in a circle
        raise ExportError(
            f"{folder}: names the file {name!r}, which must lie in this folder; {MEND}"
        ) from None
    return path


def check_file(path: Path, size: int, sha256: str) -> None:
    """Raises ``ExportError`` unless a file is as it was written."""
    if not path.is_file():
        raise ExportError(f"{path}: is missing; {MEND}")
    if (found := path.stat().st_size) != size:
        raise ExportError(f"{path}: has {found:,} bytes, must have {size:,}; {MEND}")
    if sha256_of(path) != sha256:
        raise ExportError(f"{path}: is not as it was written (SHA-256); {MEND}")


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(DIGESTED_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a file, mapped into memory: rows that are not used stay on the disk.
    Changes to them stay in memory.

    The format: https://github.com/huggingface/safetensors#format.

    Raises:
      ExportError: if the file is no such file, or arrays reach beyond it.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > size - 8:
            raise ExportError(
                f"{path}: header has {header_bytes:,} bytes, the file {size:,}; {MEND}"
            )
        try:
            header = dict(json.loads(file.read(header_bytes)))
        except (ValueError, TypeError, RecursionError) as error:
            raise ExportError(f"{path}: header is no JSON ({error}); {MEND}") from None
    header.pop("__metadata__", None)
    return {
        name: map_array(path, f"{path}: {name}", entry, 8 + header_bytes, size)
        for name, entry in header.items()
    }


def map_array(path: Path, where: str, entry, begin: int, size: int) -> np.ndarray:
    """Maps an array of a file of ``size`` bytes, whose arrays begin at ``begin``."""
    problem = ExportError(f"{where}: cannot be {entry!s:.120}; {MEND}")
    try:
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        first, last = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise problem from None
    if not all(type(number) is int and number >= 0 for number in (first, last, *shape)):
        raise problem
    if last - first != math.prod(shape) * dtype.itemsize or begin + last > size:
        raise problem
    if last == first:  # nothing can be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, mode="c", offset=begin + first, shape=shape)


def check_shape(where: str, arrays: dict, name: str, shape: tuple) -> np.ndarray:
    """Returns an array of a file, which must have a shape; None stands for any number.

    Raises:
      ExportError: if it has another one, or is not there.
    """
    if name not in arrays:
        raise ExportError(f"{where}: has no array {name!r}; {MEND}")
    found = arrays[name].shape
    if len(found) != len(shape) or any(
        must not in (None, size) for must, size in zip(shape, found, strict=True)
    ):
        raise ExportError(
            f"{where}: shape of {name!r} is {list(found)}, must be {list(shape)}; "
            + MEND
        )
    return arrays[name]
