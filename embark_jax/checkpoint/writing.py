"""One checkpoint on its way to disk: copied out of device memory, then written.

Training waits only for the copy. Copies go into buffers of bounded size; threads write
them and give them back. With buffers for the whole state the copy is as fast as memory;
with fewer it waits for the disk.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.checkpoint.files import PIECE_BYTES, Buffers, FileWriter
from embark_jax.checkpoint.layout import Layout, device_numbers, file_name

WRITING_THREADS = 4
"""Pieces on their way to disk at a time; more make no disk faster."""
COPYING_THREADS = 8
PROGRESS_S = 10.0
"""Seconds between two lines that say how far writing is."""
GIGABYTE = 1e9


class _Part(NamedTuple):
    """The place of rows of a device's array in that device's file.

    Attributes:
      offset, size: position and number of bytes in the file.
      data: the array, on its device; for a ``StoredArray``, in host memory.
      skipped: number of bytes of the array before those rows.
    """

    offset: int
    size: int
    data: jax.Array | np.ndarray
    skipped: int


class StateWriter:
    """Writes this process's part of a state.

    Args:
      folder: folder to write into.
      arrays: arrays of numbers, by name.
      layout: layout of all these arrays.
      mesh: mesh of the devices.
      memory_bytes: size of all buffers.
    """

    def __init__(
        self,
        folder: Path,
        arrays: Mapping[str, jax.Array],
        layout: Layout,
        mesh: Mesh,
        memory_bytes: int,
    ):
        self._folder = folder
        parts = _parts(arrays, layout, mesh)
        self._files = {name: layout.files[name] for name in parts}
        self.size = sum(self._files.values())
        self.written = 0
        self._buffers = Buffers(min(memory_bytes, self.size + PIECE_BYTES))
        self._writers: dict[str, FileWriter] = {}
        self._pool = ThreadPoolExecutor(WRITING_THREADS, "checkpoint-write")
        self._writes: list[Future] = []
        try:
            for name, size in self._files.items():
                self._writers[name] = FileWriter(folder / name, size)
            self._copy(parts)
        except BaseException:
            self.abandon()
            raise

    @property
    def names(self) -> list[str]:
        """Names of the files that this process writes."""
        return list(self._files)

    def finish(self, say: Callable[[str], None]) -> None:
        """Returns when all is on the disk; calls ``say`` with how far it is."""
        begin = said = time.monotonic()
        try:
            while any(not write.done() for write in self._writes):
                time.sleep(0.01)
                if (now := time.monotonic()) - said > PROGRESS_S:
                    said, rate = now, self.written / GIGABYTE / (now - begin)
                    say(
                        f"{self.written / GIGABYTE:.1f} of "
                        f"{self.size / GIGABYTE:.1f} GB are written, {rate:.2f} GB/s"
                    )
            for write in self._writes:
                write.result()
            list(self._pool.map(FileWriter.close, self._writers.values()))
        except BaseException:
            self.abandon()
            raise
        self._pool.shutdown()

    def abandon(self) -> None:
        """Stops writing."""
        self._buffers.fail(CheckpointError("the checkpoint was given up"))
        self._pool.shutdown(cancel_futures=True)
        for writer in self._writers.values():
            writer.abandon()

    def _copy(self, parts: Mapping[str, Sequence[_Part]]) -> None:
        pieces = [
            (name, offset)
            for name, size in self._files.items()
            for offset in range(0, size, PIECE_BYTES)
        ]
        # Copies from all devices at a time, each from the beginning.
        pieces.sort(key=lambda piece: piece[1])
        threads = min(COPYING_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "checkpoint-copy") as copying:
            for copied in [
                copying.submit(self._copy_piece, name, offset, parts[name])
                for name, offset in pieces
            ]:
                copied.result()

    def _copy_piece(self, name: str, offset: int, parts: Sequence[_Part]) -> None:
        size = min(PIECE_BYTES, self._files[name] - offset)
        buffer = self._buffers.take()
        done = 0
        for part in parts:
            low = max(part.offset, offset)
            high = min(part.offset + part.size, offset + size)
            if low >= high:
                continue
            buffer[done : low - offset] = 0  # between two parts
            begin = low - part.offset + part.skipped
            done = high - offset
            buffer[low - offset : done] = _bytes_of(
                part.data, begin, begin + high - low
            )
        buffer[done:size] = 0
        self._writes.append(self._pool.submit(self._write, name, offset, buffer, size))

    def _write(self, name: str, offset: int, buffer: np.ndarray, size: int) -> None:
        try:
            self._writers[name].write(offset, buffer[:size])
        except BaseException as error:
            self._buffers.fail(error)
            raise
        self._buffers.give(buffer)
        self.written += size


def _parts(
    arrays: Mapping[str, jax.Array], layout: Layout, mesh: Mesh
) -> dict[str, list[_Part]]:
    """Returns the parts that this process's devices write, by file, by offset."""
    parts: dict[str, list[_Part]] = {}
    numbers = device_numbers(mesh)
    for name, array in arrays.items():
        blocks = {block.file: block for block in layout.arrays[name].blocks}
        for shard in array.addressable_shards:
            block = blocks.get(file_name(numbers[shard.device]))
            if block is None:
                continue
            size = math.prod(block.shape) * array.dtype.itemsize
            skipped = 0
            if block.shape:
                ahead = block.begin[0] - (shard.index[0].start or 0)
                skipped = ahead * (size // block.shape[0] if size else 0)
            part = _Part(block.offset, size, shard.data, skipped)
            parts.setdefault(block.file, []).append(part)
    for each in parts.values():
        each.sort(key=lambda part: part.offset)
    return parts


def _bytes_of(array: jax.Array | np.ndarray, begin: int, end: int) -> np.ndarray:
    """Returns bytes of an array on one device or in host memory, as uint8."""
    if isinstance(array, np.ndarray):  # columns of wider rows
        row_bytes = array.itemsize * array.shape[1]
        first = begin // row_bytes
        rows = np.ascontiguousarray(array[first : -(-end // row_bytes)])
        return rows.reshape(-1).view(np.uint8)[
            begin - first * row_bytes : end - first * row_bytes
        ]
    (device,) = array.devices()
    if array.nbytes <= PIECE_BYTES or device.platform == "cpu":
        return np.asarray(array).reshape(-1).view(np.uint8)[begin:end]
    row_bytes = array.nbytes // array.shape[0]
    # As many rows for all pieces: one program copies them.
    count = min(PIECE_BYTES // row_bytes + 2, array.shape[0])
    first = min(begin // row_bytes, array.shape[0] - count)
    rows = np.asarray(_rows(array, np.int32(first), count))
    return rows.reshape(-1).view(np.uint8)[
        begin - first * row_bytes : end - first * row_bytes
    ]


@jax.jit(static_argnums=2)
def _rows(array: jax.Array, first: jax.Array, count: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, first, count)
