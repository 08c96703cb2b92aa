"""Groups data with histories between the first stage and the second: all samples of a
user go into one chunk, so that a sequence depends on this chunk alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax._base.files import write_arrow
from embark_jax.data.pipeline import Workers
from embark_jax.data.prepare.parsing import SampleChunk
from embark_jax.data.prepare.sequences import History

CHUNK_SAMPLES = 2**18
"""About how many samples a chunk has; a worker needs some hundred bytes for each sample
and its sequences."""


def with_histories(
    history: History,
    chunks: Sequence[SampleChunk],
    folder: Path,
    workers: Workers,
) -> Iterator[SampleChunk]:
    """Makes chunks with the same samples and their sequences.

    Args:
      history: which sequences to make.
      chunks: samples of any users, as ``History.by_hash`` orders them.
      folder: folder for the new chunks.
      workers: threads; progress is a number of chunks.
    """
    count = -(-sum(chunk.rows for chunk in chunks) // CHUNK_SAMPLES)
    hashes = (np.arange(1, count) / count * 2.0**64).astype(np.uint64)
    cuts = [
        [0, *np.searchsorted(history.hashes(chunk.read()), hashes), chunk.rows]
        for chunk in chunks
    ]

    def make(number: int) -> SampleChunk:
        path = folder / f"{number:06}.arrow"
        slices = [
            chunk.read().slice(begins[number], begins[number + 1] - begins[number])
            for chunk, begins in zip(chunks, cuts, strict=True)
        ]
        samples = history.add_to(pa.concat_tables(slices).combine_chunks())
        write_arrow(path, samples)
        return SampleChunk(path=path, file=0, rows=len(samples))

    made = workers.map("group", make, range(count))
    return (chunk for chunk in made if chunk.rows)
