"""Joins tables that fit in memory to samples by key."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from embark_jax.data.batch import DataError
from embark_jax.data.prepare.delimited import Layout
from embark_jax.data.prepare.recipe import DelimitedFile


class SideTable:
    """A table of facts by key, such as what is known of each user.

    Args:
      path: a text file, whose bad lines are errors.
      layout: layout of the file.
      key: a column of unique values.

    Raises:
      DataError: if the file cannot be read or a line is bad, or two have one key.
    """

    def __init__(self, path: Path, layout: Layout, key: str):
        self.path, self._key = path, key
        self.table = DelimitedFile(path, layout).read()
        counts = self.table[key].value_counts()
        for value, count in zip(*counts.flatten(), strict=True):
            if count.as_py() > 1:
                raise DataError(f"{path}: {key} {value.as_py()!r} has {count} lines")

    def rows_of(self, keys: pa.ChunkedArray) -> pa.Table:
        """Returns the row of each key; null if there is none."""
        options = pc.SetLookupOptions(self.table[self._key].combine_chunks())
        return self.table.take(pc.call_function("index_in", [keys], options))
