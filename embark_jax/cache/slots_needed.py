"""The slots that a batch needs, beside those that there are."""

from __future__ import annotations

from collections.abc import Mapping

from embark_jax.cache.resolving import Demand
from embark_jax.cache.row_store import StoreError
from embark_jax.plans.storage import Storage

BATCHES_AHEAD = 100
"""Batches for whose new keys a table that grows gets room, if they bring as many as
this one: with more slots the programs are compiled anew, which takes as long as
hundreds of steps."""
MOST_AHEAD = 8
"""Room as a multiple of the slots that are needed, at most: the first batches have more
new keys than any other."""


class TooFewSlotsError(StoreError):
    """A batch asks for more rows of a cached table than it has slots.

    Attributes:
      slots: slots, on all devices together, that dynamic tables should have for it and
        for the next batches, by table; empty if more would not help.
    """

    def __init__(self, message: str, slots: Mapping[str, int]):
        super().__init__(message)
        self.slots = slots


def check_slots(demands: Mapping[str, Demand], storages: Mapping[str, Storage]) -> None:
    """Raises ``TooFewSlotsError`` if a batch needs more slots of a storage. Other
    tables that will soon grow do so, too."""
    wanted: dict[str, int] = {}
    must_grow, refused = [], []
    for name, demand in demands.items():
        storage = storages[name]
        named = ", ".join(row_range.table.name for row_range in storage.ranges)
        counts = demand.on_host()
        needed = counts.needed
        (row_range, *_) = storage.ranges
        limit = row_range.table.max_slots
        can_grow = limit is not None and row_range.table.slots != limit
        if can_grow:
            slots = needed * row_range.row_shards
            soon = slots + BATCHES_AHEAD * counts.missing
            wanted[named] = min(soon, MOST_AHEAD * slots)
        if needed <= storage.slots_per_device:
            continue
        if can_grow:
            must_grow.append(named)
            continue
        key = "max_slots" if storage.kind.table else "slots"
        message = (
            f"a batch asks for {needed:,} rows of one device's share of the cached "
            f"tables {named}, which have {storage.slots_per_device:,} slots there; "
            f"raise their {key}, or lower the batch size"
        )
        refused.append(message)
    if refused:
        raise TooFewSlotsError(refused[0], {})
    if must_grow:
        raise TooFewSlotsError(
            f"the tables {', '.join(must_grow)} must grow for a batch", wanted
        )
