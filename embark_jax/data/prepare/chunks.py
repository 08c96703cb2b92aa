"""Reads text files, plain or gzip, in chunks of whole lines."""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from embark_jax.data.batch import DataError

CHUNK_BYTES = 64 * 2**20
"""Bytes of text in a chunk. Each worker needs about four times as much memory."""


@dataclasses.dataclass(frozen=True)
class TextChunk:
    """Some whole lines of a file.

    Attributes:
      path: path of the file.
      text: the lines, each with its newline; only the last of a file may lack it.
      first_line: number of its first line in the file, from 1.
      disk_position: bytes of the file on disk that were read up to the chunk's end.
    """

    path: Path
    text: bytes
    first_line: int = 1
    disk_position: int = 0

    @property
    def next_line(self) -> int:
        return self.first_line + self.text.count(b"\n")

    @property
    def lines(self) -> int:
        """Returns the number of lines; the last may lack its newline."""
        return self.next_line - self.first_line + (not self.text.endswith(b"\n"))


def read_chunks(path: Path, size: int) -> Iterator[TextChunk]:
    """Yields the chunks of a file, of about ``size`` bytes, in order.

    Raises:
      DataError: if the file cannot be read or is UTF-16 text, or its compressed data
        are cut or damaged.
    """
    chunk = TextChunk(path, b"")
    try:
        with path.open("rb") as disk:
            file = _decompressed(disk)
            file.seek(_text_start(file, path))
            while text := _whole_lines(file, size):
                chunk = TextChunk(path, text, chunk.next_line, disk.tell())
                yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}, after line {chunk.next_line - 1}: the compressed data are cut or "
            f"damaged ({error}); get a new copy of the file"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _decompressed(disk: BinaryIO) -> BinaryIO:
    """Returns the file, decompressed if it is gzip; its name does not always tell."""
    compressed = disk.read(2) == b"\x1f\x8b"
    disk.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=disk)) if compressed else disk


def _text_start(file: BinaryIO, path: Path) -> int:
    """Returns the offset after the byte order mark that some programs write."""
    start = file.read(3)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}, line 1: is UTF-16 text, must be UTF-8: convert it")
    return 3 if start == codecs.BOM_UTF8 else 0


def _whole_lines(file: BinaryIO, size: int) -> bytes:
    text = file.read(size)
    return text if text.endswith(b"\n") else text + file.readline()
