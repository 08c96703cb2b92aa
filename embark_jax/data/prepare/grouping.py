"""Groups data with histories between the first stage and the second: all samples of a
user go into one part, so that a sequence depends on this part alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax._base.files import read_arrow, write_arrow
from embark_jax.data.pipeline import in_order
from embark_jax.data.prepare.history import History
from embark_jax.data.prepare.parsing import SamplePart

PART_SAMPLES = 2**18
"""About how many samples a part has; a worker needs some hundred bytes for each sample
and its sequences."""


def with_histories(
    history: History,
    parts: Sequence[SamplePart],
    folder: Path,
    workers: int,
    progress: Callable[[int, int], None],
) -> Iterator[SamplePart]:
    """Makes parts with the same samples and their sequences, unless the folder has
    them.

    Args:
      history: which sequences to make.
      parts: parts with samples of any users, as ``History.by_hash`` orders them.
      folder: folder for the new parts.
      workers: number of parts processed at once.
      progress: called with the number of finished parts, and of all parts.
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
