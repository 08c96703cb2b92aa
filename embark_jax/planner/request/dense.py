"""The dense part of a model: its matrix products, and the values between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import DenseParallelism

VALUE_BYTES = 4
"""Bytes of a float32."""

Product = tuple[int, int]
"""Inputs and outputs of a layer: ``[batch, inputs]`` by ``[inputs, outputs]``."""


@dataclasses.dataclass(frozen=True)
class DenseNetwork:
    """Matrix products of a model, and the width of the values that join before them.

    Attributes:
      bottom: products of the MLP on the dense features; needs no embedding.
      cross: two products for each cross layer; needs all embeddings.
      top: products of the MLP that follows.
      width: number of joined values from embeddings and bottom MLP.
    """

    bottom: tuple[Product, ...]
    cross: tuple[Product, ...]
    top: tuple[Product, ...]
    width: int

    @property
    def cross_layers(self) -> int:
        return len(self.cross) // 2

    @property
    def products(self) -> tuple[Product, ...]:
        return (*self.bottom, *self.cross, *self.top)

    @property
    def parameters(self) -> int:
        """Weights of all products; biases are left out."""
        return sum(inputs * outputs for inputs, outputs in self.products)

    @property
    def kept_values(self) -> int:
        """Values a sample that backward needs from forward: the joined values; the
        output of each product; and the output of each cross layer, which is more than
        its products: ``x0 * (W (V x) + b) + x``."""
        made = sum(outputs for _, outputs in self.products)
        return made + self.width * (1 + self.cross_layers)

    @property
    def activation_bytes(self) -> int:
        """Bytes that a sample's activations take, in float32."""
        return activation_bytes(
            VALUE_BYTES * self.kept_values, VALUE_BYTES * self.width
        )

    def load(
        self, states: int, parallelism: DenseParallelism = "replicated"
    ) -> DenseLoad:
        """Returns the load of these layers; arguments are those of ``DenseLoad``."""
        return DenseLoad(
            self.parameters, states, self.activation_bytes, parallelism, self.products
        )


NO_NETWORK = DenseNetwork((), (), (), width=0)
"""The network of a model whose tables alone are known."""


def activation_bytes(kept_bytes: int, pooled_bytes: int) -> int:
    """Returns the bytes a sample that the dense layers have in memory at once: the
    values kept of forward and their gradients. At worst all exist together, since XLA
    makes the gradients of weights late.

    Args:
      kept_bytes: bytes kept of forward.
      pooled_bytes: bytes of the joined values, whose gradients count with the tables.
    """
    return max(kept_bytes, 2 * kept_bytes - pooled_bytes)


@dataclasses.dataclass(frozen=True)
class DenseLoad:
    """The part of every device's memory that the dense part of a model takes.

    Attributes:
      parameters: number of float32 parameters of all layers.
      states: number of float32 values that the optimizer keeps for each parameter.
      activation_bytes: bytes of activations a sample.
      parallelism: layout of the dense layers on the devices.
      known_products: products of the layers, if they are known.
    """

    parameters: int
    states: int
    activation_bytes: float
    parallelism: DenseParallelism = "replicated"
    known_products: tuple[Product, ...] = ()

    @property
    def products(self) -> tuple[tuple[float, float], ...]:
        """Products of the layers; of unknown ones a square product of as many
        weights."""
        side = math.sqrt(self.parameters)
        return self.known_products or ((side, side),) * (self.parameters > 0)

    def held_bytes(self, fleet: Fleet) -> float:
        """Returns the bytes of parameters and their states."""
        states = float(self.states)
        if self.parallelism == "zero1":
            states /= fleet.devices
        return self.gradient_bytes(fleet) * (1 + states)

    def gradient_bytes(self, fleet: Fleet) -> float:
        """Returns the bytes of the parameters' gradients."""
        split = self.parallelism == "tensor"
        return VALUE_BYTES * self.parameters / (fleet.gpus_per_node if split else 1)

    def sample_bytes(self, fleet: Fleet) -> float:
        """Returns the bytes of activations for a sample of the device's share of the
        batch: where layers are split inside nodes, a device takes part in all samples
        of its node."""
        split = self.parallelism == "tensor"
        return self.activation_bytes * (fleet.gpus_per_node if split else 1)


NO_DENSE = DenseLoad(0, 0, 0.0)
"""The load of a model whose tables alone are known."""


def dlrm_dcnv2(
    embedding_width: int,
    dense_features: int,
    bottom: Sequence[int],
    top: Sequence[int],
    cross_layers: int,
    cross_rank: int,
    *,
    parallel: bool = False,
) -> DenseNetwork:
    """The network in which pooled rows and the bottom MLP's output go through cross
    layers to the top MLP. Without dense features there is no bottom MLP.

    Args:
      embedding_width: values of all pooled rows of a sample.
      dense_features: dense features that the bottom MLP reads.
      bottom, top: widths of the MLPs.
      cross_layers, cross_rank: number of cross layers, and the rank of each.
      parallel: whether the top MLP's hidden layers are beside the cross layers, not
        behind them.
    """
    bottom = bottom if dense_features else ()
    width = embedding_width + (dense_features, *bottom)[-1]
    return DenseNetwork(
        tuple(_products(dense_features, bottom)),
        ((width, cross_rank), (cross_rank, width)) * cross_layers,
        _parallel(width, top) if parallel else tuple(_products(width, top)),
        width,
    )


def dlrm(
    embeddings: int,
    embedding_width: int,
    dense_features: int,
    bottom: Sequence[int],
    top: Sequence[int],
) -> DenseNetwork:
    """The network in which dot products of all pairs of vectors and the bottom MLP's
    output go to the top MLP. Without dense features there is no bottom MLP.

    The dot products themselves are left out: they are 4 % of the top MLP's for 26
    embeddings of 128.

    Args:
      embeddings: number of pooled rows of a sample, each as wide as the bottom MLP's
        output.
      embedding_width: values of all pooled rows of a sample.
      dense_features: dense features that the bottom MLP reads.
      bottom, top: widths of the MLPs.
    """
    bottom = bottom if dense_features else ()
    dim = (dense_features, *bottom)[-1]
    vectors = embeddings + (dense_features > 0)
    pairs = vectors * (vectors - 1) // 2
    return DenseNetwork(
        tuple(_products(dense_features, bottom)),
        (),
        tuple(_products(dim + pairs, top)),
        embedding_width + dim,
    )


def _parallel(width: int, top: Sequence[int]) -> tuple[Product, ...]:
    """Hidden layers on the joined values, and one layer on these and their output."""
    hidden = tuple(_products(width, top[:-1]))
    return (*hidden, (width + (width, *top[:-1])[-1], top[-1]))


def _products(inputs: int, widths: Sequence[int]) -> Iterator[Product]:
    return pairwise((inputs, *widths))


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
