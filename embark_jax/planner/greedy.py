"""A first planner: simple rules, largest shard first to the least loaded device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.fleet import Fleet
from embark_jax.planner.capacities import capacities
from embark_jax.planner.plan import Plan
from embark_jax.planner.storage import Cluster, Placement, lay_out
from embark_jax.tables import FeatureSpec, TableSpec, check_model

MEMORY_SHARE_FOR_TABLES = 0.75
"""Of a device's memory, as EMBark's 60 of an H100's 80 GB (HugeCTR,
benchmarks/embedding_collection); the rest is for activations and buffers."""


@dataclasses.dataclass(frozen=True)
class ForcedPlacement:
    """What the user fixes of a table's placement; ``None`` leaves it to the planner."""

    cluster: Cluster | None = None
    row_shards: int | None = None
    column_shards: int | None = None
    devices: tuple[int, ...] | None = None


def plan(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    fleet: Fleet,
    batch: int,
    *,
    forced: Mapping[str, ForcedPlacement] | None = None,
    zipf_exponent: float = 0.0,
    capacity_slack: float = 1.25,
    bytes_per_parameter: float = 8.0,
) -> Plan:
    """Places every table on the fleet.

    Tables that cost less to all-reduce than to exchange are replicated (DP). Of the
    others those that feed sequences travel as unique rows (UB), the rest as partial
    sums (RB); a table above a device's fair share of all bytes is split by rows. Shards
    go, largest first, to the device with the fewest lookups that has room.

    Args:
      tables, features: the model.
      fleet: the machines.
      batch: global batch size, samples a step.
      forced: by table name, what is not the planner's to choose.
      zipf_exponent: skew of ids within their table; 0 is uniform.
      capacity_slack: exchange buffers hold this multiple of the expectation.
      bytes_per_parameter: of weights and optimizer state together.

    Raises:
      ValueError: if the model is inconsistent, a forced placement impossible, or the
        tables do not fit the fleet.
    """
    check_model(tables, features)
    forced = dict(forced or {})
    unknown = sorted(set(forced) - {table.name for table in tables})
    if unknown:
        raise ValueError(f"placements are forced for unknown tables {unknown}")

    limit_bytes = fleet.device.memory_bytes * MEMORY_SHARE_FOR_TABLES
    total_bytes = sum(table.rows * table.dim for table in tables) * bytes_per_parameter
    fair_share_bytes = max(total_bytes / fleet.devices, 1.0)
    shapes = []
    for table in tables:
        bags = sum(
            feature.hotness if feature.pooling == "none" else 1
            for feature in features
            if feature.table == table.name
        )
        sequence = any(
            feature.pooling == "none"
            for feature in features
            if feature.table == table.name
        )
        table_bytes = table.rows * table.dim * bytes_per_parameter
        shapes.append(
            _shape(
                table,
                forced.get(table.name, ForcedPlacement()),
                fleet,
                bags_per_device=bags * (batch // fleet.devices),
                sequence=sequence,
                fair_shares=table_bytes / fair_share_bytes,
            )
        )
    placed = _place(shapes, features, fleet, limit_bytes, bytes_per_parameter)
    _check_memory(placed, fleet, limit_bytes, bytes_per_parameter)
    return Plan(
        features=tuple(features),
        placements=tuple(placed),
        nodes=fleet.nodes,
        gpus_per_node=fleet.gpus_per_node,
        batch_size=batch,
        capacities=capacities(
            placed, features, fleet.devices, batch, zipf_exponent, capacity_slack
        ),
    )


def _shape(
    table: TableSpec,
    force: ForcedPlacement,
    fleet: Fleet,
    bags_per_device: int,
    sequence: bool,
    fair_shares: float,
) -> Placement:
    """Cluster and shard counts of a table, its shards not yet placed."""
    splits = any(each is not None for each in (force.row_shards, force.column_shards))
    if force.cluster is not None:
        cluster, reason = force.cluster, "forced"
    elif fleet.devices == 1 and not (splits or force.devices):
        cluster, reason = "dp", "one device: nothing to exchange"
    elif table.rows <= bags_per_device and not (splits or force.devices):
        cluster, reason = (
            "dp",
            f"all-reducing {table.rows:,} rows moves less than exchanging "
            f"{bags_per_device:,} bags a device",
        )
    elif sequence:
        cluster, reason = "ub", "a sequence has nothing to pool at the owner"
    else:
        cluster, reason = "rb", "pooled at the owner"
    if cluster == "dp":
        # Shards or devices forced beside dp are left in, for the plan to refuse.
        return Placement(
            table,
            cluster,
            force.row_shards or 1,
            force.column_shards or 1,
            force.devices or (),
            reason,
        )
    row_shards = force.row_shards
    if row_shards is None:
        row_shards = min(fleet.devices, table.rows)
        while row_shards > 1 and row_shards // 2 >= fair_shares:
            row_shards //= 2
        if force.devices is not None:
            row_shards = max(1, len(force.devices) // (force.column_shards or 1))
        elif row_shards > 1:
            reason += f"; {fair_shares:.1f} × a device's fair share of bytes"
    return Placement(
        table,
        cluster,
        row_shards,
        force.column_shards or 1,
        force.devices or (),
        reason,
    )


def _place(
    shapes: Sequence[Placement],
    features: Sequence[FeatureSpec],
    fleet: Fleet,
    limit_bytes: float,
    bytes_per_parameter: float,
) -> list[Placement]:
    """Gives every shard that has none an owner."""
    hotness: dict[str, int] = {}
    for feature in features:
        hotness[feature.table] = hotness.get(feature.table, 0) + feature.hotness
    used_bytes, lookups = np.zeros(fleet.devices), np.zeros(fleet.devices)

    def add(placement: Placement, row_shard: int, device: int) -> None:
        rows = placement.shard_rows(row_shard)
        used_bytes[device] += rows * placement.width * bytes_per_parameter
        ids = hotness[placement.table.name] / placement.row_shards
        lookups[device] += ids * placement.width

    for placement in shapes:
        for index, device in enumerate(placement.devices):
            if 0 <= device < fleet.devices:
                add(placement, index // placement.column_shards, device)
    order = sorted(
        range(len(shapes)),
        key=lambda i: -shapes[i].table.rows * shapes[i].width / shapes[i].row_shards,
    )
    placed = list(shapes)
    for i in order:
        placement = shapes[i]
        if placement.cluster == "dp" or placement.devices:
            continue
        taken: list[int] = []
        for index in range(placement.row_shards * placement.column_shards):
            row_shard = index // placement.column_shards
            rows = placement.shard_rows(row_shard)
            room = used_bytes + rows * placement.width * bytes_per_parameter
            again = [taken.count(device) for device in range(fleet.devices)]
            device = min(
                range(fleet.devices),
                key=lambda d: (
                    room[d] > limit_bytes,
                    again[d],
                    lookups[d],
                    used_bytes[d],
                ),
            )
            taken.append(device)
            add(placement, row_shard, device)
        placed[i] = dataclasses.replace(placement, devices=tuple(taken))
    return placed


def _check_memory(
    placements: Sequence[Placement],
    fleet: Fleet,
    limit_bytes: float,
    bytes_per_parameter: float,
) -> None:
    problems = [p for each in placements for p in each.problems(fleet.devices)]
    if problems:
        raise ValueError("; ".join(problems))
    need_bytes = bytes_per_parameter * sum(
        storage.slots_per_device * storage.width
        for storage in lay_out(placements, fleet.devices)
    )
    if need_bytes > limit_bytes:
        raise ValueError(
            f"tables need {need_bytes / 1e9:.2f} GB on every device, "
            f"{fleet.device.name} has {limit_bytes / 1e9:.2f} GB for them: "
            f"{(need_bytes - limit_bytes) / 1e9:.2f} GB short; use more than "
            f"{fleet.devices} devices, smaller tables, or fewer forced placements"
        )
