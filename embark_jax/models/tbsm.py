"""TBSM: attention of the candidate over the events of a behaviour sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.models.dlrm import PAIRED, number_of_pairs, pairwise_dots
from embark_jax.models.interface import (
    Embeddings,
    MaskedModel,
    Shapes,
    check_embeddings,
    check_equal_dims,
    check_top,
    history_length,
    pooled_dims,
    unmasked,
)
from embark_jax.models.layers import MLP, matmul, unit, xavier_normal
from embark_jax.models.options import BatchNorm, ComputeDtype, Dropout, History, Widths


class TBSM(MaskedModel):
    """Time-based Sequence Model: a DLRM for each event, and attention over events.

    An event is the features of a sample at one time: a past event has rows of the
    sequence features instead of the candidate's rows. A small DLRM turns each event,
    and the candidate, into a vector of length one. The similarity of an event ``h`` to
    the candidate ``w`` is ``h · (Aᵀ A w)``. An MLP over the positions of the sequence,
    which ends in a sigmoid, turns similarities into weights, and the weighted events
    add up to a context. Context and candidate go through the top MLP to the logit.

    Paper: https://arxiv.org/abs/2008.11922. Of the settings in its code
    (https://github.com/facebookresearch/tbsm) this is the one for Taobao, with one
    attention; the defaults are its widths. Here all events have the dense features of
    the sample. Padding of a sequence is no event: it adds
    nothing to the context. Without dense features there is no bottom MLP, and an event
    is the dot products of its features alone.

    Args:
      history: for each sequence feature the pooled feature whose past values it holds,
        such as ``{"item_history": "item"}``. All have the same length.
      bottom: widths of the MLP that reads the dense features, each layer with ReLU;
        the last must be dim. Data without dense features have none.
      event: widths of the MLP that makes an event's vector, each layer with ReLU.
      attention: widths of the hidden layers of the MLP over the similarities.
      top: widths of the top MLP, which ends in one linear logit.

    Raises:
      ValueError: if ``history`` does not fit the features, or there is no pair.
    """

    def __init__(
        self,
        embedding_shapes: Shapes,
        dense_features: int,
        history: History,
        bottom: Widths = (16,),
        event: Widths = (15, 15),
        attention: Widths = (15, 15),
        top: Widths = (60, 1),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: BatchNorm = False,
        *,
        rngs: nnx.Rngs,
    ):
        check_top(top)
        bottom = bottom if dense_features else ()
        dim = (dense_features, *bottom)[-1]
        self.shapes = tuple(sorted(embedding_shapes.items()))
        check_equal_dims(
            [(name, shape[-1]) for name, shape in self.shapes], dim, PAIRED
        )
        length = history_length(embedding_shapes, history)
        # For the candidate's features, the sequences of their past, if they have any.
        past = {candidate: name for name, candidate in history.items()}
        pooled = {n: s for n, s in self.shapes if n not in history}
        self.fields = tuple((name, past.get(name)) for name, _ in pooled_dims(pooled))
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.bottom = MLP(dense_features, bottom, last_relu=True, **mlp)
        if len(past) < len(history):
            raise ValueError("history names a feature twice, must name each once")
        pairs = number_of_pairs(len(pooled) + (dense_features > 0))
        self.event = MLP(dim + pairs, event, last_relu=True, **mlp)
        width = (dim + pairs, *event)[-1]
        self.similarity = nnx.Param(xavier_normal(rngs.params(), (width, width)))
        self.attention = MLP(length, (*attention, length), last_relu=False, **mlp)
        self.top = MLP(2 * width, top, last_relu=False, **mlp)
        self.length = length
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns logits; see ``interface`` for shapes and errors."""
        embeddings, valid = unmasked(embeddings)
        check_embeddings(embeddings, self.shapes)
        vectors = self._event_vectors(dense, embeddings)
        past, candidate = vectors[:, :-1], vectors[:, -1]
        past = jnp.where(self._is_event(valid)[..., None], past, 0.0)

        a = self.similarity[...]
        query = matmul(candidate, a.T, self.compute_dtype)
        query = matmul(query, a, self.compute_dtype)
        similarities = jnp.einsum("btk,bk->bt", past, query)
        weights = nnx.sigmoid(self.attention(similarities))
        context = jnp.einsum("bt,btk->bk", weights, past)
        return self.top(jnp.concatenate([context, candidate], axis=1))[:, 0]

    def _event_vectors(self, dense: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Returns the vectors of the past events in order, then of the candidate:
        ``[batch, length + 1, width]``, each of length one."""
        bottom = self.bottom(dense)
        events = self.length + 1
        width = bottom.shape[1]
        fields = [jnp.repeat(bottom[:, None], events, axis=1)] if width else []
        for name, past in self.fields:
            candidate = embeddings[name][:, None]
            fields.append(
                jnp.concatenate([embeddings[past], candidate], axis=1)
                if past
                else jnp.repeat(candidate, events, axis=1)
            )
        stacked = jnp.stack(fields, axis=2)
        stacked = stacked.reshape(-1, *stacked.shape[2:])
        pairs = pairwise_dots(stacked.astype(self.compute_dtype))
        bottoms = stacked[:, 0, :width]
        vectors = self.event(jnp.concatenate([bottoms, pairs], axis=1))
        return unit(vectors).reshape(dense.shape[0], events, -1)

    def _is_event(self, valid: Embeddings) -> jax.Array:
        """Returns ``[batch, length]`` bool: where some sequence has an event."""
        sequences = [valid[past] for _, past in self.fields if past]
        return jnp.any(jnp.stack(sequences), axis=0)
