"""The rows of exported tables in NumPy alone: keys, initial rows and pooling.

An export's ``score.py`` holds this module's text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embark_jax.export.errors import ExportError
from embark_jax.export.reading import (
    KEYS,
    check_shape,
    inside,
    read_description,
    read_safetensors,
)

LAST_KEY = 2**63 - 2


def read_table(folder: Path, name: str, table: dict):
    """The rows of a table of ``model.json``, which ids select: ``rows[ids]``.

    Raises:
      ExportError: if they are not what ``model.json`` says.
    """
    path = inside(folder, table["file"])
    arrays = read_safetensors(path)
    rows = check_shape(str(path), arrays, name, (table["rows"], table["dim"]))
    if "initial" not in table:
        return rows
    keys = read_keys(path, arrays, len(rows), LAST_KEY + 1)
    return KeyedRows(keys, rows, table["initial"])


def read_keys(path: Path, arrays: dict, rows: int, end: int) -> np.ndarray:
    """The ``[rows]`` keys or row numbers of a file, which must be ascending and below
    ``end``.

    Raises:
      ExportError: if they are not.
    """
    keys = check_shape(str(path), arrays, KEYS, (rows,))
    if keys.dtype != np.int64 or (
        rows and not (keys[0] >= 0 and keys[-1] < end and (keys[1:] > keys[:-1]).all())
    ):
        raise ExportError(
            f"{path}: {KEYS} must be int64, ascending, and from 0 to {end - 1:,}"
        )
    return keys


class KeyedRows:
    """The rows of a dynamic table; a key that has none has the row it would begin with.

    Args:
      keys: ``[n]`` int64 in ascending order.
      rows: ``[n, dim]`` float32.
      initial: description of initial rows: "key", the two words of a random key,
        "table", a number of the table, and "scale".
    """

    def __init__(self, keys, rows, initial: dict):
        self.keys, self.rows, self.initial = keys, rows, initial

    def __len__(self) -> int:
        return LAST_KEY + 1

    def __getitem__(self, keys) -> np.ndarray:
        """Returns ``[…, dim]`` rows of ``[…]`` keys."""
        place, found = self.find(keys)
        rows = np.empty((*keys.shape, self.rows.shape[1]), np.float32)
        rows[found] = self.rows[place[found]]
        rows[~found] = self.initial_rows(keys[~found])
        return rows

    def find(self, keys):
        """Returns for each key the number of its row, and whether it has one."""
        place = np.searchsorted(self.keys, keys)
        found = place < len(self.keys)
        found[found] = self.keys[place[found]] == keys[found]
        return place, found

    def update(self, keys, rows) -> None:
        """Takes over rows: ``[m]`` keys, each once, and ``[m, dim]``."""
        place, found = self.find(keys)
        self.rows[place[found]] = rows[found]
        new = np.concatenate([self.keys, keys[~found]])
        order = np.argsort(new, kind="stable")
        if len(new) > len(self.keys):
            self.rows = np.concatenate([self.rows, rows[~found]])[order]
            self.keys = new[order]

    def initial_rows(self, keys) -> np.ndarray:
        """Returns ``[n, dim]`` float32, as JAX draws them in training."""
        words = np.asarray(keys, np.int64).view(np.uint64)
        cell = tuple(np.uint32(word) for word in self.initial["key"])
        cell = fold_in(cell, np.uint32(self.initial["table"]))
        cell = fold_in(cell, (words & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        low, high = fold_in(cell, (words >> np.uint64(32)).astype(np.uint32))
        columns = np.arange(self.rows.shape[1], dtype=np.uint32)
        cell = fold_in((low[:, None], high[:, None]), columns)
        first, second = threefry(*cell, np.uint32(0), np.uint32(0))
        # The bits of a float from 1 to 2, then from -1 to 1.
        bits = ((first ^ second) >> np.uint32(9)) | np.uint32(0x3F800000)
        values = (bits.view(np.float32) - np.float32(1)) * np.float32(2)
        return (values - np.float32(1)) * np.float32(self.initial["scale"])


def apply_delta(folder: Path, step: int, tables: dict, params: dict):
    """Overwrites and adds the rows that ``embark export --since`` wrote.

    Args:
      folder: the delta export.
      step: step of the tables.
      tables: for each table its rows, as ``read_table`` gives them.
      params: the parameters of the dense model.

    Returns:
      The new parameters of the dense model, and the step of both.

    Raises:
      ExportError: if that is no delta, or not one of this model, or is damaged; nothing
        has changed.
    """
    delta = read_description(folder)
    if "since" not in delta:
        raise ExportError(f"{folder}: is a whole export, must be one made with --since")
    if delta["since"] != step:
        raise ExportError(
            f"{folder}: has what changed since step {delta['since']}, but the model is "
            f"of step {step}; apply all deltas in their order"
        )
    if delta["tables"].keys() != tables.keys():
        raise ExportError(
            f"{folder}: has the tables {', '.join(delta['tables'])}, but the model has "
            f"{', '.join(tables)}"
        )
    changes = {}
    for name, table in tables.items():
        path = inside(folder, delta["tables"][name]["file"])
        arrays = read_safetensors(path)
        dim = (table.rows if isinstance(table, KeyedRows) else table).shape[1]
        rows = check_shape(str(path), arrays, name, (None, dim))
        changes[name] = read_keys(path, arrays, len(rows), len(table)), rows
    path = inside(folder, delta["dense"])
    new_params = read_safetensors(path)
    for name, array in params.items():
        check_shape(str(path), new_params, name, array.shape)
    for name, (keys, rows) in changes.items():
        table = tables[name]
        if isinstance(table, KeyedRows):
            table.update(keys, rows)
        else:
            table[keys] = rows
    return new_params, delta["step"]


def fold_in(cell, number):
    """``jax.random.fold_in`` for the two words of a key, or of many."""
    return threefry(*cell, np.uint32(0), number)  # pyright: ignore


def threefry(key0, key1, x0, x1):
    """Threefry-2x32 with 20 rounds: two words of random bits
    (https://www.thesalmons.org/john/random123/papers/random123sc11.pdf)."""
    keys = key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA)
    rotations = (13, 15, 26, 6), (17, 29, 16, 24)
    with np.errstate(over="ignore"):  # sums are modulo 2**32
        x0, x1 = x0 + keys[0], x1 + keys[1]
        for i in range(5):
            for by in rotations[i % 2]:
                x0 = x0 + x1
                x1 = x0 ^ ((x1 << np.uint32(by)) | (x1 >> np.uint32(32 - by)))
            x0 = x0 + keys[(i + 1) % 3]
            x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def embed(name, table, pooling, ids, weights=None) -> np.ndarray:
    """A feature's rows, pooled: ``[samples, dim]``, or with "none" the sequence.

    Raises:
      ValueError: if an id is outside the table.
    """
    if ids.min(initial=0) < -1 or ids.max(initial=0) >= len(table):
        raise ValueError(
            f"feature {name!r}: ids must be -1 (padding) to {len(table) - 1}, are "
            f"{ids.min()} to {ids.max()}"
        )
    factors = (ids >= 0).astype(np.float32)
    if weights is not None:
        factors = factors * weights.astype(np.float32)
    if pooling == "mean":
        total = factors.sum(axis=1, keepdims=True)
        factors = np.divide(factors, total, np.zeros_like(factors), where=total != 0)
    rows = table[np.maximum(ids, 0)]
    if pooling == "none":
        return rows * factors[:, :, None]
    return np.einsum("bhd,bh->bd", rows, factors)
