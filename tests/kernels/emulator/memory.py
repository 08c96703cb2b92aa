"""Memory of an emulated GPU: bounds, alignment, what is set, and races.

Each array has addresses of its own, far from all others. It is made of cells, an
element each, of which the memory knows whether they were set and who accessed them.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

BLOCK, WARP = 128, 32  # threads
DISTANCE = 1 << 40
"""Bytes between the first addresses of two arrays, more than any array has."""
SHARED_BASE, SHARED_CELL = 1 << 10, 4
"""First address of a block's shared memory, in a space of its own; bytes of a cell."""
LOADED = -1
"""What a load stores, in the list of accesses."""


class MemoryAccessError(Exception):
    """A GPU would not survive the access, or nobody says what it gives."""


class Array(NamedTuple):
    """An array in the GPU's memory.

    Attributes:
      name: what it is, for messages.
      data: its bytes, padded so that they can be viewed as any type.
      size_bytes: without the padding; of shared memory, of one block.
      cell_bytes: the size of a cell.
      first_cell: the number of its first cell among the cells of all arrays.
      is_set: whether each cell was set; None for an array that is only read.
    """

    name: str
    data: np.ndarray
    size_bytes: int
    cell_bytes: int
    first_cell: int
    is_set: np.ndarray | None


class Memory:
    """All arrays of a launch, and the accesses of those that it may write to.

    ``block_barriers`` and ``warp_barriers`` are how many barriers of its block, and of
    its warp, each thread has passed.
    """

    def __init__(self, blocks: int, shared_bytes: int):
        self.block_barriers = np.zeros(blocks * BLOCK, int)
        self.warp_barriers = np.zeros(blocks * BLOCK, int)
        self._arrays: list[Array] = []
        self._cells = 0
        self._accesses: list[np.ndarray] = []
        shared = np.zeros(blocks * shared_bytes // SHARED_CELL, f"u{SHARED_CELL}")
        self.add("shared memory", shared, is_set=False)
        self._arrays[0] = self._arrays[0]._replace(size_bytes=shared_bytes)

    def add(self, name: str, values: np.ndarray, is_set: bool | None) -> int:
        """Adds an array, which is only read if ``is_set`` is None, and returns its
        address."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if is_set is not None or data.size % 16:
            data = np.pad(data, (0, -data.size % 16))
        flags = None if is_set is None else np.full(values.size, is_set)
        sizes = values.nbytes, values.itemsize, self._cells
        self._arrays.append(Array(name, data, *sizes, flags))
        self._cells += values.size
        return (len(self._arrays) - 1) * DISTANCE

    def values(self, address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The values of the array at an address."""
        array = self._arrays[address // DISTANCE]
        return array.data[: array.size_bytes].view(dtype).reshape(shape)

    def load(
        self,
        is_shared: bool,
        address: np.ndarray,
        dtype: np.dtype,
        count: int,
        thread: np.ndarray,
        line: int,
    ) -> list[np.ndarray]:
        """Loads ``count`` neighbours from each address.

        Args:
          is_shared: whether the addresses are in shared memory.
          address: ``[n]`` byte addresses.
          dtype, count: data type and number of the neighbours.
          thread: ``[n]`` numbers of the threads in the grid.
          line: number of the instruction.

        Raises:
          MemoryAccessError: if an address is misaligned or out of bounds, or nothing
            was stored there.
        """
        size_bytes = dtype.itemsize * count
        array, offset = self._find(is_shared, address, size_bytes, thread)
        if array.is_set is not None:
            cells = self._access(array, offset, size_bytes, thread, line, LOADED)
            if not array.is_set[cells].all():
                raise MemoryAccessError(f"{array.name}: read before anything is stored")
        index = offset // dtype.itemsize
        return [array.data.view(dtype)[index + i] for i in range(count)]

    def store(
        self,
        is_shared: bool,
        address: np.ndarray,
        neighbours: list[np.ndarray],
        thread: np.ndarray,
        line: int,
    ) -> None:
        """Stores ``[n]`` values of each neighbour; see ``load``. The array must not be
        one that is only read."""
        size_bytes = neighbours[0].itemsize
        total_bytes = size_bytes * len(neighbours)
        array, offset = self._find(is_shared, address, total_bytes, thread)
        if array.is_set is None:
            raise MemoryAccessError(f"{array.name}: stored to, though it is an input")
        for i, values in enumerate(neighbours):
            array.data.view(values.dtype)[offset // size_bytes + i] = values
            stored = values.view(f"u{size_bytes}").astype(int)
            at = offset + i * size_bytes
            cells = self._access(array, at, size_bytes, thread, line, stored)
            array.is_set[cells] = True

    def _find(
        self, is_shared: bool, address: np.ndarray, size_bytes: int, thread: np.ndarray
    ) -> tuple[Array, np.ndarray]:
        """The array of the addresses, and their offsets in it."""
        number, first = int(address[0]) // DISTANCE, np.zeros_like(address)
        if is_shared:
            number, address = 0, address - SHARED_BASE
            first = thread // BLOCK * self._arrays[0].size_bytes
        elif not 1 <= number < len(self._arrays):
            raise MemoryAccessError(f"address {address[0]:#x} is in no array")
        array, offset = self._arrays[number], address - number * DISTANCE
        outside = (offset < 0) | (offset > array.size_bytes - size_bytes)
        for problem, where in (
            ("misaligned", offset % size_bytes != 0),
            (f"out of bounds, it has {array.size_bytes}", outside),
        ):
            if where.any():
                raise MemoryAccessError(
                    f"{array.name}: {size_bytes} bytes at offset {offset[where][0]} "
                    f"are {problem}"
                )
        return array, offset + first

    def _access(
        self,
        array: Array,
        offset: np.ndarray,
        size_bytes: int,
        thread: np.ndarray,
        line: int,
        stored: np.ndarray | int,
    ) -> np.ndarray:
        """Keeps who accesses which cells, and returns the ``[k, n]`` cells."""
        count = max(1, size_bytes // array.cell_bytes)
        cells = offset // array.cell_bytes + np.arange(count)[:, None]
        access = np.empty((6, *cells.shape), int)
        access[0] = array.first_cell + cells
        access[1] = thread
        access[2] = self.block_barriers[thread]
        access[3] = self.warp_barriers[thread]
        access[4] = stored
        access[5] = line
        self._accesses.append(access.reshape(6, -1))
        return cells

    def races(self) -> list[tuple[str, int, int]]:
        """Finds accesses of one cell by different threads, of which one is a store, and
        which no barrier keeps apart. Stores of one value are no race.

        Returns:
          For each kind of race that there is, where the first is, and the numbers of
          two of its instructions.
        """
        if not self._accesses:
            return []
        log = np.concatenate(self._accesses, axis=1)
        is_stored = np.zeros(self._cells, bool)
        is_stored[log[0, log[4] != LOADED]] = True
        log = log[:, is_stored[log[0]]]
        cell, thread, block_barriers, warp_barriers, stored, line = log
        block, warp = thread // BLOCK, thread // WARP
        together = {
            "blocks": (block, [cell]),
            "warps": (warp, [cell, block, block_barriers]),
            "threads": (thread, [cell, warp, block_barriers, warp_barriers]),
        }
        races = []
        for kind, (actor, keys) in together.items():
            key = reduce(lambda a, b: a * (b.max(initial=0) + 1) + b, keys)
            order = np.argsort(key)
            starts = np.flatnonzero(np.diff(key[order], prepend=-1))
            several = _spread(actor[order], starts) * _spread(stored[order], starts)
            for start in starts[np.flatnonzero(several)[:1]]:
                same = key == key[order[start]]
                store = np.flatnonzero(same)[np.argmax(stored[same])]
                other = np.flatnonzero(same & (actor != actor[store]))[0]
                firsts = [array.first_cell for array in self._arrays]
                array = self._arrays[np.searchsorted(firsts, cell[store], "right") - 1]
                where = f"{array.name}, between {kind}"
                races.append((where, int(line[store]), int(line[other])))
        return races


def _spread(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The largest minus the smallest value of each group."""
    if not starts.size:
        return starts
    return np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
