"""TBSM: attention of the candidate over the events of a behaviour sequence."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.models.dlrm import pairwise_dots
from embark_jax.models.interface import (
    check_embeddings,
    check_top,
    pooled_dims,
)
from embark_jax.models.layers import MLP, matmul, xavier_normal
from embark_jax.models.options import ComputeDtype, Dropout, History, Widths
from embark_jax.models.packed import MaskedModel, unmasked

_LEAST_SQUARED_NORM = 1e-12


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
      embedding_shapes: each feature's embedding shape per sample, with the same dim for
        all: ``(dim,)``, or ``(length, dim)`` for a sequence. Features are taken sorted
        by name.
      dense_features: number of dense features; may be 0.
      history: for each sequence feature the pooled feature whose past values it holds,
        such as ``{"item_history": "item"}``. All have the same length.
      bottom: widths of the MLP that reads the dense features, each layer with ReLU;
        the last must be dim. Data without dense features have none.
      event: widths of the MLP that makes an event's vector, each layer with ReLU.
      attention: widths of the hidden layers of the MLP over the similarities.
      top: widths of the top MLP, which ends in one linear logit.
      compute_dtype: dtype of matrix operands; parameters and sums are float32.
      dropout: share of an MLP's hidden values that training sets to zero.
      batch_norm: whether an MLP's hidden values are normalized before their ReLU.
      rngs: its ``params`` stream draws the weights.

    Raises:
      ValueError: if ``history`` does not fit the features, dims or lengths differ,
        there is no pair of vectors, or ``top`` does not end in 1.
    """

    def __init__(
        self,
        embedding_shapes: Mapping[str, tuple[int, ...]],
        dense_features: int,
        history: History,
        bottom: Widths = (16,),
        event: Widths = (15, 15),
        attention: Widths = (15, 15),
        top: Widths = (60, 1),
        compute_dtype: ComputeDtype = "float32",
        dropout: Dropout = 0.0,
        batch_norm: bool = False,
        *,
        rngs: nnx.Rngs,
    ):
        check_top(top)
        bottom = bottom if dense_features else ()
        dim = (dense_features, *bottom)[-1]
        length = _history_length(embedding_shapes, history, dim)
        self.shapes = tuple(sorted(embedding_shapes.items()))
        # For the candidate's features, the sequences of their past, if they have any.
        past = {candidate: name for name, candidate in history.items()}
        pooled = {n: s for n, s in self.shapes if n not in history}
        self.fields = tuple((name, past.get(name)) for name, _ in pooled_dims(pooled))
        shared = {"compute_dtype": compute_dtype, "rngs": rngs}
        mlp = {**shared, "dropout": dropout, "batch_norm": batch_norm}
        self.bottom = MLP(dense_features, bottom, last_relu=True, **mlp)
        vectors = len(pooled) + (dense_features > 0)
        if vectors < 2:
            raise ValueError(
                f"feature {self.fields[0][0]!r} is alone in an event, and there are no "
                "dense features: the dot interaction needs a second feature to pair it "
                "with"
            )
        pairs = vectors * (vectors - 1) // 2
        self.event = MLP(dim + pairs, event, last_relu=True, **mlp)
        width = (dim + pairs, *event)[-1]
        self.similarity = nnx.Param(xavier_normal(rngs.params(), (width, width)))
        self.attention = MLP(length, (*attention, length), last_relu=False, **mlp)
        self.top = MLP(2 * width, top, last_relu=False, **mlp)
        self.length = length
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(
        self, dense: jax.Array, embeddings: Mapping[str, jax.Array]
    ) -> jax.Array:
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

    def _event_vectors(
        self, dense: jax.Array, embeddings: Mapping[str, jax.Array]
    ) -> jax.Array:
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
        squared = jnp.sum(vectors**2, axis=1, keepdims=True)
        unit = vectors * jax.lax.rsqrt(jnp.maximum(squared, _LEAST_SQUARED_NORM))
        return unit.reshape(dense.shape[0], events, -1)

    def _is_event(self, valid: Mapping[str, jax.Array]) -> jax.Array:
        """Returns ``[batch, length]`` bool: where some sequence has an event."""
        sequences = [valid[past] for _, past in self.fields if past]
        return jnp.any(jnp.stack(sequences), axis=0)


def _history_length(
    embedding_shapes: Mapping[str, tuple[int, ...]],
    history: Mapping[str, str],
    dim: int,
) -> int:
    """Returns the length of the sequences that ``history`` names.

    Args:
      embedding_shapes: each feature's embedding shape per sample.
      history: for each sequence feature the pooled feature whose past values it holds.
      dim: the dim that all features must have; 0 takes that of the first.

    Raises:
      ValueError: unless each sequence feature is in ``history`` with its own pooled
        feature, all sequences are equally long, and all dims are ``dim``.
    """
    sequences = {n: shape for n, shape in embedding_shapes.items() if len(shape) == 2}
    if not history:
        raise ValueError("history names no sequence feature, must name at least one")
    candidates = list(history.values())
    length = max((shape[0] for shape in sequences.values()), default=0)
    problems, origin = [], "the last of bottom"
    if not dim:
        first = min(embedding_shapes)
        dim, origin = embedding_shapes[first][-1], f"as {first!r} has"
    for name, shape in sorted(embedding_shapes.items()):
        if name in sequences and name not in history:
            problems.append(f"feature {name!r} is a sequence, must be in history")
        if name in sequences and shape[0] != length:
            problems.append(
                f"feature {name!r} has hotness {shape[0]}, must be {length}, as the "
                "longest sequence has"
            )
        if shape[-1] != dim:
            problems.append(
                f"feature {name!r} has dim {shape[-1]}, must be {dim}, {origin}: the "
                "dot interaction pairs them"
            )
    for name, candidate in history.items():
        if name not in sequences:
            problems.append(
                f"history has {name!r}, must be a feature with pooling none"
            )
        if candidate not in embedding_shapes or candidate in sequences:
            problems.append(
                f"history.{name} is {candidate!r}, must be a feature that is pooled"
            )
        elif candidates.count(candidate) > 1:
            problems.append(
                f"history.{name} is {candidate!r}, must not belong to another sequence"
            )
    if problems:
        raise ValueError("; ".join(problems))
    return length
