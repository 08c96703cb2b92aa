"""MMoE: several tasks share experts, which a gate for each task mixes."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from pydantic import Field

from embark_jax.models.interface import (
    Embeddings,
    Joined,
    JoinedModel,
    Shapes,
    pooled_dims,
)
from embark_jax.models.layers import MLP, Linear, side_by_side
from embark_jax.models.options import (
    BatchNorm,
    ComputeDtype,
    Dropout,
    Features,
    Layers,
    Widths,
)


class MMoE(JoinedModel):
    """Multi-gate Mixture-of-Experts, and the shared-bottom model.

    Task k has the logit ``tower_k(Σ_i g_k(x)_i f_i(x))``: experts ``f_i`` are MLPs over
    all features, and its gate is ``g_k(x) = softmax(W_k x)``. With a single expert
    there is nothing to mix, and no gate: this is the shared-bottom model. Paper:
    https://doi.org/10.1145/3219819.3220007, section 4; gates have a bias here.

    Args:
      tasks: names of the tasks, in the order of the labels.
      experts: number of experts, which all tasks share; a single one makes the
        shared-bottom model.
      expert: widths of each expert, each layer with ReLU.
      tower: hidden widths of each task's tower.

    Raises:
      ValueError: if a feature is a sequence.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        tasks: Annotated[Features, Field(min_length=2, examples=[("click", "like")])],
        experts: Layers = 8,
        expert: Widths = (256,),
        tower: Widths = (64,),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.dims = pooled_dims(embedding_shapes)
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        width = dense_features + sum(dim for _, dim in self.dims)
        self.compute_dtype = jnp.dtype(compute_dtype)
        self.experts = nnx.List(
            MLP(width, expert, last_relu=True, **mlp) for _ in range(experts)
        )
        self.gates = nnx.List(
            Linear(width, experts, **shared) for _ in tasks if experts > 1
        )
        self.towers = nnx.List(
            MLP((width, *expert)[-1], (*tower, 1), last_relu=False, **mlp)
            for _ in tasks
        )

    def __call__(self, dense: jax.Array, embeddings: Embeddings | Joined) -> jax.Array:
        """Returns logits ``[batch, tasks]``; see ``interface``."""
        x = side_by_side(dense, embeddings, self.dims, self.compute_dtype)
        outputs = jnp.stack([expert(x) for expert in self.experts], axis=1)
        logits = []
        for task, tower in enumerate(self.towers):
            mixed = outputs[:, 0]
            if self.gates:
                gate = nnx.softmax(self.gates[task](x))
                mixed = jnp.sum(gate[:, :, None] * outputs, axis=1)
            logits.append(tower(mixed))
        return jnp.concatenate(logits, axis=1)
