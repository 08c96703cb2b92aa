"""How many bytes ids and rows take on the wire: the formats that they travel in."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

WireFormat = Literal["float32", "bfloat16", "float16", "float8_e4m3"]

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
"""Formats of a narrow range travel with a float32 factor for each row."""


@dataclasses.dataclass(frozen=True)
class Wire:
    """What travels between devices in which format; all sums are float32.

    Attributes:
      rows: of UB, and the partial sums of RB.
      gradients: of both, and of DP. Those of the dense layers are float32: XLA sums
        them by itself, and of fewer bits the sums would be in these.

    Raises:
      ValueError: if a format is unknown.
    """

    rows: WireFormat = "float32"
    gradients: WireFormat = "float32"

    def __post_init__(self):
        for what, found in vars(self).items():
            if found not in get_args(WireFormat):
                raise ValueError(
                    f"wire format of {what} is {found!r}, must be one of "
                    f"{', '.join(get_args(WireFormat))}"
                )


FLOAT32 = Wire()
"""Nothing is compressed."""


SLOT_BYTES = 4
"""Bytes of a slot, of a weight, and of where a block of bags ends."""
BLOCK_BAGS = 256
"""In RB an id says with a single byte which bag of its block it is for."""


def sum_blocks(batch: int) -> int:
    """Blocks of the bags of one partial sum, one bag of each sample of a device."""
    return -(-batch // BLOCK_BAGS)


def pooled_id_bytes(weighted: bool) -> int:
    """Bytes of one id in RB: its slot, its bag, and its weight if it has one."""
    return 1 + SLOT_BYTES + SLOT_BYTES * weighted


def row_bytes(width: int, wire: WireFormat) -> int:
    """Bytes of one row of ``width`` values."""
    return VALUE_BYTES[wire] * width + SCALE_BYTES[wire]
