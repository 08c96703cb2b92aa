"""HSTU as MLPerf Training has it: DLRMv4, which ranks a candidate after a history."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from pydantic import Field, PositiveInt

from embark_jax.models.events import Sequences
from embark_jax.models.interface import (
    Embeddings,
    PackedModel,
    Shapes,
    check_embeddings,
    history_length,
)
from embark_jax.models.layers import Linear
from embark_jax.models.options import ComputeDtype, Dropout, Features, History, Layers
from embark_jax.models.sequence import STU, project


class NormedMLP(nnx.Module):
    """Two linear layers of events or samples: the hidden values are multiplied by the
    sigmoid of their normalization, and the result is normalized."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        *,
        normed: bool = True,
        compute_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        self.inner = Linear(inputs, hidden, **shared)
        self.inner_norm = nnx.LayerNorm(hidden, rngs=rngs)
        self.outer = Linear(hidden, outputs, **shared)
        self.norm = nnx.LayerNorm(outputs, rngs=rngs) if normed else None

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = project(self.inner.rounded, x)
        wide = hidden.astype(jnp.float32)
        hidden = (wide * nnx.sigmoid(self.inner_norm(wide))).astype(hidden.dtype)
        outer = project(self.outer.rounded, hidden).astype(jnp.float32)
        return outer if self.norm is None else self.norm(outer)


class DLRMv4(PackedModel):
    """The model of MLPerf Training's DLRMv4 benchmark.

    A sequence begins with an event of each feature of the context; then come the events
    of the history, and at its end the candidate. An event is the sum of what one MLP
    makes of its content, another of its other features, its encodings, and a vector by
    its distance from the candidate. What the candidate has seen is combined with the
    dense features, which are of the time of the request, and multiplied by what an MLP
    makes of the candidate's own rows. Layers: https://github.com/mlcommons/training,
    recommendation; paper: https://arxiv.org/abs/2402.17152.

    Args:
      history: for each sequence feature the pooled feature whose past values it holds;
        sequences have equal lengths.
      content: the sequence whose rows have an MLP of their own, and say which events
        there are.
      encodings: sequences whose rows are added as they are, and are no part of the
        candidate's own rows: of times and actions.
      width: width of an event.
      hidden: width of the hidden layers of the MLPs of events.
      layers: number of STU layers.
      heads: their attention heads.
      head_dim: width of queries, keys and values of a head.
      deep: width of the hidden layers of the candidate's MLP and the logit's.
      input_dropout: share of an event that training sets to zero.
      dropout: the same of what each layer adds.

    Raises:
      ValueError: if options do not fit the features.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        history: History,
        content: Annotated[str, Field(examples=["past_items"])],
        encodings: Features = (),
        width: PositiveInt = 64,
        hidden: PositiveInt = 32,
        layers: Layers = 3,
        heads: PositiveInt = 4,
        head_dim: PositiveInt = 16,
        deep: PositiveInt = 64,
        compute_dtype: ComputeDtype = "float32",
        input_dropout: Dropout = 0.0,
        dropout: Dropout = 0.0,
        *,
        rngs: nnx.Rngs,
    ):
        past = history_length(embedding_shapes, history)
        for name in (content, *encodings):
            if name not in history or (name == content and content in encodings):
                raise ValueError(
                    f"content is {content!r}, encodings are {list(encodings)}, must be "
                    f"unequal names of {sorted(history)}"
                )
        for name in encodings:
            if (dim := embedding_shapes[name][1]) != width:
                raise ValueError(f"encoding {name!r} has dim {dim}, must be {width}")
        self.shapes = tuple(sorted(embedding_shapes.items()))
        self.history = tuple(sorted(history.items()))
        self.content, self.encodings = content, tuple(encodings)
        events = {*history, *history.values()}
        self.context = tuple(name for name, _ in self.shapes if name not in events)
        self.others = tuple(
            name for name, _ in self.history if name not in (content, *encodings)
        )
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}

        def dims(*names: str) -> int:
            return sum(embedding_shapes[name][-1] for name in names)

        self.context_projections = nnx.List(
            Linear(dims(name), width, **shared) for name in self.context
        )
        self.content_mlp = NormedMLP(dims(content), hidden, width, **shared)
        self.others_mlp = (
            NormedMLP(dims(*self.others), hidden, width, **shared)
            if self.others
            else None
        )
        length = len(self.context) + past + 1
        bound = length**-0.5
        self.position_vectors = nnx.Param(
            jax.random.uniform(
                rngs.params(), (length, width), minval=-bound, maxval=bound
            )
        )
        self.input_dropout = (
            nnx.Dropout(input_dropout, rngs=rngs) if input_dropout else None
        )
        self.layers = nnx.List(
            STU(
                width,
                heads,
                head_dim,
                variant="dlrm_v4",
                dropout=dropout,
                **shared,
            )
            for _ in range(layers)
        )
        self.combine = Linear(width + dense_features, width, **shared)
        self.user_norm = nnx.LayerNorm(width, rngs=rngs)
        self.item_mlp = NormedMLP(dims(content, *self.others), deep, width, **shared)
        self.top = NormedMLP(width, deep, 1, normed=False, **shared)

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        check_embeddings(embeddings, self.shapes)
        sequences = Sequences(
            embeddings[self.content], context=len(self.context), candidate=True
        )
        rows = {
            name: sequences.rows(embeddings[name], embeddings[now])
            for name, now in self.history
        }
        x = self.content_mlp(rows[self.content])
        if self.others_mlp is not None:
            others = jnp.concatenate([rows[name] for name in self.others], axis=-1)
            x = x + self.others_mlp(others)
        pairs = zip(self.context, self.context_projections, strict=True)
        if context := [layer(embeddings[name]) for name, layer in pairs]:
            x = sequences.with_context(x, jnp.stack(context, axis=1))
        x = x * x.shape[-1] ** 0.5
        x = x + sequences.by_distance(self.position_vectors[...])
        for name in self.encodings:
            x = x + rows[name]
        x = self.input_dropout(x) if self.input_dropout else x
        for layer in self.layers:
            x = layer(x, sequences)
        user = sequences.last(x)
        if dense.shape[1]:
            user = jnp.concatenate([user, dense], axis=-1)
        user = self.combine(user)
        now = dict(self.history)
        names = (self.content, *self.others)
        rows = jnp.concatenate([embeddings[now[name]] for name in names], axis=-1)
        return self.top(self.user_norm(user) * self.item_mlp(rows))[:, 0]
