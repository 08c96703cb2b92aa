"""Block sizes of the kernels. They change no result."""

from __future__ import annotations


def lookup_blocks(width: int, ids: int, bags: int) -> tuple[int, int]:
    """Returns how many bags a program sums, some 128 ids, and how many rows it reads
    before it adds them up, some 16 values a thread."""
    ids_per_bag = max(1, ids // max(1, bags))
    return max(1, min(64, 128 // ids_per_bag)), _rows_in_flight(width, 16)


def update_blocks(width: int) -> tuple[int, int]:
    """Returns how many rows a program updates, and how many it reads before it updates
    them: fewer than in a lookup, since each has a gradient and states."""
    rows = _rows_in_flight(width, 8)
    return 4 * rows, rows


def _rows_in_flight(width: int, values_per_thread: int) -> int:
    return max(2, min(values_per_thread, values_per_thread * 128 // width))
