"""The collectives of a train step: what each carries, and how large its buffer is.

A description of what ``embark_jax.embedding`` compiles to, in which the cost model
counts; a test compares it with the compiled program, byte by byte. Buffers are those of
one device: of an all-to-all the parts for all devices, of an all-reduce the summed
array, of an all-gather the gathered one. Slots are int32 whatever the type of the ids:
64-bit ids become a device and a slot before they travel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from embark_jax.planner.cost import traffic
from embark_jax.planner.cost.traffic import Numbers
from embark_jax.planner.layout.storage import StorageKind
from embark_jax.planner.request.wire import Wire, WireFormat, row_bytes

FLAG_BYTES = 1
"""Bytes of a truth value in XLA."""

CollectiveKind = Literal["all_to_all", "all_reduce", "all_gather"]
Reach = Literal["fleet", "node", "rail"]
"""Between whom: all devices, those of a node, or those of equal rank of all nodes."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the step.

    Attributes:
      kind: which.
      phase: of the step, in which it runs.
      carries: what.
      fixed_bytes, sum_bytes, node_sum_bytes, id_bytes: its buffer has so many bytes,
        and so many for each partial sum a sample of the device that makes the most, for
        each of the node that makes the most, and for each id of the capacity.
      reach: between which devices it is.
    """

    kind: CollectiveKind
    phase: str
    carries: str
    fixed_bytes: float = 0.0
    sum_bytes: float = 0.0
    node_sum_bytes: float = 0.0
    id_bytes: float = 0.0
    reach: Reach = "fleet"


def storage_collectives(
    storage: StorageKind,
    nodes: int,
    gpus_per_node: int,
    device_batch: int,
    row_wise: bool,
    wire: Wire,
) -> Iterator[Collective]:
    """Those of a sharded storage.

    Args:
      storage: its kind.
      nodes, gpus_per_node: of the fleet.
      device_batch: samples of each device.
      row_wise: whether the optimizer needs mean squares of whole rows.
      wire: the formats in which rows and gradients travel.
    """
    devices = nodes * gpus_per_node
    if devices == 1 or storage.cluster == "dp":
        return
    stages: Sequence[Reach] = ("fleet",)
    if storage.hierarchical:
        stages = ("node",) * (gpus_per_node > 1) + ("rail",) * (nodes > 1)

    def by_ids(
        phase: str, carries: str, id_bytes: float, sum_bytes: float = 0.0
    ) -> Iterator[Collective]:
        for reach in stages:
            yield Collective(
                *("all_to_all", phase, carries),
                sum_bytes=sum_bytes,
                id_bytes=id_bytes,
                reach=reach,
            )

    def by_sums(phase: str, carries: str, form: WireFormat) -> Iterator[Collective]:
        for reach in stages:
            to, unit = devices, "sum_bytes"
            if reach == "rail":
                to, unit = nodes, "node_sum_bytes"
            each_bytes = traffic.sum_buffer_bytes(storage.width, device_batch, to, form)
            described = Collective("all_to_all", phase, carries, reach=reach)
            yield dataclasses.replace(described, **{unit: each_bytes})

    if storage.cluster == "rb":
        yield from by_ids(
            "id exchange",
            "slots, bags, weights" if storage.weighted else "slots, bags",
            traffic.pooled_id_buffer_bytes(storage.weighted, devices),
            traffic.block_buffer_bytes(device_batch, devices),
        )
        yield from by_sums("row exchange", "partial sums", wire.rows)
        yield from by_sums("gradient exchange", "bag gradients", wire.gradients)
    else:
        slots_bytes = traffic.id_buffer_bytes(1, devices)
        yield from by_ids("id exchange", "slots", slots_bytes)
        place = (storage.width, devices)
        rows_bytes = traffic.row_buffer_bytes(*place, wire.rows)
        yield from by_ids("row exchange", "rows", rows_bytes)
        rows_bytes = traffic.row_buffer_bytes(*place, wire.gradients)
        yield from by_ids("gradient exchange", "row gradients", rows_bytes)
    if storage.split and row_wise:
        squares_bytes = traffic.id_buffer_bytes(1, devices)
        for carries in ("squares of column shards", "squares of rows"):
            yield from by_ids("square exchange", carries, squares_bytes)


def dense_collectives(
    parameters: int, arrays: int, sharded_storages: int, devices: int
) -> Iterator[Collective]:
    """Those of the dense layers and of the step as a whole.

    Args:
      parameters: float32, of all dense layers.
      arrays: embeddings that they take, one a feature; their gradients are checked to
        be finite.
      sharded_storages: of which the step learns whether their capacities sufficed,
        beside whether any id was out of range, and which rows of replicated tables
        are touched (``replicated_collectives``): that is one collective.
      devices: in the fleet.
    """
    if devices == 1:
        return
    value_bytes = traffic.VALUE_BYTES
    needed_bytes = value_bytes * (sharded_storages + 1)
    yield Collective("all_reduce", "dense", "capacities and bad ids", needed_bytes)
    yield Collective("all_reduce", "dense", "gradients", value_bytes * parameters)
    yield Collective("all_reduce", "dense", "loss", value_bytes)
    yield Collective("all_reduce", "dense", "finite", arrays * FLAG_BYTES)


def summed_whole(rows: Numbers, batch_ids: Numbers) -> Any:
    """Whether gradients of a replicated table are summed in a buffer of all its rows,
    and not of those alone that the batch touches.

    Args:
      rows: of the table.
      batch_ids: that the global batch has for it, padding included.
    """
    return rows <= batch_ids


def replicated_sums(wire: WireFormat) -> tuple[tuple[CollectiveKind, str], ...]:
    """The collectives that sum gradients of replicated tables, and what they carry.
    Those of one width share them."""
    if wire == "float32":
        return (("all_reduce", "row gradients"),)
    return ("all_to_all", "row gradients"), ("all_gather", "summed gradients")


def summed_rows(rows: int, batch_ids: int, devices: int, wire: WireFormat) -> int:
    """Rows of the buffer in which gradients of a replicated table are summed; where
    they are compressed, a multiple of the devices.

    Args:
      rows: of the table.
      batch_ids: that the global batch has for it, padding included.
      devices: in the fleet.
      wire: the format in which they travel.
    """
    summed = min(rows, batch_ids)
    return summed if wire == "float32" else -(-summed // devices) * devices


def replicated_collectives(
    rows: int, width: int, batch_ids: int, devices: int, wire: WireFormat
) -> Iterator[Collective]:
    """Those of a replicated table. Which rows are touched is told in the step's
    all-reduce of capacities: by a flag for each row, or all ids, each in a place of its
    own.

    Args:
      rows, width: of the table.
      batch_ids: that the global batch has for it, padding included.
      devices: in the fleet.
      wire: the format in which gradients travel.
    """
    if devices == 1:
        return
    value_bytes = traffic.VALUE_BYTES
    summed = summed_rows(rows, batch_ids, devices, wire)
    told = summed if summed_whole(rows, batch_ids) else batch_ids
    yield Collective(
        *("all_reduce", "id exchange", "touched rows"), fixed_bytes=value_bytes * told
    )
    for kind, carries in replicated_sums(wire):
        yield Collective(
            *(kind, "gradient exchange", carries),
            fixed_bytes=row_bytes(width, wire) * summed,
        )
