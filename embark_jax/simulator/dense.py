"""The dense part of a model: its matrix products, counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise

Product = tuple[int, int]
"""Inputs and outputs of a layer: ``[batch, inputs]`` by ``[inputs, outputs]``."""


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
