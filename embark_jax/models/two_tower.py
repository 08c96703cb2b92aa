"""Two towers: a user's vector and an item's, trained by a sampled softmax."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from pydantic import Field, NonNegativeInt, PositiveFloat

from embark_jax.models.function import Samples
from embark_jax.models.interface import Embeddings, Shapes, pooled_dims
from embark_jax.models.layers import MLP, unit
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, Features, Widths
from embark_jax.models.retrieval import (
    Queries,
    RetrievalModel,
    one_each,
    without_negatives,
)


class TwoTower(RetrievalModel):
    """Two MLPs: one makes a user's vector, the other an item's; see ``RetrievalModel``
    for the loss. Paper: https://doi.org/10.1145/3298689.3346996.

    Args:
      items: features of the item; the first one, with one id per sample, identifies
        the item. All others belong to the user.
      tower: widths of both MLPs; each layer but the last has ReLU.
      temperature: number that divides the cosines before the softmax.
      in_batch: whether the items of a batch's samples are negatives of each other.
      uniform_negatives: items drawn at random for each sample, which are negatives of
        the whole batch.

    Raises:
      ValueError: if a feature is a sequence, a tower has no feature, or negatives do
        not suit ``RetrievalModel``.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        items: Annotated[Features, Field(min_length=1, examples=[("item",)])],
        tower: Annotated[Widths, Field(min_length=1)] = (128, 64),
        temperature: PositiveFloat = 0.05,
        in_batch: bool = True,
        uniform_negatives: NonNegativeInt = 0,
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        catalog: int = 1,
        rngs: nnx.Rngs,
    ):
        dims = dict(pooled_dims(without_negatives(embedding_shapes)))
        if unknown := sorted(set(items) - dims.keys()):
            raise ValueError(f"items has {unknown[0]!r}, must be a feature")
        self.user_features = tuple(n for n in dims if n not in items)
        if not items or not self.user_features:
            raise ValueError("items must be some of the features, and not all of them")
        super().__init__(
            embedding_shapes,
            items[0],
            items,
            temperature,
            in_batch,
            uniform_negatives,
            catalog,
        )
        mlp = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp |= {"dropout": dropout, "batch_norm": batch_norm, "last_relu": False}
        width = dense_features + sum(dims[name] for name in self.user_features)
        self.user_tower = MLP(width, tower, **mlp)
        width = sum(dims[name] for name in self.item_features)
        self.item_tower = MLP(width, tower, **mlp)

    def users(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        inputs = [dense, *(embeddings[name] for name in self.user_features)]
        return unit(self.user_tower(jnp.concatenate(inputs, axis=1)))

    def items(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        inputs = [embeddings[name] for name in self.item_features]
        return unit(self.item_tower(jnp.concatenate(inputs, axis=1)))

    def queries(self, embeddings: Embeddings, batch: Samples) -> Queries:
        users = self.users(batch.dense, embeddings)
        items = self.items(batch.dense, embeddings)
        return one_each(users, items, batch.ids[self.item][:, 0], batch.labels)
