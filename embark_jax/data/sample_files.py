"""Files of prepared samples: Arrow, which any tool opens, mapped into memory.

Each matrix of ``data/layout.py`` is a column of lists of one length.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from embark_jax._base.errors import DataError
from embark_jax._base.files import write_arrow

MatrixType = tuple[np.dtype, int]
"""Type of the values of a matrix, and number of its columns."""


def write(path: Path, matrices: Mapping[str, np.ndarray]) -> str:
    """Writes matrices of equally many rows as a file, and returns its checksum."""
    columns = {
        name: pa.FixedSizeListArray.from_arrays(
            pa.array(np.ascontiguousarray(matrix).ravel()), matrix.shape[1]
        )
        for name, matrix in matrices.items()
    }
    write_arrow(path, pa.table(columns))
    return checksum(path)


def checksum(path: Path) -> str:
    """Returns XXH3 of a file, in hexadecimal digits."""
    with pa.memory_map(str(path)) as file:
        return xxhash.xxh3_64_hexdigest(file.read_buffer())


def read(
    path: Path, types: Mapping[str, MatrixType], rows: int, xxh3: str
) -> dict[str, np.ndarray]:
    """Maps the matrices of a file into memory.

    Raises:
      OSError, DataError: if it is not as it was written.
    """
    if checksum(path) != xxh3:
        raise DataError("is not as it was written, the file is damaged")
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    matrices = {}
    for name, (dtype, width) in types.items():
        column, type_ = batch.column(name), pa.list_(pa.from_numpy_dtype(dtype), width)
        if column.type != type_ or len(column) != rows or column.null_count:
            raise DataError(
                f"column {name} has {len(column)} of {column.type}, must have {rows} "
                f"of {type_}"
            )
        matrices[name] = column.flatten().to_numpy().reshape(rows, width)
    return matrices
