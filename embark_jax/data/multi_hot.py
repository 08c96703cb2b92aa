"""Makes bags from single ids, as MLPerf makes Criteo's click logs multi-hot.

For each row of a table, MLPerf draws once the other ids of the bag that the row
becomes, uniformly from the table, and writes all bags to disk: 3.8 TB
(https://github.com/mlcommons/training/tree/master/recommendation_v2/torchrec_dlrm).
Here those ids are a hash of the row, so reading makes them from one id.
"""

from __future__ import annotations

import zlib

import numpy as np

from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64


def bags_of(ids: np.ndarray, table: str, rows: int, hotness: int) -> np.ndarray:
    """Returns ``[samples, hotness]`` ids: each id, and then those that belong to it.

    Args:
      ids: ``[samples]`` ids of the table.
      table: its name; other tables have other bags.
      rows: number of rows of the table.
      hotness: number of ids per bag.
    """
    seed = np.uint64(zlib.crc32(table.encode()) << 32)
    counters = ids.astype(np.uint64)[:, None] * np.uint64(hotness) + seed
    counters = counters + np.arange(hotness, dtype=np.uint64)
    bags = splitmix64(counters * GOLDEN_GAMMA) % np.uint64(rows)
    bags[:, 0] = ids
    return bags.astype(ids.dtype)
