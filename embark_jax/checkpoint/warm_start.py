"""Fills the state of a new run from a checkpoint of another one.

Tables may have other rows than there: ``RowMatch`` says which of theirs go where; all
other rows keep their initial values. Rows are read extent by extent, as in
``restoring``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.cache.stored_rows import StoredRows
from embark_jax.checkpoint.layout import named_arrays, of_table, with_arrays
from embark_jax.checkpoint.reading import SavedCheckpoint, extents
from embark_jax.checkpoint.restoring import (
    Blocks,
    moved_rows,
    restore_by_key,
    restored_array,
)
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import RangeLayout, table_layouts
from embark_jax.train.state import TrainState


class RowMatch(NamedTuple):
    """Which rows of a saved table are rows of a new one.

    Attributes:
      count: the first ``count`` rows keep their numbers.
      targets: or else the new number of each of the ``count`` rows, -1 for one that is
        gone.
    """

    count: int
    targets: np.ndarray | None = None

    @property
    def matched(self) -> int:
        """Number of rows that come over."""
        return self.count if self.targets is None else int((self.targets >= 0).sum())

    @classmethod
    def of(cls, targets: np.ndarray) -> RowMatch:
        """Makes the match of ``targets``; rows in their old order are copied faster."""
        in_order = np.array_equal(targets, np.arange(len(targets)))
        return cls(len(targets), None if in_order else targets)


def warm_state(
    saved: SavedCheckpoint,
    state: TrainState,
    embeddings: EmbeddingCollection,
    matches: Mapping[str, RowMatch],
    keep_optimizer: bool,
) -> TrainState:
    """Returns a new run's state with what comes over from a checkpoint.

    Args:
      saved: the checkpoint.
      state: a new trainer's ``state_to_fill``; consumed.
      embeddings: collection that the state belongs to.
      matches: rows that come over, by table; dynamic tables get all rows of then, and
        other tables are as in ``state``.
      keep_optimizer: whether the state of the optimizers and the number of steps come
        over, too.

    Raises:
      CheckpointError: if the checkpoint is damaged, or an array of the dense model or
        of the optimizers has another shape there.
    """
    jax.block_until_ready(state)  # else reading pays for initial tables
    layouts = table_layouts(embeddings.plan.storages)
    arrays = named_arrays(state)
    for name, array in arrays.items():
        if not keep_optimizer and name.startswith(("dense_state", "embedding_state")):
            continue
        if isinstance(array, StoredRows):
            if array.table in saved.description.tables:
                restore_by_key(saved, array)
        elif of_table(name):
            blocks, storage = Blocks(array), name.split(".")[1]
            for table, match in matches.items():
                for layout in layouts[table]:
                    if layout.storage == storage:
                        _copy_rows(saved, name, table, layout, blocks, match)
            arrays[name] = blocks.array()
        else:
            arrays[name] = restored_array(saved, name, array)
    state = with_arrays(state, arrays)
    if not keep_optimizer:
        return state
    replicated = NamedSharding(embeddings.mesh, PartitionSpec())
    step = np.int32(saved.description.step)
    return state._replace(step=jax.jit(lambda: step, out_shardings=replicated)())


def _copy_rows(
    saved: SavedCheckpoint,
    name: str,
    table: str,
    here: RangeLayout,
    blocks: Blocks,
    match: RowMatch,
) -> None:
    """Copies the rows of a table that come to one range of it here."""
    if match.targets is None:
        for batch in moved_rows(saved, name, table, here, blocks, match.count):
            for first, rows in batch:
                blocks.put(first, rows)
        return
    for targets, rows in _matched(saved, name, table, here, blocks, match.targets):
        for k in range(here.column_shards):
            slots = here.slots_of(targets, k)
            whole = rows.shape[1] == here.dim  # else one value a row
            columns = slice(k * blocks.width, (k + 1) * blocks.width)
            blocks.scatter(slots, rows[:, columns] if whole else rows)


def _matched(
    saved: SavedCheckpoint,
    name: str,
    table: str,
    here: RangeLayout,
    blocks: Blocks,
    targets: np.ndarray,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields new numbers and values of the rows that come over, in their old order."""
    dim = here.dim if blocks.width == here.width else 1

    def read(extent: range) -> tuple[np.ndarray, Any]:
        numbers = targets[extent.start : extent.stop]
        rows = np.empty((len(extent), dim), blocks.dtype)
        for there in saved.description.tables[table]:
            source = name.replace(f".{here.storage}", f".{there.storage}", 1)
            saved.table_rows(there, source, extent, rows)
        return numbers[numbers >= 0], rows[numbers >= 0]

    row_bytes = blocks.dtype.itemsize * dim
    yield from saved.in_threads(read, extents(range(len(targets)), row_bytes))
