"""Digests of chunks, which each process lists beside the arrays that it wrote.

A chunk has a checksum of its own, which is right in another place, too. By the digests
a chunk of another array or checkpoint is known for what it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import tensorstore as ts
import xxhash
from etils import epath

from embark_jax._base.storage import key_value_store
from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.data.hashed_file import checksum_of

NAME = "digests.{}.json"
"""Name of the list of a process, among the arrays."""
Digests = dict[str, dict[str, str]]
"""XXH3 of chunks, by array and by place, such as "0/12", among its chunks; of a table
that is the place of its rows."""


def digest(values: np.ndarray) -> str:
    """Returns the digest of the bytes of an array."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return xxhash.xxh3_64_hexdigest(flat.view(np.uint8).data)


def write_digests(
    folder: epath.Path, process: int, checkpoint: str, digests: Mapping
) -> None:
    """Writes the list of a process.

    Args:
      folder: folder of the arrays.
      process: number of the process.
      checkpoint: checksum of the description of the checkpoint.
      digests: digests of all chunks that the process wrote.
    """
    content = {"checkpoint": checkpoint, "chunks": digests}
    text = json.dumps({"checksum": checksum_of(content), **content})
    _store(folder).write(NAME.format(process), text.encode()).result()


def read_digests(folder: epath.Path, processes: int, checkpoint: str) -> Digests:
    """Returns the digests of all processes; arguments as in ``write_digests``.

    Raises:
      CheckpointError: if a list is missing, damaged, or of another checkpoint.
    """
    store, digests = _store(folder), Digests()
    names = [NAME.format(process) for process in range(processes)]
    for name, future in [(name, store.read(name)) for name in names]:
        try:
            content = json.loads(future.result().value)
            intact = content["checksum"] == checksum_of(content)
            intact = intact and content["checkpoint"] == checkpoint
        except (ValueError, KeyError, TypeError):
            intact, content = False, {}
        if not intact:
            raise CheckpointError(f"arrays/{name} is not as it was written")
        for array, chunks in content["chunks"].items():
            digests.setdefault(array, {}).update(chunks)
    return digests


def _store(folder: epath.Path) -> ts.KvStore:
    return ts.KvStore.open(key_value_store(folder)).result()
