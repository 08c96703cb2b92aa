"""Identifies raw files by what they hold, so that prepared data are never taken for
those of other files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from embark_jax._base.errors import DataError
from embark_jax._base.files import xxh3_of


class Stamp(NamedTuple):
    """What the file system says of a file: its size and when it changed last.

    ``changed_ns`` is the time of the last change of content, name or owner, which
    programs such as ``touch`` and ``cp -p`` cannot set back.
    """

    bytes: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        status = path.stat()
        return cls(status.st_size, status.st_ctime_ns)


def contents(
    paths: Sequence[Path],
    recorded: Mapping[str, Any] | None,
    out: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Mapping[str, Any]]:
    """Identifies each file: its size, its hash, and when it changed.

    A file is read for its hash if there is no record, or if it changed since, but has
    the size that is recorded.

    Args:
      paths: the raw files.
      recorded: what this returned when ``out`` was begun; None if it is new.
      out: folder of the prepared data, for messages.
      progress: called with how many bytes were hashed, of how many.

    Returns:
      For each file, by its path from the folder of all, ``bytes``, ``xxh3`` and
      ``changed_ns``; equal to
      ``recorded`` if the files hold what they held.

    Raises:
      DataError: if the files are not those that are recorded.
    """
    folder = os.path.commonpath([path.parent for path in paths]) if paths else ""
    names = [path.relative_to(folder).as_posix() for path in paths]
    if recorded is not None and sorted(names) != sorted(recorded):
        raise DataError(
            f"{out}: was made from other raw files ({', '.join(sorted(recorded))}), "
            f"not from {', '.join(sorted(names))}; take another --out, or delete it"
        )
    total = sum(path.stat().st_size for path in paths)
    done = 0
    content = {}
    for name, path in zip(names, paths, strict=True):
        before = None if recorded is None else recorded[name]
        content[name] = _content(path, before, out)
        done += content[name]["bytes"]
        progress(done, total)
    return content


def _content(
    path: Path, before: Mapping[str, Any] | None, out: Path
) -> Mapping[str, Any]:
    """Returns what is recorded of a file, or what it holds if nothing is."""
    stamp = Stamp.of(path)
    if before is None:
        return stamp._asdict() | {"xxh3": xxh3_of(path)}
    if stamp == Stamp(before["bytes"], before["changed_ns"]):
        return before
    if before["bytes"] != stamp.bytes:
        change = f"has {stamp.bytes:,} bytes, had {before['bytes']:,}"
    elif before["xxh3"] != xxh3_of(path):
        change = "has other content of the same size"
    else:  # a copy, or touched
        return before
    raise DataError(
        f"{path}: {change} when {out} was made from it; take another --out, or delete "
        f"{out}"
    )


def check_unchanged(paths: Sequence[Path], before: Sequence[Stamp], out: Path) -> None:
    """Raises ``DataError`` if a file changed while it was read.

    Args:
      paths: the raw files.
      before: their stamps before they were read.
      out: folder of the prepared data, for the message.
    """
    for path, stamp in zip(paths, before, strict=True):
        if Stamp.of(path) != stamp:
            raise DataError(
                f"{path}: was changed while it was read; delete {out}, and run the "
                "command again when the file is complete"
            )
