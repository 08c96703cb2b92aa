"""The dense part of a model: its matrix products, and the values between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import DenseParallelism, Dtype
from embark_jax.plans.products import Product
from embark_jax.plans.tables import FeatureSpec, TableSpec, embedding_width
from embark_jax.plans.traffic import WORD_BYTES
from embark_jax.plans.wire import VALUE_BYTES


class DeviceProduct(NamedTuple):
    """A product as one device of a node computes it.

    Attributes:
      product: the device's part of it, or all of it.
      forward_sum, backward_sum: values a sample of the node's batch that its devices
        sum, after the product and after its gradient by the inputs.
    """

    product: Product
    forward_sum: float = 0
    backward_sum: float = 0


@dataclasses.dataclass(frozen=True)
class DenseNetwork:
    """Matrix products of a model, and the width of the values that join before them.

    Attributes:
      bottom: products of the MLP on the dense features; needs no embedding.
      cross: two products for each cross layer; needs all embeddings.
      top: products of the MLP that follows.
      width: number of joined values from embeddings and bottom MLP.
      moved_bytes: bytes a sample that backward needs from forward, which move between
        products; none where the layers above say what moves.
    """

    bottom: tuple[Product, ...] = ()
    cross: tuple[Product, ...] = ()
    top: tuple[Product, ...] = ()
    width: int = 0
    moved_bytes: float = 0.0

    @property
    def cross_layers(self) -> int:
        return len(self.cross) // 2

    @property
    def parameters(self) -> int:
        """Weights of all products; biases are left out."""
        return int(weights((*self.bottom, *self.cross, *self.top)))

    @property
    def inputs_width(self) -> float:
        """Values of a sample from outside the layers: dense features, embeddings and a
        label."""
        if not self.bottom:
            return self.width + 1
        return self.bottom[0].inputs + self.width - self.bottom[-1].outputs + 1

    @property
    def kept_values(self) -> float:
        """Values a sample that backward needs from forward: the joined values; the
        output of each product; and the output of each cross layer, which is more than
        its products: ``x0 * (W (V x) + b) + x``."""
        made = sum(each.outputs for each in (*self.bottom, *self.cross, *self.top))
        return made + self.width * (1 + self.cross_layers)

    def on_device(self, gpus: int) -> tuple[list[DeviceProduct], ...]:
        """Returns the products of bottom, cross layers and top where ``gpus`` devices
        split the layers (``models.layers``): two successive ones, the first by columns,
        the second by rows, if their width can be divided. Only the second's output
        needs a sum, and backward the gradient by the first's inputs, unless they are
        the data."""
        bottom, cross, top = (
            _in_pairs(products, gpus)
            for products in (self.bottom, self.cross, self.top)
        )
        bottom[:1] = [made._replace(backward_sum=0) for made in bottom[:1]]
        return bottom, cross, top

    def load(
        self,
        states: int,
        parallelism: DenseParallelism = "replicated",
        dtype: Dtype = "bfloat16",
    ) -> DenseLoad:
        """Returns the load of these layers; arguments are those of ``DenseLoad``. At
        worst all values and their gradients exist together, but for the joined values'
        gradients, which count with the tables."""
        kept = WORD_BYTES * self.kept_values
        return DenseLoad(
            self.parameters,
            states,
            max(kept, 2 * kept - VALUE_BYTES[dtype] * self.width),
            parallelism,
            dtype,
            self,
            embedding_dtype=dtype,
        )


@dataclasses.dataclass(frozen=True)
class DenseLoad:
    """The part of every device's memory and time that the dense part of a model takes.

    Attributes:
      parameters: number of float32 parameters of all layers.
      states: number of float32 values that the optimizer keeps for each parameter.
      activation_bytes: bytes of activations a sample.
      parallelism: layout of the dense layers on the devices.
      dtype: data type in which they compute.
      network: their products, if they are known.
      embedding_dtype: data type in which they take pooled embeddings, and give back
        the gradients of these.
    """

    parameters: int
    states: int
    activation_bytes: float
    parallelism: DenseParallelism = "replicated"
    dtype: Dtype = "bfloat16"
    network: DenseNetwork | None = None
    embedding_dtype: Dtype = "float32"

    @property
    def layers(self) -> DenseNetwork:
        """The products; where they are unknown a square one of as many weights."""
        side = math.sqrt(self.parameters)
        square = DenseNetwork(top=(Product(side, side),) if side else ())
        return self.network or square

    def shared_by(self, fleet: Fleet) -> int:
        """Returns the number of devices that split the layers, and go through all
        samples of their node together."""
        return fleet.gpus_per_node if self.parallelism == "tensor" else 1

    def device_parameters(self, fleet: Fleet) -> float:
        """Returns the weights of the products on a device."""
        parts = self.layers.on_device(self.shared_by(fleet))
        return sum(weights([made.product for made in part]) for part in parts)

    def held_bytes(self, fleet: Fleet) -> float:
        """Returns the bytes of parameters and their states."""
        states = float(self.states)
        if self.parallelism == "zero1":
            states /= fleet.devices
        return self.gradient_bytes(fleet) * (1 + states)

    def gradient_bytes(self, fleet: Fleet) -> float:
        """Returns the bytes of the parameters' gradients."""
        return WORD_BYTES * self.parameters / self.shared_by(fleet)

    def sample_bytes(self, fleet: Fleet) -> float:
        """Returns the bytes of activations for a sample of the device's share of the
        batch."""
        return self.activation_bytes * self.shared_by(fleet)


NO_DENSE = DenseLoad(0, 0, 0.0)
"""The load of a model whose tables alone are known."""


def dlrm_network(
    embedding_width: int,
    dense_features: int,
    bottom: Sequence[int],
    top: Sequence[int],
    cross_layers: int = 0,
    cross_rank: int = 0,
    dotted: int = 0,
) -> DenseNetwork:
    """The network in which pooled rows and the bottom MLP's output go through cross
    layers to the top MLP (DLRM-DCNv2), or that output and dot products of all pairs of
    vectors (DLRM). Without dense features there is no bottom MLP.

    The dot products themselves are left out: they are 4 % of the top MLP's for 26
    embeddings of 128.

    Args:
      embedding_width: values of all pooled rows of a sample.
      dense_features: dense features that the bottom MLP reads.
      bottom, top: widths of the MLPs.
      cross_layers, cross_rank: number of cross layers, and the rank of each.
      dotted: pooled rows of a sample, each as wide as the bottom MLP's output, where
        pairs are multiplied.
    """
    bottom = bottom if dense_features else ()
    dim = (dense_features, *bottom)[-1]
    width = inputs = embedding_width + dim
    if dotted:
        vectors = dotted + (dense_features > 0)
        inputs = dim + vectors * (vectors - 1) // 2
    cross = (Product(width, cross_rank), Product(cross_rank, width)) * cross_layers
    mlps = [
        tuple(Product(*pair) for pair in pairwise(widths))
        for widths in ((dense_features, *bottom), (inputs, *top))
    ]
    return DenseNetwork(mlps[0], cross, mlps[1], width)


def network_of(
    model: Any,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    dense_features: int,
) -> DenseNetwork | None:
    """Returns the matrix products of a model that a config or a table list describes,
    if they are known.

    Args:
      model: section of the config, or the list's ``DenseNet``.
      tables, features, dense_features: inputs of the model.
    """
    width = embedding_width(tables, features)
    match model.kind:
        case "dlrm_dcnv2":
            how = {"cross_layers": model.cross_layers, "cross_rank": model.cross_rank}
        case "dlrm":
            how = {"dotted": len(features)}
        case _:
            return None
    return dlrm_network(width, dense_features, model.bottom, model.top, **how)


def weights(products: Sequence[Product]) -> float:
    """Returns the number of parameters."""
    return sum(each.inputs * each.outputs for each in products if each.weighted)


def _in_pairs(products: Sequence[Product], gpus: int) -> list[DeviceProduct]:
    made: list[DeviceProduct] = []
    rest = list(products)
    while rest:
        first = rest.pop(0)
        width, follows = first.outputs, rest[0] if rest else None
        if gpus > 1 and width % gpus == 0 and follows and follows.inputs == width:
            rest.pop(0)
            part = width // gpus
            made.append(
                DeviceProduct(first._replace(outputs=part), backward_sum=first.inputs)
            )
            made.append(
                DeviceProduct(
                    follows._replace(inputs=part), forward_sum=follows.outputs
                )
            )
        else:
            made.append(DeviceProduct(first))
    return made
