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
    """Forces a shard of each dynamic table on each device, so that no row moves when
    the table grows; other forced properties, also column shards, are left as they are.

    Raises:
      ValueError: if something else is forced.
    """
    spread_out = {}
    for table in tables:
        if not table.is_dynamic:
            continue
        own = forced.get(table.name, FREE)
        columns = own.column_shards or 1
        wanted = {
            "column_shards": columns if devices % columns == 0 else 1,
            "row_shards": devices // columns,
            "devices": tuple(range(devices)),
            "hot_rows": 0,
        }
        for key, value in wanted.items():
            if getattr(own, key) not in (None, value):
                raise ValueError(
                    f"table {table.name!r}: {key} is {getattr(own, key)!r}, but a "
                    f"dynamic table has a shard on each device and no hot rows; leave "
                    f"{key} out"
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
