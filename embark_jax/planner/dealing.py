"""Which row shard holds a row, and where.

Rows go around the row shards in turn: the row at *position* p of a table with n row
shards is row ``p // n`` of row shard ``p % n``. Position and id of a row would be one,
were ids uniform. Under a power law the first row shard would then hold the hottest row
of all and of every turn after it: of 8 row shards, 1.7 times its share at exponent 1.1.
So the first rows change places among themselves: in the order of their ids, each goes
to the row shard that is asked for least so far.

Ids are taken to follow frequency, as they do where a vocabulary is sorted by it. Where
they do not, this is a permutation like any other.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.storage import Placement

DEALT_ROWS = 4096
"""Rows that change places; the rest would add 1 % of a share to few of the shards."""
EXPONENT = 1.1
"""Of the power law that they are dealt for; traces of ids have 1.05 to 1.1 (NVIDIA's
distributed-embeddings, synthetic models; EMBark, section 5)."""


@functools.lru_cache(maxsize=1024)
def positions(rows: int, row_shards: int) -> np.ndarray:
    """``[DEALT_ROWS]`` int32 position of each of the first ids; that of any other id is
    the id.

    Args:
      rows: of the table; those beyond the first make no difference.
      row_shards: that they are dealt to.
    """
    order = np.arange(DEALT_ROWS, dtype=np.int32)
    most = min(rows, DEALT_ROWS) // row_shards
    if row_shards > 1 and most > 1:
        held = [0] * row_shards
        asked = [(0.0, j) for j in range(row_shards)]
        weights = np.arange(1, most * row_shards + 1) ** -EXPONENT
        for id, weight in enumerate(weights.tolist()):
            load, j = asked[0]
            order[id] = held[j] * row_shards + j
            held[j] += 1
            if held[j] < most:
                heapq.heapreplace(asked, (load + weight, j))
            else:
                heapq.heappop(asked)
    order.setflags(write=False)
    return order


def deals(placements: Sequence[Placement]) -> tuple[np.ndarray, np.ndarray]:
    """``[deals, DEALT_ROWS]`` positions of first ids, each way to deal them once, and
    ``[placements]`` int32 which of them is whose."""
    splits = [(min(p.table.rows, DEALT_ROWS), p.row_shards) for p in placements]
    different = sorted(set(splits))
    ways = [different.index(split) for split in splits]
    return np.stack([positions(*each) for each in different]), np.array(ways, np.int32)


def row_shards_of(ids: np.ndarray, rows: int, row_shards: int) -> np.ndarray:
    """Which row shard holds each of some ids."""
    first = np.minimum(ids, DEALT_ROWS - 1)
    position = np.where(ids < DEALT_ROWS, positions(rows, row_shards)[first], ids)
    return position % row_shards
