"""The arrays of a state by name, and how they lie on disk.

Each is a zarr array (version 3), which TensorStore writes and reads; each chunk of it
has a checksum (CRC-32C). An array of a table is saved as ``[blocks, slots, width]``:
devices' blocks apart, so that no two processes write one file. All others are saved in
their shape. All processes compute the same layout without a message: shapes and
shardings determine it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tensorstore as ts
from etils import epath

from embark_jax._base.object_store import key_value_store
from embark_jax.cache.stored_rows import StoredArray
from embark_jax.train.state import TrainState

FILE_BYTES = 16 << 20
"""Most bytes of a table in one file: what is copied and written at a time."""
CHUNK_BYTES = 1 << 20
"""Most bytes of a table behind one checksum: the least that is read."""
CODECS = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
]

NOT_SAVED = ("step", "halted")
"""Fields of the state that ``checkpoint.json`` has, or that are always equal."""
TABLE_FIELDS = ("storages", "embedding_state")


def named_arrays(state: TrainState) -> dict[str, Any]:
    """Returns the arrays of a state by dotted path, such as "params.top.layers.0.w"."""
    leaves = jax.tree.leaves_with_path(_saved_fields(state))
    return {array_name(path): leaf for path, leaf in leaves}


def with_arrays(state: TrainState, arrays: Mapping[str, jax.Array]) -> TrainState:
    """Returns the state with other arrays, by the names that ``named_arrays`` gives."""
    fields = jax.tree.map_with_path(
        lambda path, _: arrays[array_name(path)], _saved_fields(state)
    )
    return state._replace(**fields)


def _saved_fields(state: TrainState) -> dict[str, Any]:
    fields = state._asdict()
    return {name: fields[name] for name in fields if name not in NOT_SAVED}


def array_name(path: Sequence[Any]) -> str:
    """Returns the name of an array, by its path in the state."""
    name = jax.tree_util.keystr(tuple(path), simple=True, separator=".")
    return name.removesuffix(".value")  # of nnx.Variable


def is_of_table(name: str) -> bool:
    """Whether an array is of tables, by its name."""
    return name.startswith(TABLE_FIELDS)


def is_key(array: Any) -> bool:
    """Whether an array holds random keys, of which the data is saved."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


class SavedArray(NamedTuple):
    """An array on disk: NumPy's name of its type, its shape, and the shapes of what one
    file holds, and of what has one checksum."""

    dtype: str
    shape: tuple[int, ...]
    file: tuple[int, ...]
    chunk: tuple[int, ...]

    @classmethod
    def of(cls, name: str, array: jax.Array | StoredArray) -> SavedArray:
        dtype, block = str(array.dtype), array.sharding.shard_shape(array.shape)
        if not is_of_table(name):
            file = tuple(max(1, size) for size in block)
            return cls(dtype, array.shape, file, file)
        slots, width = block
        row_bytes = max(1, width * array.dtype.itemsize)
        rows = max(1, min(slots, CHUNK_BYTES // row_bytes))
        chunks = max(1, min(-(-slots // rows), FILE_BYTES // (rows * row_bytes)))
        shape = array.shape[0] // max(1, slots), slots, width
        return cls(dtype, shape, (1, chunks * rows, width), (1, rows, width))

    def create(self, folder: epath.Path, name: str) -> ts.Future:
        """Opens the array for writing; process 0 writes its ``zarr.json``."""
        chunks = {"chunk_shape": self.chunk, "codecs": CODECS, "index_codecs": CODECS}
        grid = {"name": "regular", "configuration": {"chunk_shape": self.file}}
        metadata = {
            "shape": self.shape,
            "data_type": self.dtype,
            "chunk_grid": grid,
            "codecs": [{"name": "sharding_indexed", "configuration": chunks}],
        }
        spec, main = _spec(folder, name), jax.process_index() == 0
        return ts.open(
            spec | {"metadata": metadata},
            create=main,
            open=True,
            assume_metadata=not main,
        )


def open_array(folder: epath.Path, name: str, context: ts.Context) -> ts.Future:
    """Opens a saved array for reading."""
    return ts.open(_spec(folder, name), open=True, read=True, context=context)


def _spec(folder: epath.Path, name: str) -> dict[str, Any]:
    return {
        "driver": "zarr3",
        "kvstore": key_value_store(folder / name),
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,  # what is missing is an error, not zeros
    }
