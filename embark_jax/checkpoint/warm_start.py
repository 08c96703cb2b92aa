"""Fills the state of a new run from a checkpoint of another one.

The first rows of a table are those of the checkpoint, the others keep their initial
values. Rows are read extent by extent, as in ``restoring``.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.cache.stored_rows import StoredRows
from embark_jax.checkpoint.layout import named_arrays, of_table, with_arrays
from embark_jax.checkpoint.reading import SavedCheckpoint
from embark_jax.checkpoint.restoring import (
    Blocks,
    moved_rows,
    restore_by_key,
    restored_array,
)
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import table_layouts
from embark_jax.train.state import TrainState


def warm_state(
    saved: SavedCheckpoint,
    state: TrainState,
    embeddings: EmbeddingCollection,
    counts: Mapping[str, int],
    keep_optimizer: bool,
) -> TrainState:
    """Returns a new run's state with what comes over from a checkpoint.

    Args:
      saved: the checkpoint.
      state: a new trainer's ``state_to_fill``; consumed.
      embeddings: collection that the state belongs to.
      counts: number of first rows that come over, by table; dynamic tables get all
        rows of then, and other tables are as in ``state``.
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
            for table, count in counts.items():
                for here in (r for r in layouts[table] if r.storage == storage):
                    for batch in moved_rows(saved, name, table, here, blocks, count):
                        for first, rows in batch:
                            blocks.put(first, rows)
            arrays[name] = blocks.array()
        else:
            arrays[name] = restored_array(saved, name, array)
    state = with_arrays(state, arrays)
    if not keep_optimizer:
        return state
    replicated = NamedSharding(embeddings.mesh, PartitionSpec())
    step = np.int32(saved.description.step)
    return state._replace(step=jax.jit(lambda: step, out_shardings=replicated)())
