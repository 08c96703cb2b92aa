"""Blocks of prepared data: record batches as arrays, and their checksums."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

CRC32_DIGITS = 8


def arrays(block: pa.RecordBatch) -> dict[str, np.ndarray]:
    """The columns as they lie in memory: nothing is copied.

    Raises:
      pa.ArrowInvalid: if values are missing, or the block says that it has more of them
        than are there.
    """
    block.validate()
    return {name: _array(block.column(name)) for name in block.schema.names}


def _array(column: pa.Array) -> np.ndarray:
    if isinstance(column, pa.FixedSizeListArray):
        flat = column.flatten().to_numpy()
        return flat.reshape(len(column), column.type.list_size)
    return column.to_numpy()


def crc32_of(block: pa.RecordBatch) -> str:
    """Of all values of a block, in hexadecimal digits."""
    return crc32_of_arrays(arrays(block))


def crc32_of_arrays(columns: Mapping[str, np.ndarray]) -> str:
    """The same of its columns as arrays."""
    crc32 = 0
    for values in columns.values():
        crc32 = zlib.crc32(values.data, crc32)
    return f"{crc32:0{CRC32_DIGITS}x}"
