"""Predicts how long the matrix products of the dense layers take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.dense import DenseNetwork, Product

DType = Literal["float32", "bfloat16", "float16"]
"""The data types in which dense layers compute."""
FLOAT_BYTES = 4
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


@dataclasses.dataclass(frozen=True)
class DeviceProduct:
    """A product as one device of a node computes it.

    Attributes:
      product: the device's part of it, or all of it.
      forward_sum, backward_sum: values a sample of the node's batch that its devices
        sum, after the product and after its gradient by the inputs.
    """

    product: Product
    forward_sum: int = 0
    backward_sum: int = 0


def inputs_width(network: DenseNetwork) -> int:
    """Returns the values of a sample that come from outside the layers: dense features,
    embeddings and a label."""
    if not network.bottom:
        return network.width + 1
    made = network.bottom[-1][1]
    return network.bottom[0][0] + network.width - made + 1


def device_parameters(network: DenseNetwork, gpus_per_node: int) -> int:
    """Returns the weights on a device where layers are split inside nodes."""
    return sum(
        math.prod(made.product)
        for products in device_products(network, gpus_per_node)
        for made in products
    )


def device_products(
    network: DenseNetwork, gpus_per_node: int
) -> tuple[list[DeviceProduct], list[DeviceProduct], list[DeviceProduct]]:
    """Returns the products of bottom, cross layers and top where layers are split
    inside nodes (``models.layers``): two successive ones, the first by columns, the
    second by rows, if their width can be divided. Only the second's output needs a sum,
    and backward the gradient by the first's inputs, unless they are the data.

    Args:
      network: the layers.
      gpus_per_node: devices that share them; 1 leaves them whole.
    """
    bottom = _in_pairs(network.bottom, gpus_per_node)
    if bottom:
        bottom[0] = dataclasses.replace(bottom[0], backward_sum=0)
    cross = _in_pairs(network.cross, gpus_per_node)
    return bottom, cross, _in_pairs(network.top, gpus_per_node)


def _in_pairs(products: Sequence[Product], gpus: int) -> list[DeviceProduct]:
    made: list[DeviceProduct] = []
    rest = list(products)
    while rest:
        inputs, width = rest.pop(0)
        if gpus > 1 and width % gpus == 0 and rest and rest[0][0] == width:
            _, outputs = rest.pop(0)
            made.append(DeviceProduct((inputs, width // gpus), backward_sum=inputs))
            made.append(DeviceProduct((width // gpus, outputs), forward_sum=outputs))
        else:
            made.append(DeviceProduct((inputs, width)))
    return made
