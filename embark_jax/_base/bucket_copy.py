"""Folders of buckets as folders of this machine.

What appends to files, maps them into memory or replaces them at once needs a file
system. So a folder in a bucket is copied to this machine to be read, and what is
written here is copied there. Checkpoints alone are read and written in place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from embark_jax._base.files import write_json
from embark_jax._base.memory import bytes_text
from embark_jax._base.storage import (
    StorageError,
    file_system_or_bucket,
    in_bucket,
    local,
    reached,
)

READ, WRITTEN = "buckets", "runs"
"""Folders of the cache: copies to be read, and those that runs write to, which nobody
else may bring up to date."""


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
    new: bool = False,
    kind: str = READ,
) -> Path:
    """Returns a folder of a file system as it is; of one in a bucket a copy.

    The copy is in ``cache_folder()``. Objects are fetched whose size or ETag differs
    from that of the last time.

    Args:
      folder: the folder.
      without: names of subfolders that are left out.
      new: whether the folder may be empty.
      kind: whether the copy is one to be read, or one to be written.

    Raises:
      StorageError: if the bucket cannot be used, the folder is not there, or this
        machine has no room for the copy.
    """
    source, copy = file_system_or_bucket(folder), copy_of(folder, kind)
    if not in_bucket(source):
        return copy
    copy.mkdir(parents=True, exist_ok=True)
    index = copy.with_name(f"{copy.name}.index.json")
    with index.with_suffix(".lock").open("w") as lock, reached(source):
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes wait, and find it there
        files, root = bucket_client(source)
        objects = _objects(files, root, without)
        for name in objects:
            if _leaves(name):
                raise StorageError(
                    f"{source}: has an object {name!r}, must have names without .., "
                    "which would be copied elsewhere; delete it"
                )
        if not objects and not new:
            raise StorageError(f"{source}: there is no such folder, or it is empty")
        before = json.loads(index.read_bytes()) if index.exists() else {}
        index.unlink(missing_ok=True)  # if this is killed, all is fetched again
        for path in copy.rglob("*"):
            name = path.relative_to(copy).as_posix()
            version = objects.get(name, [None])
            same = version == before.get(name) and version[0] == path.stat().st_size
            if path.is_file() and not same:
                path.unlink()
        missing = {n: v for n, v in objects.items() if not (copy / n).is_file()}
        size, free = sum(v[0] for v in missing.values()), shutil.disk_usage(copy).free
        if size > free:
            raise StorageError(
                f"{source}: {bytes_text(size)} are copied to {copy}, which has room "
                f"for {bytes_text(free)}; name a folder of a larger disk in "
                "EMBARK_DATA"
            )
        for name in missing:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
        names = list(missing)
        files.get([f"{root}/{n}" for n in names], [str(copy / n) for n in names])
        write_json(index, objects)
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
        with reached(self._target):
            files, root = bucket_client(self._target)
            changed = {
                name: version
                for name, version in self._versions().items()
                if self._sent.get(name) != version
            }
            others = [name for name in changed if name != last]
            for names in (others, changed.keys() - others):
                sources = [str(self._source / name) for name in names]
                files.put(sources, [f"{root}/{name}" for name in names])
            self._sent |= changed

    def _versions(self) -> dict[str, tuple[int, int]]:
        paths = sorted(path for path in self._source.rglob("*") if path.is_file())
        versions = {}
        for path in paths:
            status = path.stat()
            name = path.relative_to(self._source).as_posix()
            versions[name] = status.st_size, status.st_mtime_ns
        return versions


@contextlib.contextmanager
def written(folder: str | os.PathLike[str], last: str) -> Iterator[Path]:
    """Gives a folder to write to: the one of a file system itself; for one in a bucket
    a scratch folder, whose files are copied there when the block ends well.

    Args:
      folder: the folder, new or empty.
      last: name of the file that says that all others are there.

    Raises:
      StorageError: if the bucket cannot be used.
      FileExistsError: if the folder holds something.
    """
    if not in_bucket(folder):
        path = local(folder)
        if path.exists() and any(path.iterdir()):
            raise FileExistsError(f"{path}: is not empty, must be a new folder")
        yield path
        return
    target = file_system_or_bucket(folder)
    with reached(target):
        is_empty = not _objects(*bucket_client(target))
    if not is_empty:
        raise FileExistsError(f"{target}: is not empty, must be a new folder")
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
        files, root = bucket_client(file_system_or_bucket(folder))
        files.pipe_file(f"{root}/.writable", b"")
        files.rm_file(f"{root}/.writable")


def bucket_client(folder: str | os.PathLike[str]) -> tuple[Any, str]:
    """Returns a client of a folder's bucket, which remembers nothing of it, and the
    name of the folder there."""
    import fsspec

    files, root = fsspec.url_to_fs(os.fspath(folder))
    files.invalidate_cache()
    return files, root


def children(files: Any, root: str) -> list[dict[str, Any]]:
    """Returns what a folder of a bucket holds, as fsspec describes it."""
    try:
        return files.ls(root, detail=True)
    except FileNotFoundError:
        files.find(root)  # raises if there is no such bucket
        return []


def _leaves(name: str) -> bool:
    """Whether a name, taken as a path, leads out of the folder that it is in."""
    return ".." in name.split("/")


def _objects(
    files: Any, root: str, without: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Returns size and ETag of each object of a folder."""
    objects = {}
    for info in children(files, root):
        if info["type"] == "directory":
            if info["name"].rpartition("/")[2] not in without:
                objects |= files.find(info["name"], detail=True)
        else:
            objects[info["name"]] = info
    return {
        name.removeprefix(root).strip("/"): [
            info["size"],
            info.get("ETag", info.get("etag")),
        ]
        for name, info in objects.items()
    }
