"""The losses that training minimizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

Loss = Callable[[jax.Array, jax.Array, Mapping[str, jax.Array]], jax.Array]
"""``(logits [batch], labels [batch], embeddings) -> losses [batch]``, with embeddings
as the model gets them; a step's gradient is that of their mean."""


@dataclasses.dataclass(frozen=True)
class BinaryCrossEntropy:
    """Log loss of click probabilities.

    Args:
      label_smoothing: weight of 1/2 in the labels that are trained; the label itself
        has the rest (https://arxiv.org/abs/1512.00567).
      embedding_l2: half of this times the squares of all of a sample's embeddings is
        added to its loss. For features with one id a bag these are rows, so that a row
        shrinks as often as the batch has it.
    """

    label_smoothing: float = 0.0
    embedding_l2: float = 0.0

    def __call__(
        self,
        logits: jax.Array,
        labels: jax.Array,
        embeddings: Mapping[str, jax.Array],
    ) -> jax.Array:
        smooth = self.label_smoothing
        if smooth:
            labels = (1 - smooth) * labels + smooth / 2
        losses = optax.sigmoid_binary_cross_entropy(logits, labels)
        if self.embedding_l2:
            squares = [
                jnp.square(each.astype(jnp.float32)).reshape(len(each), -1).sum(axis=1)
                for each in embeddings.values()
            ]
            losses = losses + self.embedding_l2 / 2 * sum(squares)
        return losses


LOG_LOSS = BinaryCrossEntropy()
