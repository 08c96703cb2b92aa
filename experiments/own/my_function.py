"""A model to copy that is plain functions, with a loss of its own; a pytree of any
library, such as an Equinox module, takes the place of the dictionary."""

import jax
import jax.numpy as jnp
import optax

from embark_jax.models import FunctionModel


def focal(embedding_shapes, dense_features, width=16, gamma=1.0, *, rngs):
    """An MLP, trained by the focal loss (https://arxiv.org/abs/1708.02002).

    Args:
      embedding_shapes: each feature's output shape per sample.
      dense_features: number of dense features.
      width: of the hidden layer.
      gamma: how much less samples count that are easily told.
      rngs: its ``params`` stream draws the weights.
    """
    inputs = dense_features + sum(shape[-1] for shape in embedding_shapes.values())
    params = {
        "hidden": inputs**-0.5 * rngs.params.normal((inputs, width)),
        "top": width**-0.5 * rngs.params.normal((width, 1)),
    }

    def apply(params, dense, embeddings):
        inputs = [dense, *(embeddings[name] for name in sorted(embeddings))]
        hidden = jax.nn.relu(jnp.concatenate(inputs, axis=1) @ params["hidden"])
        return (hidden @ params["top"])[:, 0]

    def loss(params, embeddings, batch):
        logits = apply(params, batch.dense, embeddings)
        losses = optax.sigmoid_focal_loss(logits, batch.labels, gamma=gamma)
        return losses.mean(), logits

    return FunctionModel(params, apply, loss)
