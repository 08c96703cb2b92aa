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

from embark_jax.checkpoint.contents import ARRAYS
from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.data.hashed_file import checksum_of

NAME = f"{ARRAYS}/digests.{{}}.json"
"""File of a process's list in a checkpoint."""
Digests = dict[str, dict[str, str]]
"""XXH3 of chunks, by array and by place, such as "0/12", among its chunks; of a table
that is the place of its rows."""


def digest(values: np.ndarray) -> str:
    """Returns the digest of the bytes of an array."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return xxhash.xxh3_64_hexdigest(flat.view(np.uint8).data)


def digests_text(checkpoint: str, digests: Mapping) -> str:
    """Returns the list of a process, in JSON.

    Args:
      checkpoint: checksum of the contents of the checkpoint.
      digests: digests of all chunks that the process wrote.
    """
    content = {"checkpoint": checkpoint, "chunks": digests}
    return json.dumps({"checksum": checksum_of(content), **content})


def read_digests(store: ts.KvStore, processes: int, checkpoint: str) -> Digests:
    """Returns the digests that all processes listed in a checkpoint.

    Raises:
      CheckpointError: if a list is missing, damaged, or of another checkpoint.
    """
    digests = Digests()
    names = [NAME.format(process) for process in range(processes)]
    for name, future in [(name, store.read(name)) for name in names]:
        try:
            content = json.loads(future.result().value)
            intact = content["checksum"] == checksum_of(content)
            intact = intact and content["checkpoint"] == checkpoint
        except (ValueError, KeyError, TypeError):
            intact, content = False, {}
        if not intact:
            raise CheckpointError(f"{name} is not as it was written")
        for array, chunks in content["chunks"].items():
            digests.setdefault(array, {}).update(chunks)
    return digests
