"""A model as a step takes it: arrays, and functions of them.

The optimizer changes parameters. The *model state* of a Flax NNX module is every other
variable: running statistics of BatchNorm, keys and counts of random streams, a user's
own variables. A step takes both and gives both; neither is a constant of the program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from embark_kernels.packing import unpack
from flax import nnx
from jax.sharding import Mesh

from embark_jax._base.errors import UserError
from embark_jax.data.layout import BatchColumns
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.lookups import Lookups
from embark_jax.models.function import FunctionModel, Model, ModelWithLoss
from embark_jax.models.interface import (
    Joined,
    JoinedModel,
    Masked,
    MaskedModel,
    Packed,
    PackedModel,
    on_devices,
    pooled_dims,
    unmasked,
)
from embark_jax.plans.tables import PADDING_ID
from embark_jax.train.losses import Loss

CALL = "__call__"


class ModelError(UserError, ValueError):
    """A model, or its loss, does not return what it must."""


class FlaxModel:
    """A module taken apart into parameters, model state, and functions of the two.

    The module itself does not change.

    Args:
      module: module called as ``module(dense, embeddings) -> logits [batch]``.

    Attributes:
      params: the module's ``nnx.Param`` variables, which the optimizer changes.
      state: the module's other variables.
      independent_samples: whether the loss of a sample is a function of this sample
        and the parameters alone, as far as the model says; its state is not asked.
      masked: whether embeddings of sequences are ``models.Masked``.
      packed: whether they are ``models.Packed``.
      joined: whether they are ``models.Joined`` where they can be.
      embedding_dtype: dtype of pooled embeddings.
      beside: width of the values that the module puts before them.
    """

    def __init__(self, module: nnx.Module):
        graph, *arrays = nnx.split(module, nnx.Param, ...)
        self.params, self.state = arrays
        self.independent_samples = (
            not isinstance(module, ModelWithLoss) or module.independent_samples
        )
        self.masked = isinstance(module, MaskedModel)
        self.packed = isinstance(module, PackedModel)
        self.joined = isinstance(module, JoinedModel)
        self.embedding_dtype, self.beside = jnp.dtype(jnp.float32), 0
        if isinstance(module, JoinedModel):
            self.embedding_dtype, self.beside = module.compute_dtype, module.beside
        # Two modules around the same arrays: modes are attributes, not arrays.
        training, scoring = (nnx.merge(graph, *arrays) for _ in range(2))
        training.train()
        scoring.eval()
        self._training = nnx.graphdef(training)
        self._scoring = nnx.graphdef(scoring)

    def train(
        self, params: Any, state: Any, embeddings: Any, batch: BatchColumns, loss: Loss
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Returns ``(losses, logits, new state)`` in training mode; losses are
        ``[batch]``, or their mean ``[]``, and logits have the shape of the labels.

        Args:
          params, state: arrays of the module.
          embeddings: embeddings as the module takes them.
          batch: the samples.
          loss: loss of modules without one of their own.

        Raises:
          ModelError: if the logits do not have the shape of the labels, or the call
            adds or removes variables.
        """
        # Copied, as what it changes must be variables of the innermost trace.
        module = nnx.merge(self._training, params, state, copy=True)
        if isinstance(module, ModelWithLoss):
            losses, logits = module.loss(embeddings, batch)
            check_logits(logits, batch.labels)
        else:
            logits = _logits(module, batch.dense, embeddings)
            check_logits(logits, batch.labels)
            losses = loss(logits, batch.labels, unmasked(embeddings)[0])
        nnx.pop(module, nnx.Intermediate)  # of ``sow``: for looking at, not to keep
        after = nnx.state(module, nnx.Not(nnx.Param))
        if jax.tree.structure(after) != jax.tree.structure(state):
            raise ModelError(
                f"a call of {type(module).__name__} changes which variables it has, "
                "must create them all in __init__"
            )
        return losses, logits, after

    def score(
        self,
        params: Any,
        state: Any,
        dense: jax.Array,
        embeddings: Any,
        method: str = CALL,
    ) -> jax.Array:
        """Returns logits in evaluation mode: no dropout, running statistics; or the
        result of another ``method`` of the module, called alike."""
        module = nnx.merge(self._scoring, params, state, copy=True)
        if method != CALL:
            return getattr(module, method)(dense, embeddings)
        return _logits(module, dense, embeddings)

    def module(self, params: Any, state: Any) -> nnx.Module:
        """Returns a new module in evaluation mode, with copies of these arrays."""
        arrays = jax.tree.map(jnp.copy, (params, state))
        return nnx.merge(self._scoring, *arrays)


class PlainModel:
    """A ``FunctionModel`` with the attributes and methods of ``FlaxModel``."""

    state: Any = ()
    masked = packed = joined = False
    embedding_dtype, beside = jnp.dtype(jnp.float32), 0

    def __init__(self, model: FunctionModel):
        self._model = model
        self.params = model.params
        self.independent_samples = model.loss is None or model.independent_samples

    def train(self, params, state, embeddings, batch, loss):
        if self._model.loss is None:
            logits = self.score(params, state, batch.dense, embeddings)
            check_logits(logits, batch.labels)
            return loss(logits, batch.labels, embeddings), logits, state
        losses, logits = self._model.loss(params, embeddings, batch)
        return losses, check_logits(logits, batch.labels), state

    def score(self, params, state, dense, embeddings, method=CALL):
        if method != CALL:
            raise ValueError(f"method is {method!r}: a model of functions has none")
        return self._model.apply(params, dense, embeddings)

    def module(self, params, state):
        return dataclasses.replace(self._model, params=jax.tree.map(jnp.copy, params))


StepModel = FlaxModel | PlainModel
"""A model as a step takes it."""


def step_model(model: Model) -> StepModel:
    """Returns the model as a step takes it."""
    return PlainModel(model) if isinstance(model, FunctionModel) else FlaxModel(model)


def model_inputs(
    model: StepModel,
    collection: EmbeddingCollection,
    lookups: Lookups,
    batch: BatchColumns,
    mesh: Mesh | None,
) -> tuple[dict[str, Any] | Joined, BatchColumns]:
    """Returns embeddings and a batch as a model takes them. Sequences stay packed for
    those that read packed ones; others get padded ones, with ids and weights, and with
    a mask if they ask for it. Models that take one array get it, if there is one.

    Args:
      model: the model.
      collection: the embedding tables.
      lookups: embeddings of the samples.
      batch: the samples; sequences are packed.
      mesh: mesh of the devices that the samples lie on; None is this one.
    """
    if model.joined and not lookups.sequences:
        dims = pooled_dims(collection.output_shapes)
        return Joined(lookups.pooled, dims, collection.width_beside), batch
    embeddings: dict[str, Any] = collection.by_feature(lookups)
    longest = {f.name: f.hotness for f in collection.plan.features}
    sequences = {name: embeddings[name] for name in batch.spans}
    if model.packed:
        for name, rows in sequences.items():
            spans = batch.spans[name]
            embeddings[name] = Packed(
                rows,
                batch.ids[name],
                *spans,
                longest=longest[name],
                mesh=mesh,
                implementation=collection.implementation,
            )
        return embeddings, batch

    def padded(columns):
        def pad(columns, spans):
            return {n: unpack(x, longest[n], *spans[n]) for n, x in columns.items()}

        own = {n: x for n, x in columns.items() if n in batch.spans}
        spans = {n: batch.spans[n] for n in own}
        return {**columns, **on_devices(mesh, pad)(own, spans)}

    batch = batch._replace(ids=padded(batch.ids), weights=padded(batch.weights))
    embeddings = padded(embeddings)
    for name in sequences if model.masked else ():
        ids = batch.ids[name]
        with jax.enable_x64(ids.dtype.itemsize == 8):
            embeddings[name] = Masked(embeddings[name], ids != PADDING_ID)
    return embeddings, batch


def check_independent(model: StepModel, reason: str) -> None:
    """Checks that devices may each compute the losses of their own samples.

    Args:
      model: model of the dense layers.
      reason: words that say why they do.

    Raises:
      ValueError: if the loss of a sample may depend on other samples.
    """
    arrays = len(jax.tree.leaves(model.state))
    if arrays:
        raise ValueError(
            f"{reason}, but the model has {arrays} arrays that are no parameters, must "
            "have none, such as statistics and random keys: each device would change "
            "its own"
        )
    if not model.independent_samples:
        raise ValueError(
            f"{reason}, but the model has its own loss, which may compare samples: set "
            "its independent_samples to True if it does not"
        )


def _logits(module: nnx.Module, dense: jax.Array, embeddings: Any) -> jax.Array:
    """Calls the module; its own errors get a note with the arguments of the call."""
    try:
        return module(dense, embeddings)
    except (TypeError, ValueError) as error:
        shapes = jax.tree.map(jnp.shape, unmasked(embeddings)[0])
        shapes = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        error.add_note(
            f"in {type(module).__name__}, called with dense values {dense.shape} and "
            f"embeddings {shapes}"
        )
        raise


def check_logits(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the logits, if there is one per label; else raises ``ModelError``."""
    if logits.shape != labels.shape:
        raise ModelError(
            f"the model returns logits of shape {logits.shape}, must be "
            f"{labels.shape}: one for each label"
        )
    return logits
