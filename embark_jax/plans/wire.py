"""Formats in which rows and gradients travel, and the bytes of number formats."""

from __future__ import annotations

import dataclasses
from typing import get_args

from embark_jax.plans.options import Dtype, WireFormat

VALUE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


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
    sums: WireFormat = "float32"

    def __post_init__(self):
        for what, form in vars(self).items():
            if form not in get_args(WireFormat):
                raise ValueError(
                    f"wire format of {what} is {form!r}, must be one of "
                    f"{', '.join(get_args(WireFormat))}"
                )


FLOAT32 = Wire()
"""The formats in which nothing is compressed."""
