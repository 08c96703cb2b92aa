"""Which row shard holds a row, and where in it: rows go in turn.

Row r of a table of n row shards is row ``r // n`` of row shard ``r % n``, so that all
row shards have as many rows, to within one. ``find`` and ``ids_of`` take NumPy's and
JAX's arrays and keep their integer type, 32-bit or 64-bit.
"""

from __future__ import annotations

from typing import Any


def find(ids: Any, row_shards: Any) -> tuple[Any, Any]:
    """``(row shard, row in it)`` of rows, both shaped like ``ids``.

    Args:
      ids: not negative; what becomes of negative ones is not defined.
      row_shards: of the table of each, broadcast against ``ids``.
    """
    row = ids // row_shards
    return ids - row * row_shards, row


def ids_of(row_shard: Any, row: Any, row_shards: Any) -> Any:
    """The inverse of ``find``."""
    return row * row_shards + row_shard
