"""How sure a sample is of which rows are hot, and of how hot they are."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt

from embark_jax.planner.request.histogram import MOST_HOTTEST


@dataclasses.dataclass(frozen=True)
class HalfAgreement:
    """What one half of a sample says of the rows that are hottest in the other half.

    A row may be hot in a sample by chance, and then adds to the share that the hottest
    rows take there. The half that did not choose them has no such bias.

    Attributes:
      listed: the hottest rows of the first half, as many as ``Histogram`` names.
      agreed: how many of them are among the hottest of the second half.
      share: of the second half's accesses that they take.
      share_error: standard error of that share, binomial: as if accesses were
        independent, which those of one user are not quite.
    """

    listed: NonNegativeInt
    agreed: NonNegativeInt
    share: NonNegativeFloat
    share_error: NonNegativeFloat

    @classmethod
    def from_counts(
        cls, first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
    ) -> HalfAgreement | None:
        """From each half's ``[rows seen]`` ids and how often each was seen; None if one
        half saw none."""
        if not (len(first[0]) and len(second[0])):
            return None
        hottest, others = (
            ids[np.lexsort((ids, -counts))[:MOST_HOTTEST]]
            for ids, counts in (first, second)
        )
        ids, counts = second
        accesses = int(counts.sum())
        share = int(counts[np.isin(ids, hottest)].sum()) / accesses
        return cls(
            len(hottest),
            len(np.intersect1d(hottest, others)),
            share,
            math.sqrt(share * (1 - share) / accesses),
        )
