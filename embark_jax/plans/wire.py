"""Formats in which ids and rows travel, and their bytes on the wire."""

from __future__ import annotations

import dataclasses
from typing import get_args

from embark_jax.plans.options import DenseWire, WireFormat

VALUE_BYTES: dict[WireFormat, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3": 1,
}
SCALE_BYTES: dict[WireFormat, int] = {
    "float32": 0,
    "bfloat16": 0,
    "float16": 4,
    "float8_e4m3": 4,
}
"""Bytes of a row's float32 factor, which formats of a narrow range travel with."""


@dataclasses.dataclass(frozen=True)
class Wire:
    """Formats of values that travel between devices; all sums are float32.

    Attributes:
      rows: format of UB's rows, and of RB's partial sums.
      gradients: format of row gradients in RB and UB.
      sums: format in which gradients of DP's rows are summed over all devices: that of
        the dense gradients (``train.dense_wire``), with which they travel.

    Raises:
      ValueError: if a format is unknown.
    """

    rows: WireFormat = "float32"
    gradients: WireFormat = "float32"
    sums: DenseWire = "float32"

    def __post_init__(self):
        for what, form in vars(self).items():
            formats = get_args(DenseWire if what == "sums" else WireFormat)
            if form not in formats:
                raise ValueError(
                    f"wire format of {what} is {form!r}, must be one of "
                    f"{', '.join(formats)}"
                )


FLOAT32 = Wire()
"""The formats in which nothing is compressed."""


SLOT_BYTES = 4
"""Bytes of a slot, of a weight, and of the end of a block of bags."""
BLOCK_BAGS = 256
"""Bags of a block. In RB an id names the bag of its block in a single byte."""


def sum_blocks(batch: int) -> int:
    """Blocks of the bags of one partial sum: one bag for each sample of a device."""
    return -(-batch // BLOCK_BAGS)


def id_bytes(by_key: bool) -> int:
    """Returns the bytes of an id that travels: a slot, or a key of a dynamic table."""
    return 2 * SLOT_BYTES if by_key else SLOT_BYTES


def pooled_id_bytes(weighted: bool, by_key: bool = False) -> int:
    """Returns the bytes of one id in RB: its slot or key, its bag, and its weight if
    any."""
    return 1 + id_bytes(by_key) + SLOT_BYTES * weighted


def row_bytes(width: int, wire: WireFormat) -> int:
    """Returns the bytes of one row of ``width`` values."""
    return VALUE_BYTES[wire] * width + SCALE_BYTES[wire]
