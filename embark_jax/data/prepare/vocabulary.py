"""Numbers values.

Id 0 stands for a missing value, and id 1 for a value that is too rare in the training
samples; then come the values, the most frequent first. A hashed table has no
vocabulary: its values share the rows from 1 on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax._base.errors import DataError
from embark_jax._base.files import read_arrow

MISSING_ID = 0
RARE_ID = 1
FIRST_ID = 2
VOCABULARY = "vocabulary"
"""Name of the folder of the vocabularies."""


def vocabulary_file(table: str) -> str:
    """Returns the path of a table's vocabulary in the folder."""
    return f"{VOCABULARY}/{table}.arrow"


def hash_of(key: str, rows: int) -> str:
    """Returns SQL of the id of a value in a hashed table: the same on every machine and
    in every engine, from the last 64 bits of MD5 of its text."""
    return f"(1 + md5_number_lower(({key})::VARCHAR) % {rows - 1})::BIGINT"


def read_keys(folder: Path, table: str) -> pa.Array:
    """Returns the values of a table, in the order of their ids.

    Raises:
      DataError: if its vocabulary has no values.
    """
    vocabulary = read_arrow(path := folder / vocabulary_file(table))
    if "key" not in vocabulary.column_names:
        raise DataError(f"{path}: must have a column 'key'")
    return vocabulary["key"].combine_chunks()


def read_row_numbers(folder: Path, table: str, rows: int) -> np.ndarray:
    """Returns the row of each hash or number, int64 ``[rows]``, of a table whose rows
    are numbered by frequency.

    Raises:
      DataError: if the file does not have each row once.
    """
    numbers = read_arrow(path := folder / vocabulary_file(table))
    if numbers.schema != pa.schema({"row": pa.int64()}) or not np.array_equal(
        np.sort(numbers["row"].to_numpy()), np.arange(rows)
    ):
        raise DataError(f"{path}: must have a column 'row' with 0 to {rows - 1:,} once")
    return numbers["row"].to_numpy()


def is_text(kind: pa.DataType) -> bool:
    """Says whether values, alone or in lists, are text."""
    return pa.types.is_string(kind.value_type if pa.types.is_list(kind) else kind)
