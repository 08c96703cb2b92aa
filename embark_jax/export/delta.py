"""What has changed in a model's tables since an earlier checkpoint or export.

The rows of both are read range by range, and compared bit by bit. Training does nothing
for it, and any two checkpoints of a run will do, at the price of reading both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from embark_jax._base.storage import local
from embark_jax.export.description import (
    FILE_NAME,
    Description,
    ExportError,
    read_description,
)
from embark_jax.export.lookup import LookupTable, read_table
from embark_jax.plans.tables import TableSpec
from embark_jax.run.saved import SavedModel

Rows = Callable[[range], np.ndarray]
"""``numbers -> rows``, with NaN for rows that were not there."""


class Earlier(NamedTuple):
    """The tables that others are compared with.

    Attributes:
      step: their step.
      shapes: rows, None for a dynamic table, and dim by table.
      rows: of a later checkpoint and a table, the earlier rows by their numbers in the
        later one. It raises ``ExportError`` if the table is of another run.
    """

    step: int
    shapes: dict[str, tuple[int | None, int]]
    rows: Callable[[SavedModel, TableSpec], Rows]


def _rows_of_checkpoint(then: SavedModel, now: SavedModel, table: TableSpec) -> Rows:
    if not table.is_dynamic:
        return lambda numbers: then.rows(table, numbers)
    keys = then.keys(table)
    if not np.array_equal(keys, now.keys(table)[: len(keys)]):
        raise ExportError(
            f"table {table.name!r}: had other keys at step {then.step}, so that was "
            "another run"
        )

    def read(numbers: range) -> np.ndarray:
        rows = np.full((len(numbers), table.dim), np.nan, np.float32)
        stored = range(numbers.start, min(numbers.stop, len(keys)))
        if stored:
            rows[: len(stored)] = then.rows(table, stored)
        return rows

    return read


def _rows_of_export(
    folder: Path, description: Description, now: SavedModel, table: TableSpec
) -> Rows:
    rows = read_table(folder, description, table.name)
    if not table.is_dynamic:
        return lambda numbers: rows.values[numbers.start : numbers.stop]
    keys = now.keys(table)
    return lambda numbers: rows[keys[numbers.start : numbers.stop]]


def earlier(since: str, checkpoints: PathLike[str]) -> Earlier:
    """Opens what ``--since`` names.

    Args:
      since: a step, the folder of a checkpoint, or that of an export.
      checkpoints: checkpoints of the run: they have the rows of a step, and those of
        an export which has changes alone, or rows in 8 bits.

    Raises:
      ExportError, CheckpointError: if there is no such thing.
    """
    folder, step = local(since), since
    if (folder / FILE_NAME).exists():
        description = read_description(folder)
        if description.since is None and description.row_format == "float32":
            shapes_then = {n: (t.rows, t.dim) for n, t in description.tables.items()}
            rows = functools.partial(_rows_of_export, folder, description)
            return Earlier(description.step, shapes_then, rows)
        step = str(description.step)
    elif folder.is_dir():
        checkpoints, step = folder.absolute().parent, folder.absolute().name
    if not step.isdecimal():
        raise ExportError(
            f"--since {since}: must be a step, or the folder of a checkpoint or export"
        )
    then = SavedModel(checkpoints, int(step))
    rows = functools.partial(_rows_of_checkpoint, then)
    return Earlier(then.step, shapes(then), rows)


def shapes(saved: SavedModel) -> dict[str, tuple[int | None, int]]:
    """Returns rows, None for a dynamic table, and dim by table."""
    return {
        table.name: (None if table.is_dynamic else table.rows, table.dim)
        for table in saved.tables
    }


def check(now: SavedModel, then: Earlier) -> None:
    """Raises ``ExportError`` unless the one can have become of the other."""
    if then.shapes != shapes(now):
        raise ExportError("--since: has tables of another model")
    if then.step > now.step:
        raise ExportError(
            f"--since: is of step {then.step}, later than the step {now.step} to export"
        )


def changed_rows(now: SavedModel, then: Earlier, table: TableSpec) -> LookupTable:
    """Returns the rows that have changed; their keys are row numbers of a table that is
    not dynamic."""
    before = then.rows(now, table)

    def compare(numbers: range) -> tuple[np.ndarray, np.ndarray]:
        rows = now.rows(table, numbers)
        differs = rows.view(np.uint32) != before(numbers).view(np.uint32)
        changed = np.flatnonzero(differs.any(axis=1))
        return numbers.start + changed, rows[changed]

    changes = list(now.map_rows(table, compare))
    no_numbers, no_rows = np.empty(0, np.int64), np.empty((0, table.dim), np.float32)
    numbers = np.concatenate([no_numbers, *(numbers for numbers, _ in changes)])
    rows = np.concatenate([no_rows, *(rows for _, rows in changes)])
    if not table.is_dynamic:
        return LookupTable(rows, keys=numbers)
    keys = now.keys(table)[numbers]
    order = np.argsort(keys)
    return LookupTable(rows[order], keys=keys[order])
