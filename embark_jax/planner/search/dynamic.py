"""Dynamic tables: planned for the size that they grow to, though they begin smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from embark_jax.plans.forced import FREE, ForcedPlacement
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import TableSpec


def fully_grown(tables: Iterable[TableSpec]) -> tuple[TableSpec, ...]:
    """Returns the tables, dynamic ones with all keys that are expected, and as many
    slots for them as they may have."""
    return tuple(map(_fully_grown, tables))


def _fully_grown(table: TableSpec) -> TableSpec:
    if table.max_slots is None:
        return table
    keys = table.expected_keys or table.max_slots
    grown = table.with_slots(min(keys, table.max_slots))
    return dataclasses.replace(grown, rows=max(keys, grown.rows))


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
