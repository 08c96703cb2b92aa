"""What has changed in a model's tables since an earlier checkpoint or export.

The rows of both are read piece by piece, and compared bit by bit. Training does nothing
for it, and any two checkpoints of a run will do, at the price of reading both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from embark_jax._base.storage import local
from embark_jax.export.errors import ExportError
from embark_jax.export.lookup import read_table
from embark_jax.export.reading import DESCRIPTION, KEYS, read_description
from embark_jax.plans.tables import TableSpec
from embark_jax.run.saved import SavedModel


class Earlier(Protocol):
    """The tables that others are compared with.

    Attributes:
      step: their step.
      shapes: rows, None for a dynamic table, and dim by table.
    """

    step: int
    shapes: dict[str, tuple[int | None, int]]

    def rows(self, now: SavedModel, table: TableSpec) -> Callable[[range], np.ndarray]:
        """Returns a function from numbers of rows in ``now`` to these rows, with NaN
        for those that were not there.

        Raises:
          ExportError: if the table is of another run.
        """
        ...


class _Checkpoint:
    def __init__(self, saved: SavedModel):
        self._saved, self.step = saved, saved.step
        self.shapes = shapes(saved)

    def rows(self, now: SavedModel, table: TableSpec) -> Callable[[range], np.ndarray]:
        if not table.is_dynamic:
            return lambda piece: self._saved.rows(table, piece)
        keys = self._saved.keys(table)
        if not np.array_equal(keys, now.keys(table)[: len(keys)]):
            raise ExportError(
                f"table {table.name!r}: had other keys at step {self.step}, so that "
                "was another run"
            )

        def read(piece: range) -> np.ndarray:
            rows = np.full((len(piece), table.dim), np.nan, np.float32)
            known = range(piece.start, min(piece.stop, len(keys)))
            if known:
                rows[: len(known)] = self._saved.rows(table, known)
            return rows

        return read


class _Export:
    def __init__(self, folder: Path, description: dict):
        self._folder, self._tables = folder, description["tables"]
        self.step = description["step"]
        self.shapes = {n: (t["rows"], t["dim"]) for n, t in self._tables.items()}

    def rows(self, now: SavedModel, table: TableSpec) -> Callable[[range], np.ndarray]:
        rows = read_table(self._folder, table.name, self._tables[table.name])
        if not table.is_dynamic:
            return lambda piece: rows[piece.start : piece.stop]
        keys = now.keys(table)
        return lambda piece: rows[keys[piece.start : piece.stop]]


@contextmanager
def earlier(since: str, checkpoints: Path) -> Iterator[Earlier]:
    """Opens what ``--since`` names.

    Args:
      since: a step, the folder of a checkpoint, or that of an export.
      checkpoints: checkpoints of the run, which are asked for a step, and for that of
        an export which has changes alone.

    Raises:
      ExportError, CheckpointError: if there is no such thing.
    """
    folder, step = local(since), since
    if (folder / DESCRIPTION).exists():
        description = read_description(folder)
        if "since" not in description:
            yield _Export(folder, description)
            return
        step = str(description["step"])
    elif folder.is_dir():
        checkpoints, step = folder.absolute().parent, folder.absolute().name
    if not step.isdecimal():
        raise ExportError(
            f"--since {since}: must be a step, or the folder of a checkpoint or export"
        )
    with SavedModel(checkpoints, int(step)) as saved:
        yield _Checkpoint(saved)


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


def changed_rows(
    now: SavedModel, then: Earlier, table: TableSpec
) -> dict[str, np.ndarray]:
    """Returns the contents of a table's file: numbers, or keys, of the rows that have
    changed, in ascending order, and these rows."""
    before = then.rows(now, table)

    def compare(piece: range) -> tuple[np.ndarray, np.ndarray]:
        rows = now.rows(table, piece)
        bits = (each.view(np.uint32) for each in (rows, before(piece)))
        changed = np.flatnonzero(np.not_equal(*bits).any(axis=1))
        return piece.start + changed, rows[changed]

    found = list(now.each_piece(table, compare))
    empty = np.empty(0, np.int64), np.empty((0, table.dim), np.float32)
    numbers, rows = map(np.concatenate, zip(empty, *found, strict=True))
    if table.is_dynamic:
        keys = now.keys(table)[numbers]
        order = np.argsort(keys)
        numbers, rows = keys[order], rows[order]
    return {KEYS: numbers, table.name: rows}
