"""Bytes that one step moves, term by term: over the links, and in device memory.

All are bytes of one device. ``batch`` is the device's own share of the global batch,
``width`` the columns of a shard. Values are words, ids as well as float32 numbers; rows
of 16-bit tables take fewer bytes, as rows and gradients may on the wire.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import numpy as np
from embark_kernels.sizes import TERMS_WORTH_SORTING

WORD_BYTES = 4
"""Bytes of an id, and of a float32."""
Numbers: TypeAlias = Any
"""A number or a NumPy array of numbers: the formulas are for both."""

SQUARE_VALUES = 38
"""32-bit values that are read and written for each received slot where squares of
column shards are exchanged; counted as in ``clusters``."""
COMBINED_BYTES = 128 * 2**20
"""Bytes up to which a step's all-reduces of gradients become one. XLA's flag
``xla_gpu_all_reduce_combine_threshold_bytes`` is 30 MiB by default. On 128 simulated
H100s each all-reduce more costs as much latency as 24 MB of travel, but one that is
full leaves while backward goes on: of 30, 64, 128, 256 MiB and no limit, 128 MiB gave
the shortest or nearly the shortest step for EMBark's five models."""


@dataclasses.dataclass(frozen=True)
class LinkBytes:
    """Bytes that a device sends inside its node, and to other nodes."""

    node_link: Numbers
    network: Numbers


def all_to_all_bytes(
    buffer_bytes: Numbers, nodes: int, gpus_per_node: int
) -> LinkBytes:
    """Returns the bytes of exchanging a buffer with an equal part for every device.

    A stage of a hierarchical exchange counts as an exchange on a single node, or on
    nodes of a single GPU.
    """
    devices = nodes * gpus_per_node
    return LinkBytes(
        node_link=buffer_bytes * (gpus_per_node - 1) / devices,
        network=buffer_bytes * (devices - gpus_per_node) / devices,
    )


def all_reduce_bytes(
    buffer_bytes: Numbers, nodes: int, gpus_per_node: int
) -> LinkBytes:
    """Returns the bytes of a sum over all devices: reduce-scatter, then all-gather, in
    rings that cross between nodes at every GPU's own network port
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)."""
    devices = nodes * gpus_per_node
    if gpus_per_node == 1:
        return LinkBytes(0.0, 2 * buffer_bytes * (devices - 1) / devices)
    return LinkBytes(
        node_link=2 * buffer_bytes * (devices - 1) / devices,
        network=2 * buffer_bytes * (nodes - 1) / nodes / gpus_per_node,
    )


def rows_bytes(
    rows: Numbers, width: Numbers, value_bytes: Numbers = WORD_BYTES
) -> Numbers:
    """Returns the memory bytes of reading or writing rows, sums or gradients once."""
    return value_bytes * rows * width


def update_rows_bytes(
    rows: Numbers,
    width: Numbers,
    values_per_parameter: int,
    values_per_row: int,
    value_bytes: Numbers = WORD_BYTES,
) -> Numbers:
    """Returns the memory bytes of reading and writing rows, of ``value_bytes`` a
    parameter, with their optimizer state."""
    states = width * values_per_parameter + values_per_row
    return 2 * rows * (value_bytes * width + WORD_BYTES * states)


def sort_bytes(keys: Numbers, key_bytes: int = WORD_BYTES) -> Numbers:
    """Returns the memory bytes of sorting keys with 32-bit positions. A
    least-significant-digit radix sort reads and writes both once for each digit of
    eight bits, and counts digits in one more pass
    (https://arxiv.org/abs/2206.01784)."""
    return keys * key_bytes * (2 * (key_bytes + WORD_BYTES) + 1)


def ids_bytes(ids: Numbers, key_bytes: int, values_per_id: int) -> Numbers:
    """Returns the memory bytes of sorting ids, and of reading and writing these 32-bit
    values of each around the sort."""
    return sort_bytes(ids, key_bytes) + WORD_BYTES * ids * values_per_id


def sums_bytes(terms: Numbers, sums: Numbers, width: Numbers) -> Numbers:
    """Returns the memory bytes of adding gradients up in plain XLA, but for reading
    them: sums are zeroed, and read and written for each term, or once if these are
    sorted."""
    sort = terms >= TERMS_WORTH_SORTING * sums
    added = np.where(sort, sums, terms)
    return sort * sort_bytes(terms) + rows_bytes(sums + 2 * added, width)


def summed_whole(rows: Numbers, batch_ids: Numbers) -> Any:
    """Returns whether gradients of a replicated table are summed in a buffer of all its
    rows, rather than of only those that the batch touches.

    Args:
      rows: rows of the table.
      batch_ids: ids that the global batch has for it, padding included.
    """
    return rows <= batch_ids
