"""The blocks of a state's arrays, the devices that write them, and their files.

Each device's blocks go into a file of its own, ``device-N.bin``. All processes compute
the same layout without a message: shapes and shardings determine it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from embark_jax.cache.stored_array import StoredArray
from embark_jax.checkpoint.files import CHECKED_BYTES, PAGE_BYTES
from embark_jax.checkpoint.manifest import Block, SavedArray
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.train.state import TrainState

SHARED_BYTES = 1 << 20
"""Blocks that several devices hold are written in equal shares if they are larger."""
BLOCK_ALIGNMENT = 64

NOT_SAVED = ("step", "halted")
"""Fields of the state that the manifest has, or that are always equal."""
TABLE_FIELDS = ("storages", "embedding_state")


def named_arrays(state: TrainState, tables: bool) -> dict[str, Any]:
    """Returns the arrays of a state by dotted path, such as "params.top.layers.0.w".

    Args:
      state: state of arrays, or of their shapes.
      tables: whether to return the arrays of the tables, or all others.
    """
    wanted = {
        name: value
        for name, value in state._asdict().items()
        if name not in NOT_SAVED and (name in TABLE_FIELDS) == tables
    }
    return {array_name(path): leaf for path, leaf in jax.tree.leaves_with_path(wanted)}


def check_whole(state: TrainState, embeddings: EmbeddingCollection) -> None:
    """Raises ``ValueError`` if a state has some rows of cached tables, not all."""
    for name in embeddings.cached:
        if not isinstance(state.storages[name], StoredArray):
            raise ValueError(
                f"the state has slots of {name}, which hold some rows of its tables "
                "alone; give Trainer.whole_state()"
            )


def with_arrays(state: TrainState, arrays: Mapping[str, jax.Array]) -> TrainState:
    """Returns the state with other arrays, by the names that ``named_arrays`` gives."""
    fields = {
        name: value for name, value in state._asdict().items() if name not in NOT_SAVED
    }
    return state._replace(
        **jax.tree.map_with_path(lambda path, _: arrays[array_name(path)], fields)
    )


def array_name(path: Sequence[Any]) -> str:
    """Returns the name of an array, by its path in the state."""
    name = jax.tree_util.keystr(tuple(path), simple=True, separator=".")
    return name.removesuffix(".value")  # of nnx.Variable


class Layout(NamedTuple):
    """Arrays and their files.

    Attributes:
      arrays: arrays by name.
      files: bytes of each file.
    """

    arrays: dict[str, SavedArray]
    files: dict[str, int]


def device_numbers(mesh: Mesh) -> dict[Any, int]:
    return {device: number for number, device in enumerate(mesh.devices.flat)}


def file_name(device: int) -> str:
    return f"device-{device}.bin"


def lay_out(arrays: Mapping[str, jax.Array], mesh: Mesh) -> Layout:
    """Gives each block of each array its place.

    Args:
      arrays: arrays of numbers, by name.
      mesh: mesh whose order of devices numbers the files.
    """
    numbers = device_numbers(mesh)
    ends = [0] * len(numbers)
    saved = {}
    for name, array in arrays.items():
        blocks = []
        for number, begin, shape in _shares(array, numbers):
            size = math.prod(shape) * array.dtype.itemsize
            alignment = CHECKED_BYTES if size > CHECKED_BYTES else BLOCK_ALIGNMENT
            offset = _round_up(ends[number], alignment)
            ends[number] = offset + size
            blocks.append(Block(file_name(number), offset, begin, shape))
        blocks = tuple(sorted(blocks, key=lambda block: block.begin))
        saved[name] = SavedArray(str(array.dtype), tuple(array.shape), blocks)
    files = {
        file_name(number): _round_up(end, PAGE_BYTES)
        for number, end in enumerate(ends)
        if end
    }
    return Layout(saved, files)


def _shares(
    array: jax.Array, numbers: Mapping[Any, int]
) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Yields ``(device number, begin, shape)`` of the blocks of an array."""
    holders: dict[tuple, list[int]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        bounds = [each.indices(n) for each, n in zip(index, array.shape, strict=True)]
        begin = tuple(begin for begin, _, _ in bounds)
        shape = tuple(end - begin for begin, end, _ in bounds)
        holders.setdefault((begin, shape), []).append(numbers[device])
    found = []
    for (begin, shape), those in holders.items():
        if math.prod(shape) * array.dtype.itemsize <= SHARED_BYTES:
            found.append((min(those), begin, shape))
            continue
        cuts = np.linspace(0, shape[0], len(those) + 1).astype(int).tolist()
        for number, low, high in zip(sorted(those), cuts, cuts[1:], strict=False):
            if high > low:
                share = (high - low, *shape[1:])
                found.append((number, (begin[0] + low, *begin[1:]), share))
    return found


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
