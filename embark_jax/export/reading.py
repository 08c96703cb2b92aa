"""Reads an export, and the deltas after it: exports that have changed rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from embark_jax._base.agreement import EXPORT, differences, parts
from embark_jax._base.bucket_copy import local_copy
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


def read_exports(
    folder: str | PathLike[str], deltas: Sequence[str | PathLike[str]] = ()
) -> list[Export]:
    """Reads an export and its deltas, and compares all files with their SHA-256. But
    for rows, the last one has all of the model.

    Raises:
      DataError: if the folder is no export, or a file is not as it was written.
      ExportError: if a delta does not follow the export before it.
    """
    exports: list[Export] = []
    for path in (folder, *deltas):
        copy = local_copy(path)
        now = read_description(copy)
        if exports:
            check_grown(str(path), now.tables, now.row_format, exports[-1])
        before = exports[-1].description.checksum if exports else None
        if now.follows != before:
            raise ExportError(
                f"{path}: follows the export {now.follows or 'none, since it is whole'}"
                f", must follow {before or 'none'}; give a whole export, then its "
                "deltas in their order"
            )
        exports.append(Export(copy, now))
    return exports


def check_grown(
    name: str,
    tables: Mapping[str, ExportedTable],
    row_format: RowFormat,
    before: Export,
) -> None:
    """Raises ``ExportError`` unless tables may be those of an export, later: rows of
    tables that are not dynamic may have become more."""

    def fixed(tables: Mapping[str, ExportedTable], row_format: RowFormat):
        shapes = {
            name: {"dim": table.dim, "dynamic": table.rows is None}
            for name, table in tables.items()
        }
        return parts({"row_format": row_format, "tables": shapes}, EXPORT)

    earlier, there = before.description, f"in {before.folder}"
    theirs = fixed(earlier.tables, earlier.row_format)
    found = differences(theirs, fixed(tables, row_format), there)
    for table in tables.keys() & earlier.tables.keys():
        then, now = earlier.tables[table].rows or 0, tables[table].rows or 0
        if now < then:
            found.append(f"tables.{table}.rows is {then:,} {there}, {now:,} here")
    if found:
        raise ExportError(f"{name}: {'; '.join(found)}; export the run whole")


def read_table(exports: Sequence[Export], name: str) -> LookupTable:
    """Returns the rows of a table.

    Raises:
      ExportError: if a file has other arrays than its description says.
    """
    first, *deltas = exports
    table = _read_rows(*first, name)
    for delta in deltas:
        table = table.updated(_read_rows(*delta, name))
        expected = delta.description.tables[name].rows
        if expected not in (None, len(table.values)):
            raise ExportError(
                f"{delta.folder / table_file(name)}: the table has "
                f"{len(table.values):,} rows with it, must have {expected:,}; {MEND}"
            )
    return table


def _read_rows(folder: Path, description: Description, name: str) -> LookupTable:
    """Returns the rows that one export has of a table."""
    table, path = description.tables[name], folder / table_file(name)
    arrays = read_arrays(path)
    has_keys = table.rows is None or description.follows is not None
    rows = np.size(arrays.get("rows", ())) // table.dim if has_keys else table.rows
    expected: dict[str, tuple[str, tuple[int | None, ...]]] = {
        "rows": (description.row_format, (rows, table.dim))
    }
    if description.row_format == "int8":
        expected["scales"] = "float32", (rows,)
    if has_keys:
        expected["keys"] = "int64", (rows,)
    for array, (dtype, shape) in expected.items():
        found = arrays.get(array)
        actual = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
        if actual != f"{dtype} {list(shape)}":
            raise ExportError(
                f"{path}: array {array!r} is {actual}, must be {dtype} {list(shape)}; "
                f"{MEND}"
            )
    keys = arrays["keys"] if has_keys else np.empty(0, np.int64)
    ascending, end = (keys[1:] > keys[:-1]).all(), table.rows
    fits = end is None or not len(keys) or (keys[0] >= 0 and keys[-1] < end)
    if not (ascending and fits):
        limits = "" if end is None else f", and from 0 to {end - 1:,}"
        raise ExportError(f"{path}: keys must be ascending{limits}")
    given = {array: arrays[array] for array in expected}
    return LookupTable(given["rows"], given.get("scales"), given.get("keys"))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file.

    Raises:
      ExportError: if the file is no such file, or arrays reach beyond it.
    """
    try:
        return load_file(path)
    except (SafetensorError, KeyError) as error:  # KeyError: of numbers NumPy lacks
        raise ExportError(
            f"{path}: safetensors does not take it ({error}); {MEND}"
        ) from None
