"""Reads an export, and the deltas after it: exports that have changed rows alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from embark_jax._base.bucket_copy import local_copy
from embark_jax.export.arrays import checked_array, read_arrays
from embark_jax.export.description import (
    MEND,
    Description,
    ExportedTable,
    ExportError,
    read_description,
    table_file,
)
from embark_jax.export.lookup import LookupTable
from embark_jax.plans.options import RowFormat


class Export(NamedTuple):
    """One export: its folder on this machine, and what its ``model.json`` says."""

    folder: Path
    description: Description


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A model as an export and the deltas after it have it.

    Attributes:
      exports: the export, and the deltas in their order. But for rows, the last one has
        all of the model.
    """

    exports: tuple[Export, ...]

    @classmethod
    def read(
        cls, folder: str | PathLike[str], deltas: Sequence[str | PathLike[str]] = ()
    ) -> ExportedModel:
        """Reads an export and its deltas, and compares all files with their SHA-256.

        Raises:
          DataError: if the folder is no export, or a file is not as it was written.
          ExportError: if a delta does not follow the export before it.
        """
        exports: list[Export] = []
        for path in (folder, *deltas):
            copy = local_copy(path)
            description = read_description(copy)
            if not exports:
                if description.follows is not None:
                    raise ExportError(
                        f"{path}: has only the rows that have changed since the export "
                        f"{description.follows}; load that one, and this as its delta"
                    )
            else:
                before = exports[-1]
                if description.follows != before.description.checksum:
                    follows = description.follows or "none, since it is whole"
                    raise ExportError(
                        f"{path}: follows the export {follows}, must follow "
                        f"{before.description.checksum}, which is {before.folder}; "
                        "give an export, then its deltas in their order"
                    )
                check_grown(
                    str(path), description.tables, description.row_format, before
                )
            exports.append(Export(copy, description))
        return cls(tuple(exports))

    @property
    def last(self) -> Export:
        """The export that nothing follows."""
        return self.exports[-1]

    def table(self, name: str) -> LookupTable:
        """Returns the rows of a table.

        Raises:
          ExportError: if a file has other arrays than its description says.
        """
        first, *deltas = self.exports
        rows = _read_table(*first, name)
        for delta in deltas:
            rows = rows.updated(_read_table(*delta, name))
            expected = delta.description.tables[name].rows
            if expected not in (None, len(rows.values)):
                raise ExportError(
                    f"{delta.folder / table_file(name)}: the table has "
                    f"{len(rows.values):,} rows with it, must have {expected:,}; {MEND}"
                )
        return rows


def check_grown(
    name: str,
    tables: Mapping[str, ExportedTable],
    row_format: RowFormat,
    before: Export,
) -> None:
    """Raises ``ExportError`` unless tables may be those of an export, later: rows of
    tables that are not dynamic may have become more."""

    def refuse(what: str) -> None:
        raise ExportError(f"{name}: {what} in {before.folder}; export the run whole")

    earlier = before.description
    if row_format != earlier.row_format:
        refuse(f"rows are {row_format}, but {earlier.row_format}")
    if tables.keys() != earlier.tables.keys():
        refuse(f"tables are {', '.join(tables)}, but {', '.join(earlier.tables)}")
    for table, now in tables.items():
        then = earlier.tables[table]
        if now.dim != then.dim:
            refuse(f"table {table!r} has dim {now.dim}, but {then.dim}")
        if (now.rows is None) != (then.rows is None):
            refuse(f"table {table!r} is dynamic either here or")
        if now.rows is not None and then.rows is not None and now.rows < then.rows:
            refuse(f"table {table!r} has {now.rows:,} rows, but {then.rows:,}")


def _read_table(folder: Path, description: Description, name: str) -> LookupTable:
    """Returns the rows that one export has of a table."""
    table, path = description.tables[name], folder / table_file(name)
    arrays = read_arrays(path)
    has_keys = table.rows is None or description.follows is not None
    shape = None if has_keys else table.rows, table.dim
    values = checked_array(path, arrays, "rows", shape, description.row_format)
    scales = keys = None
    if description.row_format == "int8":
        scales = checked_array(path, arrays, "scales", values.shape[:1], "float32")
    if has_keys:
        keys = checked_array(path, arrays, "keys", values.shape[:1], "int64")
        ascending, end = (keys[1:] > keys[:-1]).all(), table.rows
        fits = end is None or not len(keys) or (keys[0] >= 0 and keys[-1] < end)
        if not (ascending and fits):
            limits = "" if end is None else f", and from 0 to {end - 1:,}"
            raise ExportError(f"{path}: keys must be ascending{limits}")
    return LookupTable(values, scales, keys)
