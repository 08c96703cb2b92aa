"""Bytes that one step moves, term by term: over the links, and in device memory.

All are those of one device. The names say of what: ``batch`` is the device's own share
of the global batch, ``width`` the columns of a shard. Every value is 4 bytes, ids as
well as float32 parameters.
"""

from __future__ import annotations

import dataclasses

VALUE_BYTES = 4

SORT_PASSES, SORT_KEY_BYTES = 8, 8
"""A least-significant-digit radix sort reads and writes its keys once a digit of eight
bits (https://arxiv.org/abs/2206.01784); keys are packed with positions into 64 bits."""


@dataclasses.dataclass(frozen=True)
class LinkBytes:
    """Bytes that a device sends inside its node, and to other nodes."""

    node_link: float
    network: float


def all_to_all_bytes(buffer_bytes: float, nodes: int, gpus_per_node: int) -> LinkBytes:
    """A flat exchange of a buffer with an equal part for every device."""
    devices = nodes * gpus_per_node
    return LinkBytes(
        node_link=buffer_bytes * (gpus_per_node - 1) / devices,
        network=buffer_bytes * (devices - gpus_per_node) / devices,
    )


def all_reduce_bytes(buffer_bytes: float, nodes: int, gpus_per_node: int) -> LinkBytes:
    """A sum over all devices: reduce-scatter, then all-gather, in rings that cross
    between nodes at every GPU's own network port
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)."""
    devices = nodes * gpus_per_node
    if gpus_per_node == 1:
        return LinkBytes(0.0, 2 * buffer_bytes * (devices - 1) / devices)
    return LinkBytes(
        node_link=2 * buffer_bytes * (devices - 1) / devices,
        network=2 * buffer_bytes * (nodes - 1) / nodes / gpus_per_node,
    )


def all_gather_bytes(buffer_bytes: float, nodes: int, gpus_per_node: int) -> LinkBytes:
    """Everybody's parts to all devices, in the same rings, once around.

    Args:
      buffer_bytes: of what is gathered, all parts.
    """
    reduced = all_reduce_bytes(buffer_bytes, nodes, gpus_per_node)
    return LinkBytes(reduced.node_link / 2, reduced.network / 2)


def id_buffer_bytes(values_per_id: int, devices: int) -> float:
    """Of the exchange of ids, a place of capacity: such as slot, bag and weight."""
    return VALUE_BYTES * values_per_id * devices


def piece_buffer_bytes(width: int, batch: int, devices: int) -> float:
    """Of the exchange of partial sums in RB, a piece: a bag of every sample of every
    device. Their gradients come back in as large a buffer."""
    return VALUE_BYTES * width * batch * devices


def row_buffer_bytes(width: int, devices: int) -> float:
    """Of the exchange of unique rows in UB, a place of capacity; gradients alike."""
    return VALUE_BYTES * width * devices


def buffer_memory_bytes(buffer_bytes: float) -> float:
    """In memory, of one exchange: written and sent, received and read."""
    return 4 * buffer_bytes


def read_rows_bytes(ids: float, width: int) -> float:
    """In memory, of reading a row, or the gradient of a bag, for each id."""
    return VALUE_BYTES * ids * width


def update_rows_bytes(
    rows: float, width: int, values_per_parameter: int, values_per_row: int
) -> float:
    """In memory, of reading and writing rows with their optimizer state."""
    values = width * (1 + values_per_parameter) + values_per_row
    return 2 * VALUE_BYTES * rows * values


def sort_bytes(keys: float) -> float:
    """In memory, of sorting packed keys; one more pass counts the digits."""
    return SORT_KEY_BYTES * keys * (2 * SORT_PASSES + 1)


def replicated_gradient_bytes(rows: float, width: int) -> float:
    """Of the buffer in which DP sums row gradients over all devices, with a flag a row
    that says whether it was touched."""
    return VALUE_BYTES * rows * (width + 1)
