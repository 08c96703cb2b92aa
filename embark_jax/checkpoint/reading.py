"""Reads any rows of any array of a checkpoint, verified, whatever plan wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import tensorstore as ts
from etils import epath

from embark_jax._base.object_store import key_value_store
from embark_jax.checkpoint.arrays import open_array
from embark_jax.checkpoint.contents import ARRAYS, FILE, NAME, CheckpointContents
from embark_jax.checkpoint.digests import digest, read_digests
from embark_jax.checkpoint.errors import CheckpointError, reason
from embark_jax.data.pipeline import prefetch
from embark_jax.embedding.logical import pieces

CACHED_BYTES = 64 << 20
"""Memory for chunks of which other rows are read soon."""
ROW_CHUNK_BYTES = 8 << 20
"""Bytes of a table that are read at a time, by each of the threads."""
READING_THREADS = 4
Item = TypeVar("Item")
Result = TypeVar("Result")


class SavedCheckpoint:
    """A complete checkpoint.

    Args:
      folder: folder of the checkpoint.

    Attributes:
      folder: as given.
      contents: contents of the checkpoint.

    Raises:
      CheckpointError: if something is missing, or damaged as far as it is read.
    """

    def __init__(self, folder: epath.Path):
        self.folder = folder
        try:
            text = (folder / FILE).read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{NAME} is missing") from None
        self.contents = CheckpointContents.from_json(text)
        files = ts.KvStore.open(key_value_store(folder)).result()
        checksum = json.loads(text)["checksum"]
        self._digests = read_digests(files, self.contents.processes, checksum)
        self._verified: set[tuple[str, str]] = set()
        context = ts.Context({"cache_pool": {"total_bytes_limit": CACHED_BYTES}})
        opening = {
            name: open_array(folder / ARRAYS, name, context)
            for name in self.contents.arrays
        }
        self._stores = {name: _result(future) for name, future in opening.items()}
        for name, store in self._stores.items():
            shape = str(store.dtype.numpy_dtype), store.shape
            if shape != self.contents.arrays[name]:
                raise CheckpointError(f"{name}/zarr.json differs from {NAME}")

    def array(self, name: str) -> np.ndarray:
        """Returns a whole array, if it is a small one.

        Raises:
          CheckpointError: if there is none of that name, or it is damaged.
        """
        store = self._store(name)
        value, sizes = _result(store.read()), _chunk_shape(store)
        counts = [-(-n // size) for n, size in zip(store.shape, sizes, strict=True)]
        for place in np.ndindex(*counts):
            pairs = zip(place, sizes, strict=True)
            cut = tuple(slice(i * size, (i + 1) * size) for i, size in pairs)
            self._verify(name, "/".join(map(str, place)), value[cut])
        return value

    def rows(
        self, table: str, array: str, numbers: range, columns: range
    ) -> np.ndarray:
        """Returns rows of a table: reads nothing else but the chunks that hold them.

        Args:
          table: name of the table.
          array: name of its arrays with ``{}`` for the storage: "storages.{}", or
            "embedding_state.{}.momentum".
          numbers: numbers of the rows, of which the checkpoint has all.
          columns: their columns; the first alone of a state with one value a row.

        Returns:
          ``[numbers, columns]``.

        Raises:
          CheckpointError: if they are damaged.
        """
        shards, storages = self.contents.shards[table], self.contents.storages
        stores = {
            storage: self._store(array.format(storages[storage]))
            for storage in np.unique(shards["storage"]).tolist()
        }
        last = shards[-1]
        if stores[last["storage"]].shape[2] != last["columns"]:
            columns = range(1)  # one value, in all column shards
        reads = []
        unverified: dict[tuple[str, str], ts.Future] = {}
        for piece in pieces(shards, numbers, columns):
            store = stores[piece.storage]
            name = array.format(storages[piece.storage])
            block, first = divmod(piece.slots.start, store.shape[1])
            end = first + piece.slots.stop - piece.slots.start
            slots = slice(first, end, piece.slots.step)
            # Whole chunks come first: the rows are then in TensorStore's cache.
            size, room = _chunk_shape(store)[1], store.shape[1]
            for begin in range(first - first % size, min(end, room), size):
                chunk = name, f"{block}/{begin // size}"
                if chunk not in self._verified and chunk not in unverified:
                    chunk_slots = slice(begin, min(begin + size, room))
                    unverified[chunk] = store[block, chunk_slots].read()
            reads.append((piece.into, store[block, slots, piece.columns].read()))
        for chunk, read in unverified.items():
            self._verify(*chunk, _result(read))
        parts = [(into, _result(read)) for into, read in reads]
        if len(parts) == 1:
            return parts[0][1]
        rows = np.empty((len(numbers), len(columns)), parts[0][1].dtype)
        for into, part in parts:
            rows[into] = part
        return rows

    def _verify(self, name: str, place: str, values: np.ndarray) -> None:
        """Raises ``CheckpointError`` if a chunk is not the one that was written."""
        if digest(values) != self._digests.get(name, {}).get(place):
            raise CheckpointError(
                f"{self.folder / ARRAYS / name}: chunk {place} is of another place, or "
                "of another checkpoint"
            )
        self._verified.add((name, place))

    def _store(self, name: str) -> ts.TensorStore:
        if name not in self._stores:
            raise CheckpointError(f"{NAME} has no array {name!r}")
        return self._stores[name]


def _chunk_shape(store: ts.TensorStore) -> tuple[int, ...]:
    """Returns the shape of what has one checksum; of a number there is none."""
    return tuple(size or 1 for size in store.chunk_layout.read_chunk.shape or ())


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yields the function's results in order, and computes a few of them ahead."""
    return prefetch(function, items, READING_THREADS + 2, workers=READING_THREADS)


def row_chunks(end: int, row_bytes: int) -> Iterator[range]:
    """Yields the numbers of a table's rows, ``ROW_CHUNK_BYTES`` of them at a time."""
    step = 1 << max(1, ROW_CHUNK_BYTES // row_bytes).bit_length() - 1
    return (range(i, min(i + step, end)) for i in range(0, end, step))


def _result(future: ts.Future):
    try:
        return future.result()
    except Exception as error:
        raise CheckpointError(reason(error)) from None
