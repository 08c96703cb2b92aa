"""Folders of buckets as folders of this machine.

What appends to files, maps them into memory or replaces them at once needs a file
system. So a folder in a bucket is copied to this machine to be read, and what is
written here is copied there. Checkpoints alone are read and written in place.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import filelock

from embark_jax._base.files import new_folder, write_json
from embark_jax._base.object_store import (
    StorageError,
    file_system_or_bucket,
    in_bucket,
    reached,
)

READ, WRITTEN = "buckets", "runs"
"""Folders of the cache: copies to be read, and those that runs write to, which nobody
else may bring up to date."""
_AT_ONCE = 64
"""Files that are fetched together; a copy that is cut short loses no others."""


def cache_folder() -> Path:
    """Returns the folder of what is fetched: ``$EMBARK_DATA``, or by default
    ``~/.cache/embark_jax``."""
    return Path(os.environ.get("EMBARK_DATA") or Path.home() / ".cache" / "embark_jax")


def copy_of(folder: str | os.PathLike[str], kind: str = READ) -> Path:
    """Returns a folder of a file system as it is; of one in a bucket where its copy is,
    or will be, of those to be read or those to be written."""
    source = file_system_or_bucket(folder)
    if not in_bucket(source):
        return source
    if _leaves(source.name):
        raise StorageError(f"{source}: must end in the name of a folder")
    return cache_folder() / kind / quote(str(source.parent), "") / source.name


def local_copy(
    folder: str | os.PathLike[str],
    without: Collection[str] = (),
    kind: str = READ,
) -> Path:
    """Returns a folder of a file system as it is; of one in a bucket a copy.

    The copy is in ``cache_folder()``. Objects are fetched whose size or ETag differs
    from that of the last time.

    Args:
      folder: the folder.
      without: names of subfolders that are left out.
      kind: whether the copy is one to be read, or one to be written, whose folder may
        still be empty.

    Raises:
      StorageError: if the bucket cannot be used, or the folder is not there.
    """
    source, copy = file_system_or_bucket(folder), copy_of(folder, kind)
    if not in_bucket(source):
        return copy
    copy.mkdir(parents=True, exist_ok=True)
    index = copy.with_name(f"{copy.name}.index.json")
    # Other processes wait, and find the copy there.
    with filelock.FileLock(index.with_suffix(".lock")), reached(source):
        files = bucket_folder(source)
        objects = _versions(source, files, without)
        if not objects and kind == READ:
            raise StorageError(f"{source}: there is no such folder, or it is empty")
        before = json.loads(index.read_bytes()) if index.exists() else {}
        there = {}
        for path in filter(Path.is_file, copy.rglob("*")):
            name = path.relative_to(copy).as_posix()
            version = objects.get(name, [None])
            if version == before.get(name) and version[0] == path.stat().st_size:
                there[name] = version
            else:
                path.unlink()
        missing = sorted(objects.keys() - there)
        write_json(index, there)
        while missing:
            names, missing = missing[:_AT_ONCE], missing[_AT_ONCE:]
            files.get(names, [str(copy / name) for name in names])
            there |= {name: objects[name] for name in names}
            write_json(index, there)
    return copy


class Upload:
    """Copies the files of a folder of this machine into a bucket, again and again.

    Args:
      source: the folder.
      target: the folder in the bucket.
    """

    def __init__(self, source: Path, target: str | os.PathLike[str]):
        self._source, self._target = source, file_system_or_bucket(target)
        self._sent: dict[str, tuple[int, int]] = {}

    def __call__(self, last: str | None = None) -> None:
        """Copies what has changed since the last time; ``last`` names the file that
        goes when all others are there.

        Raises:
          StorageError: if the bucket cannot be used.
        """
        now = {}
        for path in filter(Path.is_file, self._source.rglob("*")):
            status = path.stat()
            name = path.relative_to(self._source).as_posix()
            now[name] = status.st_size, status.st_mtime_ns
        changed = sorted(name for name in now if self._sent.get(name) != now[name])
        with reached(self._target):
            files = bucket_folder(self._target)
            for at_last in (False, True):
                names = [name for name in changed if (name == last) is at_last]
                files.put([str(self._source / name) for name in names], names)
        self._sent = now


@contextlib.contextmanager
def written(folder: str | os.PathLike[str], last: str) -> Iterator[Path]:
    """Gives a scratch folder to write to, which becomes the folder when the block ends
    well: it is renamed, or its files are copied to a bucket.

    Args:
      folder: the folder, new or empty.
      last: name of the file that says that all others are there.

    Raises:
      StorageError: if the bucket cannot be used.
      FileExistsError: if the folder holds something.
      DataError: if another process writes it.
    """
    target = file_system_or_bucket(folder)
    with reached(target):
        if in_bucket(target):
            is_empty = not bucket_folder(target).find("")
        else:
            is_empty = not target.exists() or not any(target.iterdir())
    if not is_empty:
        raise FileExistsError(f"{target}: is not empty, must be a new folder")
    if not in_bucket(target):
        with new_folder(target) as scratch:
            yield scratch
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".upload-") as scratch:
        yield Path(scratch)
        Upload(Path(scratch), target)(last)


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Tries to write an object into a folder of a bucket; leaves nothing there.

    Raises:
      StorageError: if it cannot be written.
    """
    with reached(folder):
        files = bucket_folder(folder)
        files.pipe_file(".writable", b"")
        files.rm_file(".writable")


def bucket_folder(folder: str | os.PathLike[str]) -> Any:
    """Returns a folder of a bucket as a file system of fsspec. What was listed before,
    also by ``epath``, is forgotten: others may have changed it."""
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    files, root = fsspec.url_to_fs(os.fspath(file_system_or_bucket(folder)))
    files.invalidate_cache()
    return DirFileSystem(root, files)


def _leaves(name: str) -> bool:
    """Whether a name, taken as a path, leads out of the folder that it is in."""
    return name.startswith("/") or ".." in name.split("/")


def _versions(
    source: Path, files: Any, without: Collection[str]
) -> dict[str, list[Any]]:
    """Returns size and ETag of each object of a folder."""
    try:
        children = files.ls("")
    except FileNotFoundError:
        files.find("")  # raises if there is no such bucket
        return {}
    objects = {}
    for child in children:
        if child["type"] != "directory":
            objects[child["name"]] = child
        elif child["name"] not in without:
            objects |= files.find(child["name"], detail=True)
    for name in filter(_leaves, objects):
        raise StorageError(
            f"{source}: has an object {name!r}, must have names without .., which "
            "would be copied elsewhere"
        )
    return {
        name: [each["size"], each.get("ETag", each.get("etag"))]
        for name, each in objects.items()
    }
