"""The parameters of the search, in one place."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class SearchParams:
    """How much the search tries. Larger counts take longer, and hardly any value
    changes the steps of published models by more than 2 %. What each gains is in
    ``experiments/planners/README.md``.
    """

    hot_shares: tuple[float, ...] = (0.5, 0.65, 0.8, 0.9)
    """Shares of a table's ids that the hot rows of candidates take."""
    large_model: int = 64
    """Number of groups of alike tables above which a model is large: fewer splits, and
    only the start with the lowest bound. Without it, 1,000 unlike tables take four
    times as long, for steps that are 1.6 % shorter."""
    crowding: tuple[float, ...] = (0.0, 0.5, 1.0, 0.25, 0.75, 1.5, 0.375, 0.625)
    """Shares of the largest shard that are added to peaks, of the relaxations whose
    roundings are improved; 0 is the relaxation itself."""
    largest_shard: float = 1.5
    """Largest shard of a large model's rounding, as a multiple of the relaxed peak."""
    rounded_groups: int = 120
    """Groups of alike tables in all roundings together: models with more groups have
    fewer roundings improved."""
    tried: int = 20
    """Number of candidates of a group that moves choose among: the best ones of the
    relaxation."""
    last_tried: int = 40
    """Number of candidates of a group that the last moves, of the best plan, choose
    among: with more memory than it needs, DLRM-DCNv2 on 8 H100 has one plan, not
    three."""
    powers: tuple[int, ...] = (8, 16, 64, 256)
    """Powers of the smooth costs by which tables are moved, one pass for each; the
    first is also that by which they are inserted at first. The last is within 128 ** (1
    / 256) = 2 % of the maximum over 128 devices."""
    first_powers: tuple[int, ...] = (2, 4)
    """Powers before these for a large model, of which one rounding is improved."""
    failures: int = 2
    """Failed moves of alike tables in a pass after which the others stay."""
    memory_price: float = 0.1
    """Price of all memory, in step times, where no plan fits without one; it is four
    times as high from search to search."""
    large_price: float = 0.04
    """The same of a large model, which begins with it."""
    memory_searches: int = 8
    """Largest number of searches, the first without a price: the last price is 400 step
    times."""
    lighter_price: float = 0.3
    """The same, for moves from the best plan to one that takes less memory."""
    lighter_step: float = 0.01
    """Share by which the step of that plan may be longer, to be advised,"""
    lighter_memory: float = 0.05
    """and least share of the memory that it must save."""
    tolerance: float = 3e-5
    """Share of the optimum by which a row of the relaxation must be broken to be
    added."""
    slot_batches: float = 2.0
    """Smallest number of slots of a cached table, as a multiple of the rows that a
    batch is expected to ask for."""
    slot_ratio: float = 1.5
    """Ratio of the numbers of slots that are tried, from the fewest to all rows."""


DEFAULT = SearchParams()
