"""Certainty of a sample about which rows are hot, and how hot they are."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt

from embark_jax.statistics.histogram import MOST_HOTTEST


@dataclasses.dataclass(frozen=True)
class HalfAgreement:
    """Agreement between two halves of a sample on which rows are hot.

    A row may be hot in a sample by chance, and then adds to the share that the hottest
    rows take there. The half that did not choose the rows has no such bias.

    Attributes:
      listed: number of hottest rows of the first half, as many as ``Histogram`` names.
      agreed: number of them that are among the hottest of the second half.
      share: share of the second half's accesses that they take.
      share_error: standard error of that share, binomial: it takes accesses as
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
        """Compares two halves, each ``[rows seen]`` ids and how often each was seen;
        None if one half saw none."""
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
