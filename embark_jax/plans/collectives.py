"""The collectives of a train step: the contents and buffer size of each.

This module describes what ``embark_jax.embedding`` compiles to. The cost model counts
in it; a test compares it with the compiled program, byte by byte. Buffers are those of
one device: of an all-to-all the messages to all devices, of an all-reduce the summed
array. Slots are int32 whatever the type of the ids: 64-bit ids become a device and a
slot before they travel, but for keys of cached tables, of which the owner alone knows
the slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from embark_jax.plans import traffic
from embark_jax.plans.clusters import Reach
from embark_jax.plans.options import WireFormat
from embark_jax.plans.storage import StorageKind
from embark_jax.plans.traffic import Numbers
from embark_jax.plans.wire import VALUE_BYTES, Wire

COMBINED_BYTES = 128 * 2**20
"""Bytes up to which a step's all-reduces of gradients become one. XLA's flag
``xla_gpu_all_reduce_combine_threshold_bytes`` is 30 MiB by default. On 128 simulated
H100s each all-reduce more costs as much latency as 24 MB of travel, but one that is
full leaves while backward goes on: of 30, 64, 128, 256 MiB and no limit, 128 MiB gave
the shortest or nearly the shortest step for EMBark's five models."""

CollectiveKind = Literal["all_to_all", "all_reduce"]


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the step.

    Attributes:
      kind: kind of collective.
      phase: phase of the step in which it runs.
      carries: name of its contents.
      fixed_bytes, sum_bytes, node_sum_bytes, id_bytes: size of its buffer: a fixed
        part, and bytes for each partial sum a sample of the device that makes the most,
        for each of the node that makes the most, and for each id of the capacity.
      reach: devices that take part.
    """

    kind: CollectiveKind
    phase: str
    carries: str
    fixed_bytes: float = 0.0
    sum_bytes: float = 0.0
    node_sum_bytes: float = 0.0
    id_bytes: float = 0.0
    reach: Reach = "fleet"


ROW_SUM = Collective("all_reduce", "gradient exchange", "row gradients")
"""The sum of the gradients of replicated rows."""


def storage_collectives(
    storage: StorageKind,
    nodes: int,
    gpus_per_node: int,
    device_batch: int,
    row_wise: bool,
    wire: Wire,
) -> Iterator[Collective]:
    """Yields the collectives of a sharded storage.

    Args:
      storage: its kind.
      nodes, gpus_per_node: size of the fleet.
      device_batch: samples of each device.
      row_wise: whether the optimizer needs mean squares of whole rows.
      wire: the formats in which rows and gradients travel.
    """
    reaches = storage.of_exchange.reaches(nodes, gpus_per_node)
    if storage.of_cluster.replicated or not reaches:
        return
    devices = nodes * gpus_per_node

    def by_ids(
        phase: str,
        carries: str,
        id_bytes: float,
        fixed_bytes: float = 0.0,
    ) -> Iterator[Collective]:
        for reach in reaches:
            yield Collective(
                kind="all_to_all",
                phase=phase,
                carries=carries,
                fixed_bytes=fixed_bytes,
                id_bytes=id_bytes,
                reach=reach,
            )

    def by_sums(phase: str, carries: str, form: WireFormat) -> Iterator[Collective]:
        for reach in reaches:
            collective = Collective(
                kind="all_to_all", phase=phase, carries=carries, reach=reach
            )
            # Between nodes the sums of a node's devices travel as one.
            along_rails = reach == "rail"
            receivers = nodes if along_rails else devices
            unit = "node_sum_bytes" if along_rails else "sum_bytes"
            sum_bytes = traffic.sum_buffer_bytes(
                storage.width, device_batch, receivers, form
            )
            yield dataclasses.replace(collective, **{unit: sum_bytes})

    by_key = storage.tier != "device"
    ids = "keys" if by_key else "slots"
    values_per_id = 2 if by_key else 1
    if storage.of_cluster.pools_at_owner:
        yield from by_ids(
            "id exchange",
            f"{ids}, bags, weights" if storage.weighted else f"{ids}, bags",
            traffic.id_buffer_bytes(values_per_id + 1 + storage.weighted, devices),
        )
        yield from by_sums("row exchange", "partial sums", wire.rows)
        yield from by_sums("gradient exchange", "bag gradients", wire.gradients)
    else:
        ids_bytes = traffic.id_buffer_bytes(values_per_id, devices)
        # One place more says how many keys there are.
        head_bytes = ids_bytes if by_key else 0.0
        yield from by_ids("id exchange", ids, ids_bytes, fixed_bytes=head_bytes)
        rows_bytes = traffic.row_buffer_bytes(storage.width, devices, wire.rows)
        yield from by_ids("row exchange", "rows", rows_bytes)
        gradients_bytes = traffic.row_buffer_bytes(
            storage.width, devices, wire.gradients
        )
        yield from by_ids("gradient exchange", "row gradients", gradients_bytes)
    if storage.split and row_wise:
        squares_bytes = traffic.id_buffer_bytes(1, devices)
        for carries in ("squares of column shards", "squares of rows"):
            yield from by_ids("square exchange", carries, squares_bytes)


def summed_whole(rows: Numbers, batch_ids: Numbers) -> Any:
    """Returns whether gradients of a replicated table are summed in a buffer of all its
    rows, rather than of only those that the batch touches.

    Args:
      rows: rows of the table.
      batch_ids: ids that the global batch has for it, padding included.
    """
    return rows <= batch_ids


def replicated_collectives(
    rows: int,
    width: int,
    batch_ids: int,
    updated_rows: float,
    devices: int,
    wire: WireFormat,
) -> Iterator[Collective]:
    """Yields the collectives of a replicated table. The step's all-reduce of capacities
    also says which rows are touched: by a flag for each row, or by all ids, each in an
    element of its own.

    Args:
      rows, width: size of the table.
      batch_ids: ids that the global batch has for it, padding included.
      updated_rows: rows of it that there is room for in the sum.
      devices: number of devices in the fleet.
      wire: format in which gradients are summed.
    """
    if devices == 1:
        return
    flags = rows if summed_whole(rows, batch_ids) else batch_ids
    yield Collective(
        "all_reduce",
        "id exchange",
        "touched rows",
        fixed_bytes=traffic.VALUE_BYTES * flags,
    )
    summed_bytes = VALUE_BYTES[wire] * width * updated_rows
    yield dataclasses.replace(ROW_SUM, fixed_bytes=summed_bytes)
