"""Between the first stage and the second, for data with histories: all samples of a
user come into one part, so that a sequence is a matter of this part alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax.data.files import read_arrow, write_arrow
from embark_jax.data.pipeline import in_order
from embark_jax.data.prepare.history import History
from embark_jax.data.prepare.parsing import SamplePart

PART_SAMPLES = 2**18
"""Samples of a part, about; a worker needs some hundred bytes for each and its
sequences."""


def with_histories(
    history: History,
    parts: Sequence[SamplePart],
    folder: Path,
    workers: int,
    progress: Callable[[int, int], None],
) -> Iterator[SamplePart]:
    """Parts with the same samples and their sequences; those in the folder are kept.

    Args:
      history: which sequences.
      parts: with samples of any users, as ``History.by_hash`` orders them.
      folder: of the parts that are made.
      workers: parts at once.
      progress: is told the parts that are done, and how many there will be.
    """
    count = -(-sum(part.rows for part in parts) // PART_SAMPLES)
    hashes = (np.arange(1, count) / count * 2.0**64).astype(np.uint64)
    cuts = [
        [0, *np.searchsorted(history.hashes(part.read()), hashes), part.rows]
        for part in parts
    ]

    def make(number: int) -> SamplePart:
        path = folder / f"{number:06}.arrow"
        if not path.exists():
            pieces = []
            for part, places in zip(parts, cuts, strict=True):
                first, end = places[number : number + 2]
                pieces.append(part.read().slice(first, end - first))
            write_arrow(path, history.add_to(pa.concat_tables(pieces).combine_chunks()))
        return SamplePart(path, 0, len(read_arrow(path)))

    made = in_order(make, range(count), workers=workers, depth=workers)
    for number, part in enumerate(made, 1):
        progress(number, count)
        if part.rows:
            yield part
