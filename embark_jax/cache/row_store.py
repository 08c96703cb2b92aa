"""The rows of one device's block of a cached storage, by number.

A row holds its parameters and its optimizer state, one after the other, and moves as a
whole. Rows of the host tier are an array in memory, those of the disk tier a log.
Nothing of a store is left when its process ends; the checkpoint is what lasts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from embark_jax._base.errors import UserError
from embark_jax._base.memory import bytes_text
from embark_jax.cache.row_log import FLOAT32_BYTES, RowLog
from embark_jax.plans.options import Tier

ROWS_PER_COPY = 8192


class StoreError(UserError):
    """There is no room for the rows of a cached table."""


class RowStore(Protocol):
    """Rows of float32 values; one that was never written has no values.

    Attributes:
      rows: number of rows.
    """

    rows: int

    def holds(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[n]`` bool: whether the rows with these numbers were written."""
        ...

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[n, values]``, the rows with these numbers."""
        ...

    def write(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Overwrites rows with ``[n, values]``; each number must occur once."""
        ...

    def columns(self, columns: slice) -> np.ndarray:
        """Returns these values of all rows, ``[rows, columns]``, in place until the
        next write: a checkpoint reads them, or writes them and tells ``hold``."""
        ...

    def hold(self, numbers: np.ndarray) -> None:
        """Rows of these numbers were written by ``columns``, and no others."""
        ...


class ArrayStore:
    """Rows of an array in memory; see ``RowStore``.

    Args:
      rows: number of rows.
      values: number of values of a row.
    """

    def __init__(self, rows: int, values: int):
        self.rows = rows
        self._values = np.zeros((rows, values), np.float32)  # memory comes with writes
        self._held = np.zeros(rows, bool)

    def holds(self, numbers):
        return self._held[numbers]

    def read(self, numbers):
        return np.take(self._values, numbers, 0, mode="clip")

    def write(self, numbers, rows):
        self._values[numbers] = rows
        self._held[numbers] = True

    def columns(self, columns):
        return self._values[:, columns]

    def hold(self, numbers):
        self._held[:] = False
        self._held[numbers] = True


class StoreKind(NamedTuple):
    """A kind of row store.

    Attributes:
      make: ``(rows, values, folder) -> store``, without rows.
      in_memory: whether its rows take the host's memory.
    """

    make: Callable[[int, int, Path | None], RowStore]
    in_memory: bool


STORES: dict[Tier, StoreKind] = {
    "host": StoreKind(lambda rows, values, _: ArrayStore(rows, values), in_memory=True),
    "disk": StoreKind(RowLog, in_memory=False),
}
"""The registry of row stores, by tier."""


def make_store(
    tier: Tier, rows: int, values: int, folder: Path | None = None
) -> RowStore:
    """Makes a store without rows.

    Args:
      tier: tier of the rows.
      rows: number of rows.
      values: number of values of a row.
      folder: folder of files; None takes the system's folder for temporary files.

    Raises:
      StoreError: if memory or disk have no room.
    """
    try:
        return STORES[tier].make(rows, values, folder)
    except (OSError, MemoryError) as error:
        where = ""
        if tier == "disk":
            folder = folder or Path(tempfile.gettempdir())
            where = f" in {folder}, which take 2.5 times as much there"
        reason = getattr(error, "strerror", None) or error
        raise StoreError(
            f"no room for {bytes_text(FLOAT32_BYTES * rows * values)} of rows of "
            f"tier {tier}{where} ({reason})"
        ) from None


def copy_rows(store: RowStore, larger: RowStore) -> None:
    """Gives a store, of no fewer rows, all rows of another."""
    rows = store.columns(slice(None))
    for begin in range(0, store.rows, ROWS_PER_COPY):
        numbers = np.arange(begin, min(begin + ROWS_PER_COPY, store.rows))
        held = numbers[store.holds(numbers)]
        larger.write(held, rows[held])
