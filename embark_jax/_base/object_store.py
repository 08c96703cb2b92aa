"""Says which paths lie on a file system, and which in a bucket.

Runs, exports and prepared data may lie in a bucket; all else lies on a file system, and
a path such as ``s3://bucket/run`` must not become the local folder ``s3:``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, PlainSerializer

from embark_jax._base.errors import UserError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
"""``Path`` makes one slash of two."""
BUCKETS = {"gs": "gcs", "s3": "s3"}
"""TensorStore's driver of each scheme that names a bucket."""


class StorageError(UserError, ValueError):
    """A path on storage that cannot be used."""

    may_pass = True


def local(path: str | os.PathLike[str]) -> Path:
    """Returns a path on a file system, local or on a network.

    Raises:
      StorageError: if the path has a scheme, such as that of an object store.
    """
    if (location := _scheme_and_rest(path)) is not None:
        scheme, rest = location
        raise StorageError(
            f"{scheme}://{rest}: {scheme}:// cannot be read or written yet, must be a "
            "path of a file system, local or on a network; copy from there or to "
            "there, or mount it"
        )
    return Path(path)


def file_system_or_bucket(path: str | os.PathLike[str]) -> Path:
    """Returns a path on a file system as it is; one in a bucket as an ``epath.Path``,
    which has the same methods.

    Raises:
      StorageError: if the path has another scheme than ``gs://`` and ``s3://``.
    """
    location = _scheme_and_rest(path)
    if location is None or location[0] not in BUCKETS:
        return local(path)
    from etils import epath

    return cast(Path, epath.Path(f"{location[0]}://{location[1]}"))


def in_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a bucket."""
    return _scheme_and_rest(path) is not None


@contextlib.contextmanager
def reached(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns what the client of a path's bucket raises, whatever it is, into
    ``StorageError``."""
    try:
        yield
    except Exception as error:
        is_own = isinstance(error, UserError | AttributeError | TypeError | NameError)
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if not in_bucket(path) or is_own or is_full:
            raise
        remedy = ""
        if isinstance(error, ImportError):
            remedy = f"; pip install 'embark_jax[{os.fspath(path)[:2]}]'"
        raise StorageError(
            f"{os.fspath(path)}: the bucket cannot be used ({error}){remedy}"
        ) from None


def key_value_store(folder: os.PathLike[str]) -> dict[str, Any]:
    """Returns TensorStore's description of a folder. ``AWS_ENDPOINT_URL`` names another
    server than Amazon's, as it does for Amazon's own tools."""
    location = _scheme_and_rest(folder)
    if location is None:
        # Checkpoints get their name last: no file has to appear as a whole.
        locking = {"mode": "non_atomic"}
        path = f"{os.path.realpath(folder)}/"  # TensorStore takes no ".."
        return {"driver": "file", "path": path, "file_io_locking": locking}
    scheme, rest = location
    bucket, _, path = rest.partition("/")
    # Unlimited, a server that is gone would be tried for an hour.
    retries = {f"{BUCKETS[scheme]}_request_retries": {"max_retries": 6}}
    store = {"driver": BUCKETS[scheme], "bucket": bucket, "path": f"{path}/", **retries}
    if scheme == "s3" and "AWS_ACCESS_KEY_ID" in os.environ:
        # Else the client complains of each file of credentials that is not there.
        store |= {"aws_credentials": {"type": "environment"}}
    if scheme == "s3" and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        region = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        store |= {"endpoint": endpoint, "aws_region": region}
    return store


def _scheme_and_rest(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Returns scheme and rest of a path; None for one of a file system."""
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    return scheme and (scheme[1], text[scheme.end() :])


LocalPath = Annotated[Path, AfterValidator(local)]
"""A path in a config, which is on a file system."""
AnyPath = Annotated[
    Path, AfterValidator(file_system_or_bucket), PlainSerializer(os.fspath)
]
"""A path in a config, which may be in a bucket."""
