"""Sequences of what a user met before each sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax._base.files import write_arrow
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.recipe import History
from embark_jax.data.prepare.samples import SampleChunk

CHUNK_SAMPLES = 2**18
"""How many samples a chunk with sequences has."""


def with_histories(
    database: sql.Database,
    history: History,
    chunks: Sequence[SampleChunk],
    folder: Path,
) -> list[SampleChunk]:
    """Makes chunks with the same samples, in their order, and their sequences: lists,
    the latest event at the end. Events of one time are in the order of the samples.
    """
    samples = pa.concat_tables([chunk.read() for chunk in chunks])
    samples = samples.append_column("n", pa.array(np.arange(len(samples))))
    user, time = sql.name(history.user), sql.name(history.time)
    gathered, sequences = [], []
    for name, column in history.sequences.items():
        gathered.append(f"list({sql.name(column)} ORDER BY n) AS {sql.name(name)}")
        past = f"flatten(list({sql.name(name)}) OVER earlier)[-{history.length}:]"
        sequences.append(f"coalesce({past}, []) AS {sql.name(name)}")
    # Each time has an event at least: so many times before have enough of them.
    query = (
        f"WITH times AS (SELECT {user}, {time}, {', '.join(gathered)} FROM samples "
        f"GROUP BY {user}, {time}), past AS (SELECT {user}, {time}, "
        f"{', '.join(sequences)} FROM times WINDOW earlier AS (PARTITION BY {user} "
        f"ORDER BY {time} ROWS BETWEEN {history.length} PRECEDING AND 1 PRECEDING)) "
        f"SELECT samples.* EXCLUDE n, {', '.join(map(sql.name, history.sequences))} "
        f"FROM samples JOIN past USING ({user}, {time}) ORDER BY n"
    )
    made = []
    batches = database.batches(query, CHUNK_SAMPLES, samples=samples)
    for number, batch in enumerate(batches):
        path = folder / f"with-histories-{number:06}.arrow"
        write_arrow(path, pa.Table.from_batches([batch]))
        made.append(SampleChunk(path, 0, len(batch)))
    return made
