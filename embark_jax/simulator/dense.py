"""The dense part of a model: its matrix products, counted and timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from embark_jax.planner.rates import Rates

Product = tuple[int, int]
"""Inputs and outputs of a layer: ``[batch, inputs]`` by ``[inputs, outputs]``."""
DType = Literal["float32", "bfloat16", "float16"]
"""That dense layers compute in."""
VALUE_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
SLOWDOWN: dict[DType, int] = {"float32": 2, "bfloat16": 1, "float16": 1}
"""float32 runs as TF32 (https://www.nvidia.com/en-us/data-center/h100/)."""


@dataclasses.dataclass(frozen=True)
class DenseNetwork:
    """Matrix products of a model, and how wide is what flows between them.

    Attributes:
      bottom: of the MLP on the dense features; needs no embedding.
      cross: two for each cross layer; needs all embeddings.
      top: of the MLP that follows.
      width: of the values that come together from embeddings and bottom MLP.
    """

    bottom: tuple[Product, ...]
    cross: tuple[Product, ...]
    top: tuple[Product, ...]
    width: int

    @property
    def cross_layers(self) -> int:
        return len(self.cross) // 2

    @property
    def parameters(self) -> int:
        """Weights of all products; biases are left out."""
        products = (*self.bottom, *self.cross, *self.top)
        return sum(inputs * outputs for inputs, outputs in products)

    @property
    def flops_per_sample(self) -> int:
        """Forward and backward: three products of each weight, of two operations."""
        return 6 * self.parameters


def dlrm_dcnv2(
    embedding_width: int,
    dense_features: int,
    bottom: Sequence[int],
    top: Sequence[int],
    cross_layers: int,
    cross_rank: int,
) -> DenseNetwork:
    """Pooled rows and the bottom MLP's output through cross layers to the top MLP.

    Args:
      embedding_width: values of all pooled rows of a sample.
      dense_features: that the bottom MLP reads.
      bottom, top: widths of the MLPs.
      cross_layers, cross_rank: number of cross layers, and the rank of each.
    """
    width = embedding_width + (dense_features, *bottom)[-1]
    return DenseNetwork(
        tuple(_products(dense_features, bottom)),
        ((width, cross_rank), (cross_rank, width)) * cross_layers,
        tuple(_products(width, top)),
        width,
    )


def dlrm(
    embeddings: int, dense_features: int, bottom: Sequence[int], top: Sequence[int]
) -> DenseNetwork:
    """Dot products of each two vectors, with the bottom MLP's output to the top MLP.

    The dot products themselves are left out: they are 4 % of the top MLP's for 26
    embeddings of 128.

    Args:
      embeddings: pooled rows of a sample, each as wide as the bottom MLP's output.
      dense_features: that the bottom MLP reads.
      bottom, top: widths of the MLPs.
    """
    dim = (dense_features, *bottom)[-1]
    pairs = embeddings * (embeddings + 1) // 2
    return DenseNetwork(
        tuple(_products(dense_features, bottom)),
        (),
        tuple(_products(dim + pairs, top)),
        (embeddings + 1) * dim,
    )


def _products(inputs: int, widths: Sequence[int]) -> Iterator[Product]:
    return pairwise((inputs, *widths))


def product_ms(rates: Rates, batch: int, product: Product, dtype: DType) -> float:
    """Of one matrix product on one device; as long for each of the two products of
    backward, in which the three sizes change places.

    Args:
      rates: of the fleet.
      batch: samples of the device.
      product: the layer.
      dtype: that it computes in.
    """
    inputs, outputs = product
    moved = batch * inputs + inputs * outputs + batch * outputs
    fleet = rates.fleet
    flops_per_s = fleet.device.flops_per_s * fleet.efficiency.flops / SLOWDOWN[dtype]
    compute_ms = 1e3 * 2 * batch * inputs * outputs / flops_per_s
    moving_ms = rates.memory_ms(moved * VALUE_BYTES[dtype])
    return max(compute_ms, moving_ms) + rates.memory_ms(0.0, kernels=1)
