"""Copies a state out of device memory, and has TensorStore write the copies.

Training waits only for the copy. Copies go into buffers of bounded size, which are used
again as soon as they are written: with buffers for the whole state the copy is as fast
as memory, with fewer it waits for the disk.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import lax

from embark_jax._base.object_store import in_bucket
from embark_jax.cache.stored_rows import StoredArray
from embark_jax.checkpoint.arrays import FILE_BYTES, SavedArray, is_of_table
from embark_jax.checkpoint.digests import Digests, digest
from embark_jax.checkpoint.errors import CheckpointError

WRITING_THREADS = 8
COPYING_THREADS = min(8, os.cpu_count() or 1)
Arrays = Mapping[str, jax.Array | StoredArray]


class StateWrite(NamedTuple):
    """The write of this process's part of a state, which goes on in the background.

    Attributes:
      writes: the writes of all files.
      digests: digests of what is written; complete when the writes are.
      size: bytes.
    """

    writes: list[Future[None]]
    digests: Digests
    size: int


def start_writing(
    folder: epath.Path, arrays: Arrays, memory_bytes: int | None
) -> StateWrite:
    """Copies all parts of this process, and starts to write them.

    Args:
      folder: folder of the arrays.
      arrays: arrays of the state, by name.
      memory_bytes: most memory for what is copied and not yet written; None is a
        quarter of what this process writes.
    """
    saved = {name: SavedArray.of(name, array) for name, array in arrays.items()}
    opening = {name: saved[name].create(folder, name) for name in arrays}
    stores = {name: future.result() for name, future in opening.items()}
    digests: Digests = {name: {} for name in arrays}
    parts = [p for name in arrays for p in _parts(name, arrays[name], saved[name])]
    # Copies from all devices at a time, each from the beginning.
    parts.sort(key=lambda part: part.rows.start if part.rows else 0)
    size = sum(part.nbytes for part in parts)
    files = (memory_bytes or size // 4) // FILE_BYTES
    # What is being written is in memory twice: as it was and encoded.
    count = max(2, files // 2, files - WRITING_THREADS)
    buffers: queue.LifoQueue[np.ndarray] = queue.LifoQueue()
    for _ in range(min(count, len(parts))):
        buffers.put(np.empty(FILE_BYTES, np.uint8))

    def copy(part: Part) -> Future[None]:
        buffer = buffers.get()
        try:
            return writers.submit(write, part, part.copied(buffer), buffer)
        except BaseException:
            buffers.put(buffer)
            raise

    def write(part: Part, values: np.ndarray, buffer: np.ndarray) -> None:
        try:
            if failures:  # a bucket that is gone is asked for a minute a part
                raise failures[0]
            is_float = jnp.issubdtype(values.dtype, jnp.floating)
            if is_float and not np.isfinite(values).all():  # nothing goes on from it
                raise CheckpointError(f"{part.name} has values that are not finite")
            digests[part.name] |= part.digests(values, saved[part.name].chunk)
            # Nobody reads the array: it needs the copy until it is written.
            stores[part.name][part.index].write(
                values, can_reference_source_data_indefinitely=True
            ).result()
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            buffers.put(buffer)
        if part.file and not in_bucket(folder):
            _write_back(folder / part.name / part.file)

    failures: list[BaseException] = []
    writers = ThreadPoolExecutor(WRITING_THREADS, "checkpoint-write")
    copiers = ThreadPoolExecutor(COPYING_THREADS, "checkpoint-copy")
    try:
        with copiers:
            return StateWrite(list(copiers.map(copy, parts)), digests, size)
    finally:
        writers.shutdown(wait=False)  # when all are written


class Part(NamedTuple):
    """What one file will hold: the block of a device, or some rows of that of a table;
    ``index`` is its position in the array as it is saved."""

    name: str
    index: tuple[int | slice, ...]
    data: jax.Array | np.ndarray
    rows: slice | None = None
    file: str = ""

    @property
    def nbytes(self) -> int:
        if self.rows is None:
            return self.data.nbytes
        return self.data.nbytes * (self.rows.stop - self.rows.start) // len(self.data)

    def digests(self, values: np.ndarray, chunk: tuple[int, ...]) -> dict[str, str]:
        """Returns the digests of the chunks, of this shape, that hold the values."""
        if self.rows is None:
            pairs = zip(self.index, chunk, strict=True)
            place = [(cut.start or 0) // size for cut, size in pairs]  # pyright: ignore
            return {"/".join(map(str, place)): digest(values)}
        block, rows = self.index[0], chunk[1]
        return {
            f"{block}/{(self.rows.start + i) // rows}": digest(values[i : i + rows])
            for i in range(0, len(values), rows)
        }

    def copied(self, buffer: np.ndarray) -> np.ndarray:
        """Returns a copy of the values, in the buffer unless it is smaller."""
        data, rows = self.data, self.rows
        if rows is None:
            values = np.asarray(data)
        elif (
            isinstance(data, np.ndarray) or next(iter(data.devices())).platform == "cpu"
        ):
            values = np.asarray(data)[rows]
        else:
            # The first row is an operand: two programs copy all parts of an array.
            first, count = np.int32(rows.start), rows.stop - rows.start
            values = np.asarray(lax.dynamic_slice_in_dim(data, first, count))
        if values.nbytes > len(buffer):
            return values.copy()
        copy = buffer[: values.nbytes].view(values.dtype).reshape(values.shape)
        np.copyto(copy, values)
        return copy


def _parts(
    name: str, array: jax.Array | StoredArray, saved: SavedArray
) -> Iterator[Part]:
    """Yields what this process writes of an array. Devices that hold the same rows of a
    table write them in turn."""
    for shard in array.addressable_shards:
        if not is_of_table(name):
            if shard.replica_id == 0:
                yield Part(name, shard.index, shard.data)
            continue
        blocks, slots, _ = saved.shape
        replicas = len(array.sharding.device_set) // max(1, blocks)
        block = (shard.index[0].start or 0) // max(1, slots)
        for number, first in enumerate(range(0, slots, saved.file[1])):
            if number % replicas == shard.replica_id:
                rows = slice(first, min(first + saved.file[1], slots))
                file = f"c/{block}/{number}/0"
                yield Part(name, (block, rows), shard.data, rows, file)


def _write_back(path: epath.Path) -> None:
    """Has the system write a file to the disk now and take it out of the page cache:
    what waits for long makes the writes after it wait, and pushes out what is read."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
