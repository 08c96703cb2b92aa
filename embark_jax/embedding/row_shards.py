"""The row shard that holds a row, and the row's index in it: rows go round robin.

Row r of a table of n row shards is row ``r // n`` of row shard ``r % n``, so that all
row shards have equally many rows, to within one. ``find`` and ``ids_of`` take NumPy's
and JAX's arrays and keep their integer type, 32-bit or 64-bit.
"""

from __future__ import annotations

from typing import Any


def find(ids: Any, row_shards: Any) -> tuple[Any, Any]:
    """Returns ``(row shard, row in it)`` of rows, both shaped like ``ids``.

    Args:
      ids: row numbers, not negative; the result for negative ones is not defined.
      row_shards: number of row shards of each id's table, broadcast against ``ids``.
    """
    row = ids // row_shards
    return ids - row * row_shards, row


def ids_of(row_shard: Any, row: Any, row_shards: Any) -> Any:
    """Inverts ``find``."""
    return row * row_shards + row_shard
