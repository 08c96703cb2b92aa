"""Predicts how long the matrix products of the dense layers take."""

from __future__ import annotations

from typing import Literal

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.dense import Product

DType = Literal["float32", "bfloat16", "float16"]
"""The data types in which dense layers compute."""
VALUE_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
SLOWDOWN: dict[DType, int] = {"float32": 2, "bfloat16": 1, "float16": 1}
"""Time relative to bfloat16: float32 runs as TF32 (https://www.nvidia.com/en-us/data-center/h100/)."""


def product_ms(rates: Rates, batch: int, product: Product, dtype: DType) -> float:
    """Returns the time of one matrix product on one device. Each of the two products of
    backward, which have the same three sizes in another order, takes as long.

    Args:
      rates: rates of the fleet.
      batch: number of samples on the device.
      product: the layer's product.
      dtype: data type in which it computes.
    """
    inputs, outputs = product
    moved = batch * inputs + inputs * outputs + batch * outputs
    fleet = rates.fleet
    flops_per_s = fleet.device.flops_per_s * fleet.efficiency.flops / SLOWDOWN[dtype]
    compute_ms = 1e3 * 2 * batch * inputs * outputs / flops_per_s
    moving_ms = rates.memory_ms(moved * VALUE_BYTES[dtype])
    return max(compute_ms, moving_ms) + rates.memory_ms(0.0, kernels=1)
