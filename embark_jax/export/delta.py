"""What has changed in a model's tables since an earlier checkpoint or export.

The rows of both are read range by range, and compared bit by bit. Training does nothing
for it, and any two checkpoints of a run will do, at the price of reading both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from os import PathLike
from typing import NamedTuple

import numpy as np

from embark_jax._base.storage import local
from embark_jax.export.chain import Chain
from embark_jax.export.description import (
    FILE_NAME,
    ExportError,
    read_description,
)
from embark_jax.export.lookup import LookupTable, quantized, read_table
from embark_jax.export.run_scorer import lookup_table
from embark_jax.plans.options import RowFormat
from embark_jax.plans.tables import TableSpec
from embark_jax.run.saved import SavedModel

Rows = Callable[[range], np.ndarray]
"""``numbers -> rows``."""


class Earlier(NamedTuple):
    """The tables that others are compared with.

    Attributes:
      step: their step.
      shapes: rows, None for a dynamic table, and dim by table.
      rows: of a table the earlier rows by number.
      by_key: of a dynamic table the earlier rows by key.
      row_format: format of the earlier rows: those that are alike in it are the same.
      parent: digest of the last export of a chain, which is compared with.
    """

    step: int
    shapes: dict[str, tuple[int | None, int]]
    rows: Callable[[TableSpec], Rows]
    by_key: Callable[[TableSpec], LookupTable]
    row_format: RowFormat = "float32"
    parent: str | None = None


def since_last(chain: Chain) -> Earlier:
    """Returns the tables after the last export of a chain.

    Raises:
      DataError: if a file of the chain is not as it was written.
    """
    chain.verify()
    last = chain.last.description
    shapes_then = {name: (t.rows, t.dim) for name, t in last.tables.items()}

    def by_key(table: TableSpec) -> LookupTable:
        rows = chain.table(table.name)
        return LookupTable(rows.rows(np.arange(len(rows.values))), keys=rows.keys)

    def rows(table: TableSpec) -> Rows:
        stored = chain.table(table.name)

        def read(numbers: range) -> np.ndarray:
            before = np.full((len(numbers), table.dim), np.nan, np.float32)
            there = np.arange(numbers.start, min(numbers.stop, stored.ids))
            before[: len(there)] = stored.rows(there)
            return before

        return read

    digest = chain.last.digest
    return Earlier(last.step, shapes_then, rows, by_key, last.row_format, digest)


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

            def by_key(table: TableSpec) -> LookupTable:
                return read_table(folder, description, table.name)

            def rows(table: TableSpec) -> Rows:
                values = by_key(table).values
                return lambda numbers: values[numbers.start : numbers.stop]

            return Earlier(description.step, shapes_then, rows, by_key)
        step = str(description.step)
    elif folder.is_dir():
        checkpoints, step = folder.absolute().parent, folder.absolute().name
    if not step.isdecimal():
        raise ExportError(
            f"--since {since}: must be a step, or the folder of a checkpoint or export"
        )
    then = SavedModel(checkpoints, int(step))
    return Earlier(
        then.step,
        shapes(then),
        lambda table: functools.partial(then.rows, table),
        lambda table: lookup_table(then, table),
    )


def shapes(saved: SavedModel) -> dict[str, tuple[int | None, int]]:
    """Returns rows, None for a dynamic table, and dim by table."""
    return {
        table.name: (None if table.is_dynamic else table.rows, table.dim)
        for table in saved.tables
    }


def check(now: SavedModel, then: Earlier) -> None:
    """Raises ``ExportError`` unless the one can have become of the other. Tables may
    have grown along a chain, where a run starts from the run before."""
    own, grown = shapes(now), shapes(now)
    if then.parent is not None:
        for name, (rows, dim) in then.shapes.items():
            if rows is not None and (own.get(name, (0, dim))[0] or 0) >= rows:
                grown[name] = rows, own[name][1]
    if then.shapes != grown:
        raise ExportError(
            f"--since: has tables of another model: {then.shapes}, this one {own}; "
            "dims must be the same, and in a chain rows may only become more"
        )
    if then.parent is None and then.step > now.step:
        raise ExportError(
            f"--since: is of step {then.step}, later than the step {now.step} to export"
        )


def changed_rows(now: SavedModel, then: Earlier, table: TableSpec) -> LookupTable:
    """Returns the rows that have changed; their keys are row numbers of a table that is
    not dynamic. Rows that a dynamic table has forgotten begin anew."""

    def as_written(rows: np.ndarray) -> np.ndarray:
        if then.row_format == "float32":
            return rows
        return LookupTable(*quantized(rows)).rows(np.arange(len(rows)))

    if table.is_dynamic:
        rows_now = lookup_table(now, table)
        written = LookupTable(as_written(rows_now.values), keys=rows_now.keys)
        return _changed_by_key(rows_now, written, then.by_key(table))
    before = then.rows(table)

    def compare(numbers: range) -> tuple[np.ndarray, np.ndarray]:
        rows = now.rows(table, numbers)
        changed = np.flatnonzero(_differ(as_written(rows), before(numbers)))
        return numbers.start + changed, rows[changed]

    changes = list(now.map_rows(table, compare))
    no_numbers, no_rows = np.empty(0, np.int64), np.empty((0, table.dim), np.float32)
    numbers = np.concatenate([no_numbers, *(numbers for numbers, _ in changes)])
    rows = np.concatenate([no_rows, *(rows for _, rows in changes)])
    return LookupTable(rows, keys=numbers)


def _changed_by_key(
    now: LookupTable, written: LookupTable, then: LookupTable
) -> LookupTable:
    """Returns the rows that differ, in the form in which they are ``written``."""
    assert now.keys is not None
    assert then.keys is not None
    numbers, present = then.find(now.keys)
    changed = ~present
    changed[present] = _differ(written.values[present], then.values[numbers[present]])
    keys = np.concatenate([now.keys[changed], np.setdiff1d(then.keys, now.keys)])
    keys.sort()
    return LookupTable(now[keys], keys=keys)


def _differ(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    return (rows.view(np.uint32) != others.view(np.uint32)).any(axis=1)
