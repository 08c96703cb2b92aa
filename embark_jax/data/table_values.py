"""What the rows of prepared data's tables stand for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa

from embark_jax._base.agreement import WINDOW, differences, parts
from embark_jax._base.errors import DataError
from embark_jax._base.files import read_arrow
from embark_jax.data.hashed_file import MEND
from embark_jax.data.manifest import FILE_NAME, Manifest
from embark_jax.data.vocabulary import FIRST_ID, is_text, vocabulary_file

EXTENDS = "extends"
"""The key of ``made_from`` with the digest of the data that these extend."""


@dataclasses.dataclass(frozen=True)
class TableValues:
    """The manifest of prepared data, or of a run's or an export's encoding, and its
    folder. A vocabulary is read here alone, and its hash is compared with the
    manifest's; ``mend`` says what to do about one that is damaged."""

    folder: Path
    manifest: Manifest
    mend: str = MEND

    def changes(self, later: TableValues, there: str) -> list[str]:
        """Returns where later data give columns, transforms or rows another meaning; a
        table may have more rows there, behind those that it has here.

        Args:
          later: the later data.
          there: says whose these are, such as "in the run before".

        Raises:
          DataError: if a vocabulary is not as it was written.
        """
        theirs, ours = (
            parts(m.model_dump(mode="json") | m.column_names, WINDOW)
            for m in (self.manifest, later.manifest)
        )
        if lines := differences(theirs, ours, there):
            return lines
        if later.manifest.made_from.get(EXTENDS) == self.manifest.digest():
            return []
        return [
            f"values of table {table!r} have other rows {there}"
            for table in self.manifest.tables
            if not self._begins(later, table)
        ]

    def _begins(self, later: TableValues, table: str) -> bool:
        """Whether the rows of a table are the first rows of later data's."""
        here, there = self.manifest.tables[table], later.manifest.tables[table]
        if not here.kind == there.kind == "values":
            # Ranges were compared with all numbers.
            return (here.kind, here.rows, here.file) == (
                there.kind,
                there.rows,
                there.file,
            )
        keys = self.keys(table)
        first = later.keys(table).slice(0, len(keys))
        if keys.type != first.type and not is_text(keys.type) | is_text(first.type):
            keys, first = keys.cast(pa.int64()), first.cast(pa.int64())
        return not len(keys) or first.equals(keys)

    def keys(self, table: str) -> pa.Array:
        """Returns the values of a table, in the order of their rows.

        Raises:
          DataError: if its vocabulary is not as it was written, or another table's.
        """
        vocabulary, path = self.vocabulary(table), self.folder / vocabulary_file(table)
        wanted = self.manifest.tables[table].rows - FIRST_ID
        if (
            "key" not in vocabulary.column_names
            or len(vocabulary) - vocabulary["key"].null_count != wanted
        ):
            raise DataError(
                f"{path}: must have a column 'key' with {wanted:,} values, has "
                f"{len(vocabulary):,} of {', '.join(vocabulary.column_names)}"
            )
        return vocabulary["key"].combine_chunks()

    def vocabulary(self, table: str) -> pa.Table:
        """Returns the file of a table's values.

        Raises:
          DataError: if it is not as it was written, or the manifest does not list it.
        """
        file = self.manifest.tables[table].file
        if file is None:
            raise DataError(
                f"{self.folder / FILE_NAME}: lists no vocabulary of table {table!r}"
            )
        return read_arrow(file.verified(self.folder, self.mend))
