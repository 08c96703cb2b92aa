"""Arrays in safetensors files (https://github.com/huggingface/safetensors#format)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from embark_jax.export.description import MEND, ExportError


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a file."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: np.asarray(a, order="C") for name, a in arrays.items()}, path)
    path.chmod(mode)  # the library makes the file readable to its owner only


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file.

    Raises:
      ExportError: if the file is no such file, or arrays reach beyond it.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ExportError(f"{path}: {error}; {MEND}") from None
    except KeyError as error:
        raise ExportError(f"{path}: has numbers of type {error}; {MEND}") from None


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
