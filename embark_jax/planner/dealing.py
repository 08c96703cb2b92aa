"""Which row shard of a table holds a row, and where.

Rows go around the row shards in turn: row r of n row shards is row ``r // n`` of row
shard ``r % n``. Under a power law the first row shard then holds the hottest row of
all, and of every turn after it: of a million rows on 8 row shards, 1.7 times its share
at exponent 1.1.
Owners that pool for every id, those of RB, would wait for that one. So for RB

- the first rows are *dealt*: in the order of their ids, each goes to the row shard
  that lacks most of its share so far;
- a row shard whose hottest row is nearly a share by itself is *full*: it takes the
  last, coldest rows of the table, where the others take turns in all before;
- row shards may be dealt unequal *row loads*, so that they level their devices.

All row shards have as many rows as in turn. Ids are taken to follow frequency, as those
of vocabularies do (``data/prepare/vocabulary.py``); where they do not, any order is as
good as another.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from embark_jax.planner.storage import EVEN_LOAD, Cluster, Placement

DEALT_ROWS = 1024
"""Rows that are dealt one by one. Four times as many would make the largest share 3 %
smaller at most."""
EXPONENT = 1.1
"""Of the power law that is expected; published ones are 1.05 and 1.1 (NVIDIA's
distributed-embeddings, synthetic models; EMBark's released generator)."""
_SAME = np.arange(DEALT_ROWS, dtype=np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Dealing:
    """Where the rows of a table go; ids count from the hottest.

    Attributes:
      row_shards: of the table.
      full: so many row shards, the first ones, are full.
      first: ids below are dealt one by one.
      cold: ids from there on go around full row shards, those before around the others.
      last: ids from there on, which make no whole turn, go around all.
      order: ``[DEALT_ROWS]`` int32 position p of ids below ``first``, for row
        ``p // row_shards`` of row shard ``p % row_shards``.
    """

    row_shards: int
    full: int
    first: int
    cold: int
    last: int
    order: np.ndarray

    @property
    def limits(self) -> tuple[int, ...]:
        """All but the order: an argument of ``locate``."""
        return self.row_shards, self.full, self.first, self.cold, self.last

    def row_shares(self, rows: int) -> np.ndarray:
        """``[row_shards]`` share of the table's rows that each has."""
        more = np.arange(self.row_shards) < rows % self.row_shards
        return (rows // self.row_shards + more) / rows

    def row_shards_of(self, ids: np.ndarray) -> np.ndarray:
        """The row shard that holds each of some ids."""
        dealt = self.order[np.minimum(ids, DEALT_ROWS - 1)]
        return locate(np, ids, self.limits, dealt)[0]


@functools.lru_cache(maxsize=4096)
def in_turn(rows: int, row_shards: int) -> Dealing:
    """Of a table whose rows all go around in turn."""
    last = rows // row_shards * row_shards
    return Dealing(row_shards, 0, 0, last, last, _SAME)


@functools.lru_cache(maxsize=4096)
def deal(rows: int, row_shards: int, row_loads: tuple[int, ...] = ()) -> Dealing:
    """Of a table in RB, as far as whole rows go: under a power law row shards are asked
    for as ``row_loads`` say, in thousandths of an even share, or alike."""
    turns = min(rows, DEALT_ROWS) // row_shards
    if row_shards == 1 or turns < 2:
        return in_turn(rows, row_shards)
    first, last = turns * row_shards, rows // row_shards * row_shards
    asked = np.arange(1.0, first + 1) ** -EXPONENT
    beyond = _asked(first, last)
    share = (asked.sum() + beyond) / row_shards
    alone = asked[: row_shards - 1] + beyond / row_shards
    full = int((alone > share).sum()) if last > first else 0
    cold = last - full * (last - first) // row_shards
    loads = np.full(row_shards, _asked(first, cold) / (row_shards - full))
    loads[:full] = _asked(cold, last) / max(full, 1)
    wanted = share * np.array(row_loads or [EVEN_LOAD] * row_shards) / EVEN_LOAD
    order = _SAME.copy()
    # As if all had the coldest rows, in whose place warmer ones come.
    coldest = asked[-1]
    order[:first] = _by_load(asked - coldest, loads + turns * coldest - wanted, turns)
    return Dealing(row_shards, full, first, cold, last, order)


def dealing_in(
    cluster: Cluster, rows: int, row_shards: int, row_loads: tuple[int, ...] = ()
) -> Dealing:
    """UB sends an id once however hot it is, and DP sends none: rows go in turn."""
    if cluster != "rb":
        return in_turn(rows, row_shards)
    return deal(rows, row_shards, row_loads)


def dealing_of(placement: Placement) -> Dealing:
    """Of the table in its cluster."""
    return dealing_in(
        placement.cluster,
        placement.table.rows,
        placement.row_shards,
        placement.row_loads,
    )


def deals(placements: Sequence[Placement]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``[5, placements]`` int64 ``limits`` of each, ``[orders, DEALT_ROWS]`` different
    orders, and ``[placements]`` int32 which of them is whose."""
    found = [dealing_of(each) for each in placements]
    orders = {each.order.tobytes(): each.order for each in found}
    numbers = {order: number for number, order in enumerate(orders)}
    limits = np.array([each.limits for each in found], np.int64).T
    whose = [numbers[each.order.tobytes()] for each in found]
    return limits, np.stack([*orders.values()]), np.array(whose, np.int32)


def locate(xp: Any, ids: Any, limits: Sequence[Any], dealt: Any) -> tuple[Any, Any]:
    """``(row shard, row in it)`` of rows, as arrays like ``ids``.

    Args:
      xp: NumPy, or JAX's.
      ids: integers.
      limits: of the tables of each, broadcast against ``ids``.
      dealt: their positions in the order, of those below ``first``.
    """
    row_shards, full, first, cold, last = limits
    is_first, is_last = ids < first, ids >= last
    is_cold, around_all = (ids >= cold) & ~is_last, is_first | is_last
    # Around how many row shards a row goes, and the number of the row among those.
    around = xp.where(is_cold, xp.maximum(full, 1), row_shards - full)
    around = xp.where(around_all, row_shards, around)
    number = xp.where(is_last, ids, ids - xp.where(is_cold, cold, first))
    number = xp.where(is_first, dealt, number)
    turn = number // around
    row_shard = number - turn * around + xp.where(around_all | is_cold, 0, full)
    return row_shard, turn + xp.where(around_all, 0, first // row_shards)


def ids_at(xp: Any, row_shard: Any, row: Any, limits: Sequence[Any], dealt: Any) -> Any:
    """The inverse of ``locate``.

    Args:
      xp: NumPy, or JAX's.
      row_shard, row: in it.
      limits: as for ``locate``.
      dealt: id at each position below ``first``.
    """
    row_shards, full, first, cold, last = limits
    position = row * row_shards + row_shard
    turn = row - first // row_shards
    among_others = first + turn * (row_shards - full) + row_shard - full
    among_full = cold + turn * full + row_shard
    in_turns = xp.where(row_shard < full, among_full, among_others)
    return xp.where(
        position < first, dealt, xp.where(position < last, in_turns, position)
    )


def _asked(begin: float, end: float) -> float:
    """By the expected power law, for all ids from ``begin`` on, before ``end``."""
    power = 1 - EXPONENT
    return ((end + 0.5) ** power - (begin + 0.5) ** power) / power


def _by_load(asked: np.ndarray, loads: np.ndarray, turns: int) -> np.ndarray:
    """``[ids]`` positions: each id in turn goes to the row shard that lacks most. One
    that lacks nothing takes the coldest ids that are left.

    Args:
      asked: ``[ids]`` how often each is looked up, falling.
      loads: ``[row_shards]`` what each has already, above what it shall have.
      turns: ids that each takes.
    """
    row_shards = len(loads)
    order = np.zeros(len(asked), np.int32)
    held = [0] * row_shards
    first, last = 0, len(asked)
    lacking = [(load, j) for j, load in enumerate(loads.tolist())]
    heapq.heapify(lacking)
    while lacking:
        load, j = heapq.heappop(lacking)
        if load < 0:
            order[first] = held[j] * row_shards + j
            load += float(asked[first])
            held[j], first = held[j] + 1, first + 1
        if load < 0 and held[j] < turns:
            heapq.heappush(lacking, (load, j))
        else:
            coldest = np.arange(held[j], turns) * row_shards + j
            order[last - len(coldest) : last] = coldest
            last -= len(coldest)
    return order
