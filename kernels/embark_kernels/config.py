"""Block sizes of the kernels, from a heuristic or a tuner."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LookupConfig:
    """Block sizes of ``sum_bags`` and ``pooled_lookup``.

    Attributes:
      bags_per_block: consecutive bags that one block sums; each of its four warps, if
        rows are narrow.
      rows_in_flight: rows that a block or warp reads before it adds them up.

    Raises:
      ValueError: if a number is less than one.
    """

    bags_per_block: int
    rows_in_flight: int

    def __post_init__(self):
        _require_positive(self)

    @classmethod
    def heuristic(cls, width: int, ids: int, bags: int) -> LookupConfig:
        """Takes some 128 ids at a time, and some 16 values per thread in flight."""
        ids_per_bag = max(1, ids // max(1, bags))
        return cls(max(1, min(64, 128 // ids_per_bag)), _rows_in_flight(width, 16))


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
    """Block sizes of ``update_rows``.

    Attributes:
      rows_per_block: rows that one block updates; each of its four warps, if rows are
        narrow.
      rows_in_flight: rows that a block or warp reads before it updates them.

    Raises:
      ValueError: if a number is less than one.
    """

    rows_per_block: int
    rows_in_flight: int

    def __post_init__(self):
        _require_positive(self)

    @classmethod
    def heuristic(cls, width: int) -> UpdateConfig:
        """Takes fewer rows in flight than a lookup: each has a gradient and states."""
        rows = _rows_in_flight(width, 8)
        return cls(4 * rows, rows)


def _rows_in_flight(width: int, values_per_thread: int) -> int:
    return max(2, min(values_per_thread, values_per_thread * 128 // width))


def _require_positive(config: LookupConfig | UpdateConfig) -> None:
    for name, value in dataclasses.asdict(config).items():
        if value < 1:
            raise ValueError(f"{name} is {value}, must be at least 1")
