"""Files that are verified as they are read, and that bypass the page cache.

``FILE.xxh3`` beside a file holds one checksum (XXH3, 64 bits, little-endian) for each
128 KiB of it. Bytes go between disk and page-aligned buffers of a bounded pool: the
page cache would need a copy, and as much memory as everything written.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np
import xxhash

from embark_jax.checkpoint.errors import CheckpointError

CHECKED_BYTES = 128 << 10
"""Bytes behind one checksum: few enough to read a few rows, enough to cost nothing."""
PIECE_BYTES = 8 << 20
"""Bytes of one read or write: disks reach their full speed with it."""
PAGE_BYTES = mmap.PAGESIZE
"""Direct input and output wants addresses, offsets and lengths to be multiples."""
SUFFIX = ".xxh3"


class Buffers:
    """A pool of page-aligned buffers, none larger than a piece, bounded in bytes.

    Args:
      limit_bytes: size of all buffers together, but at least two pieces.
    """

    def __init__(self, limit_bytes: int):
        self._left = max(2, limit_bytes // PIECE_BYTES)
        self._free: list[np.ndarray] = []
        self._changed = threading.Condition()
        self._broken: BaseException | None = None

    def take(self) -> np.ndarray:
        """Returns a ``[PIECE_BYTES]`` uint8 buffer; waits until there is one.

        Raises:
          Exception: error that ``fail`` was given.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._left or self._broken)
            if self._broken is not None:
                raise self._broken
            if self._free:
                return self._free.pop()
            self._left -= 1
        return _aligned(PIECE_BYTES)

    def give(self, buffer: np.ndarray) -> None:
        """Takes a buffer back."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()

    def fail(self, error: BaseException) -> None:
        """Ends every wait for a buffer with this error."""
        with self._changed:
            self._broken = error
            self._changed.notify_all()


class FileWriter:
    """Writes a file piece by piece, in any order and by any thread.

    The file and its checksums are complete when ``close`` has returned, and not before
    ``FILE.xxh3`` is there.

    Args:
      path: path of the file.
      size: size in bytes, a multiple of ``PAGE_BYTES``.
    """

    def __init__(self, path: Path, size: int):
        self._path = path
        self._sums = np.zeros(-(-size // CHECKED_BYTES), "<u8")
        self._file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.ftruncate(self._file, size)
        except BaseException:
            os.close(self._file)
            raise

    def write(self, offset: int, piece: np.ndarray) -> None:
        """Writes whole pages from an ``offset`` that is a multiple of a piece."""
        first = offset // CHECKED_BYTES
        sums = checksums(piece)
        self._sums[first : first + len(sums)] = sums
        left = piece.data
        while left:
            written = os.pwrite(self._file, left, offset)
            left, offset = left[written:], offset + written

    def close(self) -> None:
        """Returns when everything is on the disk."""
        os.fsync(self._file)
        self.abandon()
        _write_sums(self._path, self._sums)

    def abandon(self) -> None:
        """Closes the file without its checksums: it is not complete."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_file(path: Path, data: bytes) -> None:
    """Writes a small file with its checksums."""
    write_synced(path, data)
    _write_sums(path, checksums(np.frombuffer(data, np.uint8)))


class FileReader:
    """Reads what ``FileWriter`` or ``write_file`` wrote; any thread may call it.

    Args:
      path: path of the file.
      size: bytes that the file must have; None takes it as it is.

    Raises:
      CheckpointError: if it is missing, has another size, or lacks its checksums.
    """

    def __init__(self, path: Path, size: int | None = None):
        self._path = path
        try:
            self._file = _open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise CheckpointError(f"{path.name} is missing") from None
        try:
            self.size = os.fstat(self._file).st_size
            if size is not None and self.size != size:
                raise CheckpointError(
                    f"{path.name} has {self.size:,} bytes, must have {size:,}"
                )
            self._sums = _read_sums(path, self.size)
        except BaseException:
            self.close()
            raise

    def read(self, begin: int, end: int, buffer: np.ndarray) -> np.ndarray:
        """Returns the bytes ``[begin, end)``, verified, as a part of the buffer.

        Args:
          begin, end: range whose checked parts together are no larger than a piece.
          buffer: buffer of ``Buffers``.

        Raises:
          CheckpointError: if the bytes are not those that were written.
        """
        first = begin // CHECKED_BYTES * CHECKED_BYTES
        last = min(-(-end // CHECKED_BYTES) * CHECKED_BYTES, self.size)
        pages = -(-(last - first) // PAGE_BYTES) * PAGE_BYTES
        done = 0
        while done < last - first:
            got = os.preadv(self._file, [buffer[done:pages].data], first + done)
            if not got:
                raise CheckpointError(f"{self._path.name} ends at {first + done:,}")
            done += got
        sums = checksums(buffer[: last - first])
        number = first // CHECKED_BYTES
        bad = np.flatnonzero(sums != self._sums[number : number + len(sums)])
        if len(bad):
            begins = first + int(bad[0]) * CHECKED_BYTES
            raise CheckpointError(
                f"{self._path.name}: the checksum of {CHECKED_BYTES >> 10} KiB from "
                f"byte {begins:,} is wrong"
            )
        return buffer[begin - first : end - first]

    def close(self) -> None:
        os.close(self._file)


def read_file(path: Path) -> bytes:
    """Reads a small file and verifies it; raises ``CheckpointError``."""
    file = FileReader(path)
    try:
        step, buffer = PIECE_BYTES // 2, _aligned(PIECE_BYTES)
        return b"".join(
            file.read(begin, min(begin + step, file.size), buffer).tobytes()
            for begin in range(0, file.size, step)
        )
    finally:
        file.close()


def checksums(data: np.ndarray) -> np.ndarray:
    """Returns the checksum of each ``CHECKED_BYTES`` of uint8 data."""
    parts = range(0, len(data), CHECKED_BYTES)
    sums = [xxhash.xxh3_64_intdigest(data[i : i + CHECKED_BYTES].data) for i in parts]
    return np.array(sums, "<u8")


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file that is wholly on the disk as soon as it has its name."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sums_path(path: Path) -> Path:
    """Returns the path of a file's checksums."""
    return path.with_name(path.name + SUFFIX)


def _write_sums(path: Path, sums: np.ndarray) -> None:
    write_synced(sums_path(path), sums.tobytes())


def _read_sums(path: Path, size: int) -> np.ndarray:
    where, expected = sums_path(path), 8 * -(-size // CHECKED_BYTES)
    try:
        data = where.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{where.name} is missing") from None
    if len(data) != expected:
        raise CheckpointError(
            f"{where.name} has {len(data):,} bytes, must have {expected:,}"
        )
    return np.frombuffer(data, "<u8")


def _open(path: Path, flags: int) -> int:
    """Opens a descriptor that bypasses the page cache, where the filesystem can."""
    if direct := getattr(os, "O_DIRECT", 0):
        try:
            return os.open(path, flags | direct, 0o666)
        except FileNotFoundError:
            raise
        except OSError:
            pass
    return os.open(path, flags, 0o666)


def _aligned(size: int) -> np.ndarray:
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
