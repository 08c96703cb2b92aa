"""Dynamic tables: planned for their largest size, though they begin smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from embark_jax.plans.forced import FREE, ForcedPlacement
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import TableSpec


def fully_grown(tables: Iterable[TableSpec]) -> tuple[TableSpec, ...]:
    """Returns the tables, dynamic ones with all slots that they may have."""
    return tuple(
        table.with_slots(table.max_slots) if table.max_slots else table
        for table in tables
    )


def spread(
    tables: Iterable[TableSpec], forced: Mapping[str, ForcedPlacement], devices: int
) -> dict[str, ForcedPlacement]:
    """Forces a row shard of each dynamic table on each device, so that no row moves
    when the table grows; other forced properties are left as they are.

    Raises:
      ValueError: if something else is forced.
    """
    wanted = {
        "row_shards": devices,
        "column_shards": 1,
        "devices": tuple(range(devices)),
        "hot_rows": 0,
    }
    spread_out = {}
    for table in tables:
        if not table.is_dynamic:
            continue
        own = forced.get(table.name, FREE)
        for key, value in wanted.items():
            if getattr(own, key) not in (None, value):
                raise ValueError(
                    f"table {table.name!r}: {key} is {getattr(own, key)!r}, but a "
                    f"dynamic table has a row shard on each device and no hot rows; "
                    f"leave {key} out"
                )
        spread_out[table.name] = dataclasses.replace(own, **wanted)
    return spread_out


def with_tables(
    placements: Iterable[Placement], tables: Sequence[TableSpec]
) -> tuple[Placement, ...]:
    """Returns the placements with these tables, which have the same names."""
    named = {table.name: table for table in tables}
    return tuple(
        dataclasses.replace(placement, table=named[placement.table.name])
        if placement.table.is_dynamic
        else placement
        for placement in placements
    )
