"""Checks what is asked of the planner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax._base.config import nearest
from embark_jax.planner.request.workload import Workload
from embark_jax.plans.clusters import CLUSTERS, DIRECT, REPLICATED, SHARDED
from embark_jax.plans.forced import FREE, ForcedPlacement
from embark_jax.plans.options import ClusterName
from embark_jax.plans.placement import Placement, sequence_problems
from embark_jax.plans.tables import (
    MOST_BATCH,
    FeatureSpec,
    TableSpec,
    check_model,
    positive_int,
)

MAX_VALUES = 2**56
"""Largest number of values that a step reads: their bytes are a 64-bit integer."""


def checked(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement],
    workload: Workload,
) -> tuple[list[TableSpec], dict[str, ForcedPlacement]]:
    """Returns the tables, dynamic ones with the size that they grow to and for which
    they are planned, and the forced placements, with those of dynamic tables.

    Raises:
      ValueError: if the model is inconsistent, a forced placement impossible, or the
        statistics are of another model.
    """
    check_model(tables, features)
    grown = [_fully_grown(table) for table in tables]
    forced = dict(forced) | {
        table.name: _on_all(table, forced.get(table.name, FREE), workload)
        for table in grown
        if table.is_dynamic
    }
    _check(grown, features, forced, workload)
    if problems := workload.statistics.problems(grown, features):
        raise ValueError("; ".join(problems))
    return grown, forced


def _fully_grown(table: TableSpec) -> TableSpec:
    """Returns a table; a dynamic one with all keys that are expected, and as many slots
    for them as it may have."""
    if table.max_slots is None:
        return table
    keys = table.expected_keys or table.max_slots
    grown = table.with_slots(min(keys, table.max_slots))
    return dataclasses.replace(grown, rows=max(keys, grown.rows))


def _on_all(
    table: TableSpec, forced: ForcedPlacement, workload: Workload
) -> ForcedPlacement:
    """Forces a shard of a dynamic table on each device, so that no row moves when the
    table grows; other forced properties are left as they are."""
    devices, columns = workload.devices, forced.column_shards or 1
    wanted = {
        "column_shards": columns if devices % columns == 0 else 1,
        "row_shards": devices // columns,
        "devices": tuple(range(devices)),
        "hot_rows": 0,
    }
    for key, value in wanted.items():
        if getattr(forced, key) not in (None, value):
            raise ValueError(
                f"table {table.name!r}: {key} is {getattr(forced, key)!r}, but a "
                f"dynamic table has a shard on each device and no hot rows; "
                f"leave {key} out"
            )
    return dataclasses.replace(forced, **wanted)


def _check(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    forced: Mapping[str, ForcedPlacement],
    workload: Workload,
) -> None:
    batch, devices = workload.batch_size, workload.devices
    named = {table.name: table for table in tables}
    problems = [
        f"placements are forced for unknown table {name!r}; {nearest(name, named)}"
        for name in forced
        if name not in named
    ]
    for name in (name for name in named if name in forced):
        if not isinstance(forced[name], ForcedPlacement):
            raise ValueError(
                f"table {name!r}: {forced[name]!r} is forced, must be such as "
                "ForcedPlacement(cluster='rb')"
            )
        problems += _placement_of(named[name], forced[name]).problems(devices)
    clusters = {name: force.cluster for name, force in forced.items() if force.cluster}
    problems += sequence_problems(clusters, features)
    if positive_int("batch size", batch, MOST_BATCH) % devices:
        problems.append(
            f"batch size {batch} must be a multiple of the {devices} devices, "
            f"such as {-(-batch // devices) * devices}"
        )
    values = batch * sum(f.hotness * named[f.table].dim for f in features)
    if values > MAX_VALUES:
        problems.append(
            f"batch size {batch:,}: a step reads {values:,} values of rows, must be at "
            f"most {MAX_VALUES:,}; lower it, or hotness"
        )
    if problems:
        raise ValueError("; ".join(problems))


def _placement_of(table: TableSpec, force: ForcedPlacement) -> Placement:
    """Returns a placement with what is forced, for its problems."""
    columns = 1 if force.column_shards is None else force.column_shards
    rows, owners = force.row_shards, force.devices
    exchange = force.exchange or DIRECT
    able: list[ClusterName] = [
        name for name in SHARDED if exchange in CLUSTERS[name].exchanges
    ]
    cluster = force.cluster or (able or list(SHARDED))[0]
    if rows is None:
        rows = max(1, len(owners or ()) // max(1, columns))
    if owners is None:
        owners = () if cluster == REPLICATED else (0,) * (rows * columns)
    if table.tier == "auto":
        table = dataclasses.replace(table, tier="device", slots=None)
    return Placement(
        table, cluster, rows, columns, owners, exchange, force.hot_rows or 0
    )
