"""The slots that a batch needs, beside those that there are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embark_jax.cache.programs import Demand
from embark_jax.cache.row_store import StoreError
from embark_jax.plans.storage import Storage


class TooFewSlotsError(StoreError):
    """A batch asks for more rows of a cached table than it has slots."""


def check_slots(demands: Mapping[str, Demand], storages: Mapping[str, Storage]) -> None:
    """Raises ``TooFewSlotsError`` if a batch needs more slots of a storage. Rows that
    fit come with the next batch."""
    for name, demand in demands.items():
        storage = storages[name]
        _, needed, _ = np.asarray(demand.largest).tolist()
        if needed > storage.slots_per_device:
            tables = ", ".join(row_range.table.name for row_range in storage.ranges)
            key = "max_slots" if storage.kind.table else "slots"
            raise TooFewSlotsError(
                f"a batch asks for {needed:,} rows of one device's share of the "
                f"cached tables {tables}, which have {storage.slots_per_device:,} "
                f"slots there; raise their {key}, or lower the batch size"
            )
