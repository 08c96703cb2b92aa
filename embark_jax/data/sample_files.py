"""Files of prepared samples: Arrow, which any tool opens, mapped into memory.

A file has a matrix of numbers and one of ids, each a column of lists of one length: the
labels, the dense features and the weight of a sample are a list of float32, the ids of
all features a list of int32, padded with -1. Ids of larger tables are in a column of
int64, and so is the range of a sample's events, if samples have histories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from embark_jax._base.errors import DataError
from embark_jax._base.files import write_arrow

NUMBERS, IDS, LONG_IDS, EVENTS = "numbers", "ids", "long_ids", "events"
_KINDS = {NUMBERS: "<f4", IDS: "<i4", LONG_IDS: "<i8", EVENTS: "<i8"}


class Piece(NamedTuple):
    """Neighbouring values of a record that are neighbours in a matrix, too.

    Attributes:
      matrix: name of the matrix.
      first, count: its columns.
      offset: bytes of a record before them.
    """

    matrix: str
    first: int
    count: int
    offset: int

    def of(self, records: np.ndarray) -> np.ndarray:
        """Returns a view of the values in records, ``[records, count]``."""
        dtype = np.dtype(_KINDS[self.matrix])
        strides = (records.dtype.itemsize, dtype.itemsize)
        shape = (len(records), self.count)
        return np.ndarray(shape, dtype, records, self.offset, strides)


def pieces(layout: np.dtype) -> list[Piece]:
    """Returns the pieces of records of a layout: few, as most ids are int32."""
    widths, found = dict.fromkeys(_KINDS, 0), []
    fields: Any = layout.fields or {}  # stubs want literal names
    for name in layout.names or ():
        dtype, offset = fields[name][:2]
        leaves = [(dtype, offset)]
        if name == "ids":
            leaves = [
                (of_feature, offset + inside)
                for of_feature, inside in (f[:2] for f in (dtype.fields or {}).values())
            ]
        for leaf, at in leaves:
            count = int(np.prod(leaf.shape))
            matrix = NUMBERS
            if name == "events":
                matrix = EVENTS
            elif name == "ids":
                matrix = IDS if leaf.base.itemsize == 4 else LONG_IDS
            first = widths[matrix]
            widths[matrix] += count
            last = found[-1] if found else None
            size = np.dtype(_KINDS[matrix]).itemsize
            if (
                last is not None
                and last.matrix == matrix
                and last.offset + last.count * size == at
            ):
                found[-1] = last._replace(count=last.count + count)
            elif count:
                found.append(Piece(matrix, first, count, at))
    return found


def write(path: Path, records: np.ndarray) -> str:
    """Writes records as a file of samples, and returns its checksum."""
    parts: dict[str, list[np.ndarray]] = {}
    for piece in pieces(records.dtype):
        parts.setdefault(piece.matrix, []).append(piece.of(records))
    columns = {}
    for name, arrays in parts.items():
        matrix = np.concatenate(arrays, axis=1)
        values = pa.array(matrix.ravel())
        columns[name] = pa.FixedSizeListArray.from_arrays(values, matrix.shape[1])
    write_arrow(path, pa.table(columns))
    return checksum(path)


def checksum(path: Path) -> str:
    """Returns XXH3 of a file, in hexadecimal digits."""
    with pa.memory_map(str(path)) as file:
        return xxhash.xxh3_64_hexdigest(file.read_buffer())


def row_types(pieces: Sequence[Piece]) -> dict[str, np.dtype]:
    """Returns for each matrix the type of its rows as wholes, which NumPy moves at
    once."""
    widths: dict[str, int] = {}
    for piece in pieces:
        widths[piece.matrix] = piece.first + piece.count
    return {
        name: np.dtype((np.void, width * np.dtype(_KINDS[name]).itemsize))
        for name, width in widths.items()
    }


def read(
    path: Path, pieces: Sequence[Piece], rows: int, xxh3: str
) -> dict[str, np.ndarray]:
    """Maps the matrices of a file into memory, ``[rows]`` of ``row_types``.

    Raises:
      OSError, DataError: if it is not as it was written.
    """
    if checksum(path) != xxh3:
        raise DataError("is not as it was written, the file is damaged")
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    matrices = {}
    for name, row in row_types(pieces).items():
        column, value = batch.column(name), np.dtype(_KINDS[name])
        type_ = pa.list_(pa.from_numpy_dtype(value), row.itemsize // value.itemsize)
        if column.type != type_ or len(column) != rows or column.null_count:
            raise DataError(
                f"column {name} has {len(column)} of {column.type}, must have {rows} "
                f"of {type_}"
            )
        matrices[name] = column.flatten().to_numpy().view(row)
    return matrices


def fill(
    records: np.ndarray, pieces: Sequence[Piece], matrices: Mapping[str, np.ndarray]
) -> None:
    """Fills records with rows of matrices."""
    for piece in pieces:
        values = matrices[piece.matrix].view(_KINDS[piece.matrix])
        values = values.reshape(len(records), -1)
        last = piece.first + piece.count
        piece.of(records)[...] = values[:, piece.first : last]
