"""Maps the values of a table's features to ids.

Id 0 stands for a missing value, and id 1 for a value that is too rare in the training
samples; then come the values, the most frequent first. A hashed table has no
vocabulary: its values share the rows from 1 on.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.files import read_arrow
from embark_jax.data.batch import DataError
from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64

MISSING_ID = 0
RARE_ID = 1
FIRST_ID = 2


_NOTHING = pa.schema([("key", pa.uint32()), ("count", pa.int64())]).empty_table()


class ValueCounter:
    """Counts the unique values of a table, up to a limit.

    Args:
      limit: a table with more values must be hashed; its values are dropped, so that
        memory is bounded.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._merged = _NOTHING
        self._pending: list[pa.Table] = []
        self.too_many = False

    def add(self, counted: pa.Table) -> None:
        """Adds what ``count_values`` found."""
        if self.too_many:
            return
        self._pending.append(counted)
        # Merged whenever new values outnumber the merged ones: each is merged a few
        # times only.
        if sum(map(len, self._pending)) > len(self._merged):
            self._merge()

    def values(self) -> pa.Table:
        """Returns all values, the most frequent first; ties by value."""
        self._merge()
        return self._merged.sort_by([("count", "descending"), ("key", "ascending")])

    def _merge(self) -> None:
        tables = [table for table in (self._merged, *self._pending) if len(table)]
        self._pending = []
        if tables:
            grouped = pa.concat_tables(tables).group_by("key", use_threads=False)
            merged = grouped.aggregate([("count", "sum")]).select(["key", "count_sum"])
            self._merged = merged.rename_columns(["key", "count"])
        if len(self._merged) > self._limit:
            self.too_many, self._merged = True, _NOTHING


def count_values(values: pa.Array) -> pa.Table:
    """Returns ``key`` and ``count`` of each unique value that is not missing."""
    keys, counts = flat(values).drop_null().value_counts().flatten()
    return pa.table({"key": keys, "count": counts})


def flat(values: pa.Array) -> pa.Array:
    """Returns the values of all bags, or the single values themselves."""
    return values.flatten() if pa.types.is_list(values.type) else values


def is_text(kind: pa.DataType) -> bool:
    """Says whether values, alone or in lists, are text."""
    return pa.types.is_string(kind.value_type if pa.types.is_list(kind) else kind)


class Vocabulary:
    """Ids of the values of one table.

    Args:
      keys: the values in the order of their ids, from FIRST_ID on; None hashes values.
      rows: number of rows of the table.
    """

    def __init__(self, keys: pa.Array | None, rows: int):
        self._keys, self._rows = keys, rows
        if keys is not None and not is_text(keys.type):
            numbers = keys.to_numpy()
            self._order = np.argsort(numbers)
            self._sorted = numbers[self._order]

    def ids(self, values: pa.Array) -> np.ndarray:
        """Returns the ids of single values, int64 ``[values]``."""
        missing = values.is_null().to_numpy(zero_copy_only=False)
        if missing.all():  # then their type says nothing
            return np.full(len(values), MISSING_ID, np.int64)
        if self._keys is None:
            ids = 1 + (_hashes(values) % np.uint64(self._rows - 1)).astype(np.int64)
        elif not len(self._keys):
            ids = np.full(len(values), RARE_ID, np.int64)
        elif is_text(self._keys.type):
            options = pc.SetLookupOptions(self._keys)
            ids = pc.call_function("index_in", [values], options)
            ids = ids.fill_null(-1).to_numpy().astype(np.int64) + FIRST_ID
            ids[ids < FIRST_ID] = RARE_ID
        else:
            ids = self._look_up(_numbers(values))
        ids[missing] = MISSING_ID
        return ids

    def _look_up(self, numbers: np.ndarray) -> np.ndarray:
        ranks = np.searchsorted(self._sorted, numbers)
        ranks[ranks == len(self._sorted)] = 0
        has_id = self._sorted[ranks] == numbers
        return np.where(has_id, self._order[ranks] + FIRST_ID, RARE_ID)


def read_row_numbers(path: Path) -> np.ndarray:
    """Returns the row of each hash or number, int64 ``[rows]``, of a table whose rows
    are numbered by frequency.

    Raises:
      DataError: if the file is damaged.
    """
    return read_arrow(path)["row"].to_numpy()


def as_row_numbers(values: pa.Array, rows: int, name: str) -> np.ndarray:
    """Returns values that are row numbers, int64 ``[values]``; -1 if missing.

    Raises:
      DataError: if one is no row number.
    """
    numbers = values.drop_null()
    if len(numbers) and is_text(values.type):
        bad = [numbers[0].as_py()]
    else:
        numbers = numbers.cast(pa.int64()).to_numpy()
        bad = numbers[(numbers < 0) | (numbers >= rows)].tolist()
    if len(bad):
        raise DataError(
            f"column {name}: value is {bad[0]!r:.80}, must be a row number from 0 to "
            f"{rows - 1:,}, as features.{name}.rows says"
        )
    ids = np.full(len(values), -1, np.int64)
    ids[values.is_valid().to_numpy(zero_copy_only=False)] = numbers
    return ids


def padded(
    values: pa.ListArray, ids: np.ndarray, hotness: int, at_end: bool = False
) -> np.ndarray:
    """Returns ``[bags, hotness]`` ids, padded with -1, from the ids of all values. A
    longer bag keeps its first ids.

    With ``at_end`` the padding is in front: the last event of every sequence comes
    last, and a longer sequence keeps its last events.
    """
    lengths = values.value_lengths().fill_null(0).to_numpy().astype(np.int64)[:, None]
    ends = np.cumsum(lengths)[:, None]
    column = np.arange(hotness)
    if at_end:
        filled, source = column >= hotness - lengths, ends - hotness + column
    else:
        filled, source = column < lengths, ends - lengths + column
    bags = np.full((len(values), hotness), -1, ids.dtype)
    bags[filled] = ids[source[filled]]
    return bags


def _numbers(values: pa.Array) -> np.ndarray:
    return values.fill_null(0).to_numpy()


def _hashes(values: pa.Array) -> np.ndarray:
    """Returns uint64 hashes, which are the same for equal values on every machine."""
    if not is_text(values.type):
        counters = _numbers(values).astype(np.int64).view(np.uint64)
        return splitmix64(counters * GOLDEN_GAMMA)
    encoded = values.fill_null("").dictionary_encode()
    digests = [
        hashlib.blake2b(text.encode(), digest_size=8).digest()
        for text in encoded.dictionary.to_pylist()
    ]
    hashes = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    return hashes[encoded.indices.to_numpy()]
