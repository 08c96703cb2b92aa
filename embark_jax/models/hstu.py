"""HSTU as a ranking model: what does a user do with the candidate, after all events?"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from pydantic import PositiveInt

from embark_jax.models.events import Sequences
from embark_jax.models.interface import (
    Embeddings,
    PackedModel,
    Shapes,
    check_embeddings,
    history_length,
)
from embark_jax.models.layers import MLP, Linear
from embark_jax.models.options import (
    BatchNorm,
    ComputeDtype,
    Dropout,
    History,
    Layers,
    Widths,
)
from embark_jax.models.sequence import SequenceEncoder, project


class HSTU(PackedModel):
    """Hierarchical sequential transduction units over context, history and candidate.

    A sequence begins with one event of the context, which is the sum of projections of
    all other features; then come the events of the history, and at its end the
    candidate. An event is the sum of projections of its features, which are those of
    the candidate, too. An MLP makes the logit of what the candidate has seen. Paper:
    https://arxiv.org/abs/2402.17152, of which this is the ranking model with one
    candidate, without the bias by time.

    Args:
      history: for each sequence feature the pooled feature whose past values it holds;
        sequences have equal lengths, and their events are those of the first by name.
      width: width of an event.
      layers: number of layers.
      heads: attention heads, which must divide the width.
      deep: widths of the hidden layers of the MLP.

    Raises:
      ValueError: if ``history`` does not fit the features, or heads do not divide the
        width.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        history: History,
        width: PositiveInt = 64,
        layers: Layers = 3,
        heads: PositiveInt = 4,
        deep: Widths = (64,),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        self.shapes = tuple(sorted(embedding_shapes.items()))
        self.history = tuple(sorted(history.items()))
        length = history_length(embedding_shapes, history)
        events = {*history, *history.values()}
        self.context = tuple(name for name, _ in self.shapes if name not in events)

        def projections(names: Sequence[str]) -> nnx.List:
            return nnx.List(
                Linear(
                    embedding_shapes[name][-1],
                    width,
                    compute_dtype=compute_dtype,
                    rngs=rngs,
                )
                for name in names
            )

        self.event_projections = projections([name for name, _ in self.history])
        self.context_projections = projections(self.context)
        self.dense = (
            Linear(dense_features, width, compute_dtype=compute_dtype, rngs=rngs)
            if dense_features
            else None
        )
        self.start = nnx.Param(0.02 * jax.random.normal(rngs.params(), (width,)))
        shared = {"compute_dtype": compute_dtype, "dropout": dropout, "rngs": rngs}
        self.encoder = SequenceEncoder(
            "hstu", width, length + 2, layers, heads, **shared
        )
        self.top = MLP(
            width, (*deep, 1), last_relu=False, batch_norm=batch_norm, **shared
        )

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        check_embeddings(embeddings, self.shapes)
        start = jnp.broadcast_to(
            self.start[...], (dense.shape[0], len(self.start[...]))
        )
        for name, layer in zip(self.context, self.context_projections, strict=True):
            start = start + layer(embeddings[name])
        if self.dense is not None:
            start = start + self.dense(dense)
        history = embeddings[self.history[0][0]]
        sequences = Sequences(history, context=1, candidate=True)
        pairs = zip(self.history, self.event_projections, strict=True)
        events = functools.reduce(
            jnp.add,
            (
                project(layer, sequences.rows(embeddings[name], embeddings[now]))
                for (name, now), layer in pairs
            ),
        )
        events = sequences.with_context(events, start[:, None])
        seen = self.encoder(events, sequences)
        return self.top(sequences.last(seen))[:, 0]
