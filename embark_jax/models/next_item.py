"""Next-item models: a user's vector is made of what the user met before."""

from __future__ import annotations

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from embark_jax.models.events import Sequences
from embark_jax.models.function import Samples
from embark_jax.models.interface import (
    Embeddings,
    PackedModel,
    Shapes,
    check_history,
)
from embark_jax.models.layers import Linear, unit
from embark_jax.models.options import ComputeDtype, Dropout, History, Layers
from embark_jax.models.retrieval import (
    Queries,
    RetrievalModel,
    one_each,
    wide,
    without_negatives,
)
from embark_jax.models.sequence import SequenceEncoder


class NextItem(RetrievalModel, PackedModel):
    """SASRec (https://arxiv.org/abs/1808.09781) or HSTU (https://arxiv.org/abs/2402.17152)
    over the items of a history, trained by a softmax over sampled items.

    A sequence begins with one event of the context, the sum of projections of all
    features but the history and the item. The user's vector is what the last event has
    seen, the item's vector its own row; see ``RetrievalModel`` for the loss. In
    training each event of the history may predict the next one, too, as in both papers;
    the loss is then the mean over all events, of whatever sample.

    Args:
      history: the sequence feature, and the feature of one id a sample whose past
        values it holds.
      encoder: layers that read the history, ``sasrec`` or ``hstu``.
      layers: number of layers.
      heads: attention heads, which must divide the dim of the item.
      every_position: whether all events of a history are predicted, by those before.
      temperature: number that divides the cosines before the softmax.
      in_batch: whether the items of a batch's samples are negatives of each other.
      uniform_negatives: items drawn at random for each sample, which are negatives of
        the whole batch.
      dropout: of the layers.

    Raises:
      ValueError: if ``history`` is not one feature or does not fit, heads do not divide
        the width, or negatives do not suit ``RetrievalModel``.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        history: Annotated[History, Field(max_length=1)],
        encoder: Literal["hstu", "sasrec"] = "hstu",
        layers: Layers = 2,
        heads: PositiveInt = 1,
        temperature: PositiveFloat = 0.05,
        every_position: bool = False,
        in_batch: bool = True,
        uniform_negatives: NonNegativeInt = 0,
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        *,
        catalog: int = 1,
        rngs: nnx.Rngs,
    ):
        inputs = without_negatives(embedding_shapes)
        check_history(inputs, history)
        if len(history) != 1:
            raise ValueError(f"history has {len(history)} features, must have one")
        ((self.history, item),) = history.items()
        super().__init__(
            embedding_shapes,
            item,
            (item,),
            temperature,
            in_batch,
            uniform_negatives,
            catalog,
        )
        self.every_position = every_position
        length, width = embedding_shapes[self.history]
        self.context = tuple(
            name for name in sorted(inputs) if name not in (self.history, item)
        )
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        self.projections = nnx.List(
            Linear(embedding_shapes[name][-1], width, **shared) for name in self.context
        )
        self.dense = Linear(dense_features, width, **shared) if dense_features else None
        self.start = nnx.Param(0.02 * jax.random.normal(rngs.params(), (width,)))
        self.encoder = SequenceEncoder(
            encoder, width, length + 1, layers, heads, dropout=dropout, **shared
        )

    def users(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        seen, sequences = self._encoded(dense, embeddings)
        return unit(sequences.last(seen))

    def items(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        return unit(embeddings[self.item])

    def queries(self, embeddings: Embeddings, batch: Samples) -> Queries:
        items, ids = embeddings[self.item], batch.ids[self.item]
        if not self.every_position:
            users = self.users(batch.dense, embeddings)
            return one_each(users, unit(items), ids[:, 0], batch.labels)
        seen, sequences = self._encoded(batch.dense, embeddings)
        latest = unit(sequences.last(seen))
        # Each event's target is the next one, and the last event's the item: they lie
        # as a history without context does, with a candidate.
        past = embeddings[self.history]
        targets = Sequences(past, candidate=True)
        target_ids = targets.ids(batch.ids[self.history], ids[:, 0])
        labels = targets.by_event(batch.labels)
        is_last, is_event = targets.is_last(), targets.is_event()
        weights = jnp.where(is_last, labels, is_event.astype(jnp.float32))
        weights = weights * (len(ids) / is_event.sum(dtype=jnp.float32))
        users, vectors = unit(seen), unit(targets.rows(past, items))

        def grouped(array):
            return array.reshape(targets.groups, -1, *array.shape[1:])

        with wide(target_ids):
            target_ids = grouped(target_ids)
        return Queries(
            grouped(users),
            grouped(vectors),
            target_ids,
            lambda losses: targets.sums(losses.reshape(weights.shape) * weights),
            latest,
        )

    def _encoded(
        self, dense: jax.Array, embeddings: Embeddings
    ) -> tuple[jax.Array, Sequences]:
        """Returns what each event has seen, ``[…, dim]``, and where events lie: one of
        the context, and those of the history."""
        past = embeddings[self.history]
        sequences = Sequences(past, context=1)
        start = jnp.broadcast_to(self.start[...], embeddings[self.item].shape)
        for name, layer in zip(self.context, self.projections, strict=True):
            start = start + layer(embeddings[name])
        if self.dense is not None:
            start = start + self.dense(dense)
        events = sequences.with_context(sequences.rows(past), start[:, None])
        return self.encoder(events, sequences), sequences
