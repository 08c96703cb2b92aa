"""What the rows of prepared data's tables stand for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax.data.manifest import Manifest, vocabulary_file
from embark_jax.data.prepare.encoding import read_keys
from embark_jax.data.prepare.numbers import FittedNumber
from embark_jax.data.prepare.vocabulary import FIRST_ID, RARE_ID, is_text
from embark_jax.plans.tables import HASHED_KEYS


class Meaning(NamedTuple):
    """What the rows of a table stand for: values, the hashes of values, or ranges of
    numbers.

    Attributes:
      kind: "values", "hashes" or "ranges".
      rows: number of rows that stand for something.
      ranges: the ranges.
      row_numbers: hash of the file with the rows of hashes or numbers, if their order
        is by frequency.
    """

    kind: str
    rows: int
    ranges: FittedNumber | None = None
    row_numbers: str | None = None

    @property
    def is_shared(self) -> bool:
        """Whether any of the rows may stand for several values."""
        return self.kind == "hashes" and self.rows != HASHED_KEYS

    @property
    def first(self) -> int:
        """The first row that stands for a value: those before it are of missing values
        and of rare ones."""
        return {"values": FIRST_ID, "ranges": FIRST_ID, "hashes": RARE_ID}.get(
            self.kind, 0
        )


@dataclasses.dataclass(frozen=True)
class TableValues:
    """The manifest of prepared data, or of a run's or an export's encoding, and its
    folder."""

    folder: Path
    manifest: Manifest

    def meaning(self, table: str) -> Meaning:
        """Returns what the rows of a table stand for."""
        manifest = self.manifest
        rows = manifest.table_rows[table]
        files = {file.file: file.sha256 for file in manifest.vocabularies}
        file = files.get(vocabulary_file(table))
        if table in manifest.hashed_tables:
            return Meaning("hashes", rows, row_numbers=file)
        if table in manifest.numbers:  # a column of ranges has a table of its own
            return Meaning("ranges", rows, manifest.numbers[table])
        if file is None or table in manifest.by_frequency:
            return Meaning("numbers", rows, row_numbers=file)
        return Meaning("values", rows)

    def row_numbers_in(self, later: TableValues, table: str) -> np.ndarray:
        """Returns for each row of a table of values the row of the same value in other
        data, -1 where there is none.

        Raises:
          DataError: if a vocabulary is not as it was written.
        """
        keys, later_keys = self.keys(table), later.keys(table)
        rows = np.full(FIRST_ID + len(keys), -1, np.int64)
        rows[:FIRST_ID] = np.arange(FIRST_ID)  # missing and rare values
        if is_text(keys.type) == is_text(later_keys.type) and len(later_keys):
            if keys.type != later_keys.type:
                keys, later_keys = keys.cast(pa.int64()), later_keys.cast(pa.int64())
            options = pc.SetLookupOptions(later_keys)
            ranks = pc.call_function("index_in", [keys], options)
            ranks = ranks.fill_null(-1 - FIRST_ID).to_numpy()
            rows[FIRST_ID:] = ranks.astype(np.int64) + FIRST_ID
        return rows

    def changed_table(self, later: TableValues) -> str | None:
        """Returns a table whose rows stand for something else in later data; None if
        all have at least the rows that they have here, with the same meaning.

        Raises:
          DataError: if a vocabulary is not as it was written.
        """
        for table in self.manifest.table_rows:
            meaning = self.meaning(table)
            if meaning.kind == "values":
                rows = self.row_numbers_in(later, table)
                if not np.array_equal(rows, np.arange(len(rows))):
                    return table
            elif meaning != later.meaning(table):
                return table
        return None

    def keys(self, table: str) -> pa.Array:
        """Returns the values of a table, in the order of their rows."""
        name = vocabulary_file(table)
        file = next(f for f in self.manifest.vocabularies if f.file == name)
        file.verified(self.folder)
        return read_keys(self.folder, table)
