"""Arrays in safetensors files, which are mapped into memory.

The format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from embark_jax.export.description import MEND, ExportError

DTYPES = {"BOOL": np.dtype(bool)} | {
    f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}")
    for kind in "FIU"
    for size in (1, 2, 4, 8)
    if (kind, size) != ("F", 1)
}


class Location(NamedTuple):
    """Where an array lies in a file.

    Attributes:
      dtype, shape: of the array.
      offset: bytes of the file before it.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Number of bytes of the array."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a file."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, path)
    path.chmod(mode)  # the library makes the file readable to its owner only


def locations(path: Path) -> dict[str, Location]:
    """Returns where the arrays of a file lie.

    Raises:
      ExportError: if the file is no such file, or arrays reach beyond it.
    """
    try:
        with safe_open(path, "numpy"):  # checks the header
            pass
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
        header.pop("__metadata__", None)
        return {
            name: Location(
                DTYPES[array["dtype"]],
                tuple(array["shape"]),
                8 + header_bytes + array["data_offsets"][0],
            )
            for name, array in header.items()
        }
    except SafetensorError as error:
        raise ExportError(f"{path}: {error}; {MEND}") from None
    except KeyError as error:
        raise ExportError(f"{path}: has numbers of type {error}; {MEND}") from None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file, mapped: what is not used stays on the disk, and
    changes stay in memory.

    Raises:
      ExportError: if the file is no such file, or arrays reach beyond it.
    """
    return {
        name: np.asarray(np.memmap(path, array.dtype, "c", array.offset, array.shape))
        if array.bytes
        else np.empty(array.shape, array.dtype)  # nothing can be mapped
        for name, array in locations(path).items()
    }


def checked_array(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    name: str,
    shape: tuple[int | None, ...],
    dtype: str | np.dtype,
) -> np.ndarray:
    """Returns an array of a file; None in its shape stands for any number.

    Raises:
      ExportError: if it is not there, or has another shape or dtype.
    """
    array = arrays.get(name)
    if (
        array is None
        or array.dtype != dtype
        or len(array.shape) != len(shape)
        or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True))
    ):
        actual = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise ExportError(
            f"{path}: array {name!r} is {actual}, must be {dtype} {list(shape)}; {MEND}"
        )
    return array
