"""Hot rows that are listed: row numbers become positions, and positions row numbers.

A row's *position* is its index among its table's rows with hot rows first, both kinds
in the order of numbers: if rows 1 and 4 of 6 are hot, rows 1, 4, 0, 2, 3, 5 have the
positions 0 to 5. Behind this module everything uses positions; where hot rows are the
first ones, they are the numbers.

The index is a sorted array of hot rows, and the first element there of each bucket of
row numbers (those of equal high bits). There are about as many buckets as hot rows, so
that a bucket has few of them unless they lie together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import PADDING_ID, FeatureSpec


@dataclasses.dataclass(frozen=True, eq=False)
class HotKeys:
    """The index of several tables; all arrays become constants of the program.

    Attributes:
      tables: number of each table in ``first`` and the like, by name.
      keys: ``[keys + 1]`` hot rows, ascending in each table; the last is none.
      rank: ``[keys + 1]`` rank of each key among those of its table.
      first: ``[tables + 1]`` index of the first key of each table.
      shift: ``[tables]`` low bits of a row number that do not choose a bucket.
      first_bucket: ``[tables]`` index of the first bucket of each table.
      bucket_start: ``[buckets]`` first key of each, and after those of a table its end.
      fullest: number of keys in the bucket that has the most.
      wide: whether a table has more rows than 32 bits number.
    """

    tables: dict[str, int]
    keys: np.ndarray
    rank: np.ndarray
    first: np.ndarray
    shift: np.ndarray
    first_bucket: np.ndarray
    bucket_start: np.ndarray
    fullest: int
    wide: bool

    def positions_of(
        self, ids: Mapping[str, jax.Array], features: Sequence[FeatureSpec]
    ) -> dict[str, jax.Array]:
        """Returns the ids of features that have equally many rows of ids, as positions
        where hot rows are listed."""
        own = {f.name: ids[f.name] for f in features}
        listed = [f for f in features if f.table in self.tables]
        if not listed:
            return own
        wide = self.wide or any(ids[f.name].dtype == jnp.int64 for f in listed)
        with jax.enable_x64(wide):
            integer = jnp.int64 if wide else jnp.int32
            columns = [ids[f.name].astype(integer) for f in listed]
            counts = [column.shape[1] for column in columns]
            table = np.repeat([self.tables[f.table] for f in listed], counts)
            positions = self.positions(jnp.concatenate(columns, axis=1), table)
            by_feature = jnp.split(positions, np.cumsum(counts)[:-1].tolist(), axis=1)
        names = [f.name for f in listed]
        return {**own, **dict(zip(names, by_feature, strict=True))}

    def positions(self, ids: jax.Array, table: np.ndarray) -> jax.Array:
        """Returns the positions of rows of tables, shaped like ``ids``.

        Args:
          ids: ``[batch, columns]`` int32 or int64, -1 where padded.
          table: ``[columns]`` number of the table of each column.
        """
        with jax.enable_x64(ids.dtype == jnp.int64):
            shift = jnp.asarray(self.shift[None, table], ids.dtype)
            bucket = (jnp.maximum(ids, 0) >> shift).astype(jnp.int32)
            bucket += jnp.asarray(self.first_bucket[None, table], jnp.int32)
            start = jnp.asarray(self.bucket_start, jnp.int32)
            keys = jnp.asarray(self.keys, ids.dtype)
            low = _search(
                start[bucket], start[bucket + 1], self.fullest, lambda i: keys[i] < ids
            )
            first = jnp.asarray(self.first[None, table], jnp.int32)
            end = jnp.asarray(self.first[None, table + 1], jnp.int32)
            hot = (low < end) & (keys[low] == ids)
            rank = (low - first).astype(ids.dtype)
            cold = (end - first).astype(ids.dtype) + ids - rank
            return jnp.where(ids < 0, PADDING_ID, jnp.where(hot, rank, cold))

    def rows(self, position: jax.Array, table: jax.Array) -> jax.Array:
        """Returns the rows at positions of tables, the inverse; all are int64."""
        first = jnp.asarray(self.first)[table]
        count = jnp.asarray(self.first)[table + 1] - first
        keys, rank = jnp.asarray(self.keys), jnp.asarray(self.rank)
        cold = position - count
        max_count = int(np.diff(self.first).max(initial=0))
        # Counts hot rows before a cold one: those with no more cold ones before.
        low = _search(
            first, first + count, max_count, lambda i: keys[i] - rank[i] <= cold
        )
        hot = jnp.minimum(first + position, len(self.keys) - 1)
        return jnp.where(position < count, keys[hot], cold + low - first)


def _search(low, high, max_length, is_before):
    """Finds in each ``[low, high)``, at most ``max_length`` long, the first not
    before."""
    for _ in range(int(max_length).bit_length()):
        middle = (low + high) // 2
        right = (low < high) & is_before(middle)
        low, high = jnp.where(right, middle + 1, low), jnp.where(right, high, middle)
    return low


def index_hot_rows(placements: Sequence[Placement]) -> HotKeys:
    """Builds the index of those tables whose hot rows are listed."""
    listed = [placement for placement in placements if placement.hot_ids]
    keys = [np.array(placement.hot_ids, np.int64) for placement in listed]
    first = np.cumsum([0, *map(len, keys)])
    shifts, starts = [], []
    for i, placement in enumerate(listed):
        wanted = len(keys[i]).bit_length()
        shift = max(0, (placement.table.rows - 1).bit_length() - wanted)
        buckets = ((placement.table.rows - 1) >> shift) + 1
        edges = np.arange(buckets + 1, dtype=np.int64) << shift
        shifts.append(shift)
        starts.append(first[i] + np.searchsorted(keys[i], edges))
    return HotKeys(
        {placement.table.name: i for i, placement in enumerate(listed)},
        np.concatenate([*keys, [np.iinfo(np.int32).max]]).astype(np.int64),
        np.concatenate([*(np.arange(len(of_table)) for of_table in keys), [0]]),
        first,
        np.array(shifts, np.int64),
        np.cumsum([0, *map(len, starts)])[:-1],
        np.concatenate([np.zeros(0, np.int64), *starts]),
        max((int(np.diff(start).max()) for start in starts), default=0),
        any(placement.table.rows > np.iinfo(np.int32).max for placement in listed),
    )
