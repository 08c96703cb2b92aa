"""The losses that training minimizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

Loss = Callable[[jax.Array, jax.Array, Mapping[str, jax.Array]], jax.Array]
"""``(logits, labels, embeddings) -> losses [batch]``, with logits and labels
``[batch]``, or ``[batch, tasks]`` if a sample has several labels, and embeddings as the
model gets them; a step's gradient is that of the mean loss."""


@dataclasses.dataclass(frozen=True)
class BinaryCrossEntropy:
    """Log loss of click probabilities; of several tasks, the weighted sum of each
    one's, without those whose label is NaN: missing.

    Args:
      label_smoothing: weight of 1/2 in the labels that are trained; the label itself
        has the rest (https://arxiv.org/abs/1512.00567).
      embedding_l2: half of this times the squares of all of a sample's embeddings is
        added to its loss. For features with one id a bag these are rows, so that a row
        shrinks as often as the batch has it.
      task_weights: factor of each task's loss; () sums them as they are.
    """

    label_smoothing: float = 0.0
    embedding_l2: float = 0.0
    task_weights: tuple[float, ...] = ()

    def __call__(
        self,
        logits: jax.Array,
        labels: jax.Array,
        embeddings: Mapping[str, jax.Array],
    ) -> jax.Array:
        smooth = self.label_smoothing
        if smooth:
            labels = (1 - smooth) * labels + smooth / 2
        if labels.ndim == 1:
            losses = optax.sigmoid_binary_cross_entropy(logits, labels)
        else:
            missing, known = jnp.isnan(labels), jnp.nan_to_num(labels)
            losses = optax.sigmoid_binary_cross_entropy(logits, known)
            losses = jnp.where(missing, 0, losses)
            weights = self.task_weights or (1.0,) * losses.shape[1]
            losses = (losses * jnp.array(weights, losses.dtype)[None]).sum(axis=1)
        if self.embedding_l2:
            squares = [
                jnp.square(e.astype(jnp.float32)).reshape(len(e), -1).sum(axis=1)
                for e in embeddings.values()
            ]
            losses = losses + self.embedding_l2 / 2 * sum(squares)
        return losses


LOG_LOSS = BinaryCrossEntropy()
