"""The time of the dense layers: forward and backward, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.dense import DenseLoad, DeviceProduct, weights
from embark_jax.plans import traffic
from embark_jax.plans.wire import VALUE_BYTES


class DensePart(NamedTuple):
    """Layers that run one after the other.

    Attributes:
      name: "bottom forward", "top forward", "top backward", "cross backward", after
        which the gradients of the embeddings are known, or "bottom backward".
      ms: time of the products, and of what moves between them.
      sums_ms: time of the sums over the devices of a node that split the layers.
      parameters: weights whose gradients it makes.
    """

    name: str
    ms: float
    sums_ms: float
    parameters: float


def dense_parts(load: DenseLoad, device_batch: int, rates: Rates) -> list[DensePart]:
    """Returns the parts in their order, for the samples of a device. What devices sum
    is float32 in any data type."""
    network, gpus = load.layers, load.shared_by(rates.fleet)
    samples, layers = device_batch * gpus, network.cross_layers
    bottom, cross, top = stacks = network.on_device(gpus)
    bottom_ms, cross_ms, top_ms = (
        sum(rates.product_ms(samples, made.product, load.dtype) for made in stack)
        for stack in stacks
    )
    # The inputs are joined. Each cross layer moves both factors, the sum and the result
    # forward; backward also the gradients of both factors.
    joined_bytes = samples * network.width * VALUE_BYTES[load.dtype]
    kernels = 1 + layers if network.width else 0
    # Other values are written and read in forward, and read in backward, which writes
    # and reads their gradients: DLRMv4's layers, compiled, move 4.8 times these bytes.
    moved_bytes = samples * network.moved_bytes
    joined_ms = rates.memory_ms(
        (2 + 4 * layers) * joined_bytes + 2 * moved_bytes, kernels
    )
    joined_back_ms = rates.memory_ms(
        (2 + 7 * layers) * joined_bytes + 3 * moved_bytes, kernels
    )

    def part(name: str, ms: float, sums: Iterable[float], made=()) -> DensePart:
        sums_ms = sum(
            rates.of("node").all_reduce_ms(traffic.WORD_BYTES * samples * values)
            for values in sums
        )
        return DensePart(name, ms, sums_ms, weights(made))

    def forward(*products: DeviceProduct) -> list[float]:
        return [made.forward_sum for made in products]

    def backward(products: list[DeviceProduct]) -> list[float]:
        return [made.backward_sum for made in products]

    return [
        part("bottom forward", bottom_ms, forward(*bottom)),
        part("top forward", cross_ms + top_ms + joined_ms, forward(*cross, *top)),
        part("top backward", 2 * top_ms, backward(top), network.top),
        part(
            "cross backward",
            2 * cross_ms + joined_back_ms,
            backward(cross),
            network.cross,
        ),
        part("bottom backward", 2 * bottom_ms, backward(bottom), network.bottom),
    ]


def dense_ms(load: DenseLoad, device_batch: int, rates: Rates) -> float:
    """Returns the time of forward and backward, without sums over devices."""
    return sum(part.ms for part in dense_parts(load, device_batch, rates))
