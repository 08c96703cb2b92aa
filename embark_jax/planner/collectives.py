"""The collectives of a train step: what each carries, and how large its buffer is.

A description of what ``embark_jax.embedding`` compiles to, in which the cost model
counts; a test compares it with the compiled program, byte by byte. Buffers are those of
one device: of an all-to-all the parts for all devices, of an all-reduce the summed
array, of an all-gather the gathered one. Slots and bags are int32 whatever the type of
the ids: 64-bit ids become a device and a slot before they travel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from embark_jax.planner import traffic
from embark_jax.planner.storage import StorageKind
from embark_jax.planner.wire import Wire

FLAG_BYTES = 1
"""Of a truth value in XLA."""

CollectiveKind = Literal["all_to_all", "all_reduce", "all_gather"]


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the step.

    Attributes:
      kind: which.
      phase: of the step, in which it runs.
      carries: what.
      fixed_bytes, piece_bytes, id_bytes: its buffer has so many bytes, and so many for
        each (output, row shard) of the device that holds the most, and for each id of
        the capacity.
    """

    kind: CollectiveKind
    phase: str
    carries: str
    fixed_bytes: float = 0.0
    piece_bytes: float = 0.0
    id_bytes: float = 0.0

    def buffer_bytes(self, pieces: float, capacity: float) -> float:
        """Of one device."""
        return self.fixed_bytes + pieces * self.piece_bytes + capacity * self.id_bytes


def storage_collectives(
    storage: StorageKind,
    devices: int,
    device_batch: int,
    row_wise: bool,
    wire: Wire,
) -> Iterator[Collective]:
    """Those of a sharded storage.

    Args:
      storage: its kind.
      devices: in the fleet.
      device_batch: samples of each.
      row_wise: whether the optimizer needs mean squares of whole rows.
      wire: the formats in which rows and gradients travel.
    """
    if devices == 1 or storage.cluster == "dp":
        return
    values = ["slots"]
    if storage.cluster == "rb":
        values += ["bags", "weights"] if storage.weighted else ["bags"]
    yield Collective(
        *("all_to_all", "id exchange", ", ".join(values)),
        id_bytes=traffic.id_buffer_bytes(len(values), devices),
    )
    there, back = wire.rows, wire.gradients
    if storage.cluster == "rb":
        place = (storage.width, device_batch, devices)
        yield Collective(
            *("all_to_all", "row exchange", "partial sums"),
            piece_bytes=traffic.piece_buffer_bytes(*place, there),
        )
        yield Collective(
            *("all_to_all", "gradient exchange", "bag gradients"),
            piece_bytes=traffic.piece_buffer_bytes(*place, back),
        )
    else:
        place = (storage.width, devices)
        yield Collective(
            *("all_to_all", "row exchange", "rows"),
            id_bytes=traffic.row_buffer_bytes(*place, there),
        )
        yield Collective(
            *("all_to_all", "gradient exchange", "row gradients"),
            id_bytes=traffic.row_buffer_bytes(*place, back),
        )
    if storage.split and row_wise:
        for carries in ("squares of column shards", "squares of rows"):
            yield Collective(
                *("all_to_all", "square exchange", carries),
                id_bytes=traffic.id_buffer_bytes(1, devices),
            )


def dense_collectives(
    parameters: int, arrays: int, sharded_storages: int, devices: int
) -> Iterator[Collective]:
    """Those of the dense layers and of the step as a whole.

    Args:
      parameters: float32, of all dense layers.
      arrays: embeddings that they take, one a feature; their gradients are checked to
        be finite.
      sharded_storages: of which the step learns whether their capacities sufficed.
      devices: in the fleet.
    """
    if devices == 1:
        return
    value_bytes = traffic.VALUE_BYTES
    if sharded_storages:
        needed_bytes = value_bytes * sharded_storages
        yield Collective("all_reduce", "dense", "capacities", needed_bytes)
    yield Collective("all_reduce", "dense", "gradients", value_bytes * parameters)
    yield Collective("all_reduce", "dense", "loss", value_bytes)
    yield Collective("all_reduce", "dense", "finite", arrays * FLAG_BYTES)


def summed_whole(rows: int, batch_ids: int) -> bool:
    """Whether gradients of a replicated table are summed in a buffer of all its rows,
    and not of those alone that the batch touches.

    Args:
      rows: of the table.
      batch_ids: that the global batch has for it, padding included.
    """
    return rows <= batch_ids


def replicated_collectives(
    rows: int, width: int, batch_ids: int, devices: int
) -> Iterator[Collective]:
    """Those of a replicated table.

    Args:
      rows, width: of the table.
      batch_ids: that the global batch has for it, padding included.
      devices: in the fleet.
    """
    if devices == 1:
        return
    value_bytes = traffic.VALUE_BYTES
    if summed_whole(rows, batch_ids):
        yield Collective(
            "all_reduce", "id exchange", "touched rows", fixed_bytes=value_bytes * rows
        )
    else:
        yield Collective(
            "all_gather",
            "id exchange",
            "touched rows",
            fixed_bytes=value_bytes * batch_ids,
        )
    yield Collective(
        "all_reduce",
        "gradient exchange",
        "row gradients",
        fixed_bytes=value_bytes * width * min(rows, batch_ids),
    )
