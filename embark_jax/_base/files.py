"""Writes files that appear whole or not at all, and finds those that others name."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pyarrow as pa

from embark_jax._base.config import ConfigError
from embark_jax._base.errors import DataError
from embark_jax._base.object_store import in_bucket, local


@contextlib.contextmanager
def replacing(path: Path, exist_ok: bool = True) -> Iterator[Path]:
    """Gives a path to write to, which becomes ``path`` when the block ends well.

    Raises:
      FileExistsError: if there is such a file by then, unless it may be replaced.
    """
    path = local(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")  # another's is his own
    try:
        yield scratch
        if exist_ok:
            scratch.replace(path)
        else:
            path.hardlink_to(scratch)
    except OSError as error:
        if error.filename is None:  # such as of a full disk: say which file it was for
            number, problem = error.errno or errno.EIO, error.strerror or str(error)
            raise OSError(number, problem, str(path)) from error
        raise
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a folder beside ``path`` to fill, which becomes ``path`` when the block
    ends well, and is deleted when it does not.

    Raises:
      DataError: if ``path`` is a file, or a folder that holds something, or another
        process fills it.
    """
    path = local(path).absolute()
    if path.exists() and not path.is_dir():
        raise DataError(f"{path}: is a file, must be a folder; take another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    told = "another command writes it now; wait for its end, or take another --out"
    lock = locked(path.with_name(f".{path.name}.lock"), DataError(f"{path}: {told}"))
    try:
        if path.exists():
            if any(path.iterdir()):
                raise DataError(
                    f"{path}: holds files; take another --out, or delete it"
                )
            path.rmdir()
        shutil.rmtree(scratch, ignore_errors=True)  # of a command that was killed
        scratch.mkdir()
        yield scratch
        scratch.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def check_path(path: str | os.PathLike[str]) -> None:
    """Raises ``ConfigError`` if TensorStore would write to another folder."""
    if not in_bucket(path) and "\\" in (absolute := str(Path(path).absolute())):
        raise ConfigError(
            f"{path}: a backslash in {absolute} is a slash to TensorStore, which "
            "writes checkpoints; choose another --workdir"
        )


def locked(path: Path, error: Exception) -> filelock.BaseFileLock:
    """Returns a lock, which keeps others out while it is there; raises ``error`` if one
    of them has it."""
    lock = filelock.FileLock(path, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise error from None
    return lock


def read_json(path: Path, remedy: str) -> Any:
    """Reads a JSON file.

    Raises:
      DataError: if it is no JSON; the message ends with ``remedy``.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # of the JSON, or of its encoding
        raise DataError(f"{path}: is damaged ({error}); {remedy}") from None


def write_json(path: Path, data: Any) -> None:
    with replacing(path) as scratch:
        scratch.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def write_arrow(path: Path, table: pa.Table) -> None:
    """Writes an Arrow IPC file."""
    with (
        replacing(path) as scratch,
        pa.ipc.new_file(str(scratch), table.schema) as writer,
    ):
        writer.write_table(table.combine_chunks())


def read_arrow(path: Path) -> pa.Table:
    """Reads the whole of an Arrow IPC file, mapped into memory.

    Raises:
      DataError: if it is damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: is no Arrow file, or is damaged: {error}") from None
    return table.combine_chunks()


def allocate(file: int, size: int, where: Path) -> None:
    """Gives an open file, which will be mapped, its place on the disk: otherwise a full
    disk ends the process when a page is written.

    Args:
      file: its descriptor.
      size: bytes.
      where: what messages name.

    Raises:
      OSError: if there is no room.
    """
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(where)) from None


def confined(folder: Path, name: str) -> Path:
    """Returns the path of a file of a folder that one of the folder's files names.

    Args:
      folder: the folder.
      name: path in the folder, as a manifest or a description gives it.

    Raises:
      DataError: if the path leads out of the folder, links followed, or is no path.
    """
    outside = f"{folder}: names the file {name!r}, which must lie in this folder"
    try:
        inside = (folder / name).resolve().relative_to(folder.resolve())
    except ValueError as error:
        raise DataError(f"{outside}; get the folder anew from who made it") from error
    if inside == Path():
        raise DataError(f"{outside}, and is the folder itself")
    return folder / name
