"""Forward and backward: the gradients of a batch.

By default the program is one of whole arrays, and XLA sums the gradients of dense
parameters over the devices, in float32. To send them in fewer bits, each device
computes the gradients of its own samples, and these are rounded just before they are
summed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from embark_jax.data.layout import BatchColumns
from embark_jax.embedding.collection import (
    BATCH,
    EmbeddingCollection,
    Routes,
)
from embark_jax.embedding.exchange import own_share_alone
from embark_jax.embedding.lookups import Lookups
from embark_jax.plans.options import DenseParallelism, WireFormat
from embark_jax.plans.plan import MESH_AXES
from embark_jax.train.cuts import Cuts
from embark_jax.train.losses import LOG_LOSS, Loss
from embark_jax.train.state import TrainState, sample_sharding
from embark_jax.train.step_model import (
    ModelError,
    StepModel,
    model_inputs,
)

LossShare = Callable[..., tuple[jax.Array, tuple[jax.Array, Any]]]
"""``(params, embeddings, model_state, batch) -> (loss, (logits, model_state))``; the
loss is what these samples add to the mean over the batch."""


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """How a step works.

    Attributes:
      micro_batches: number of equal cuts of the batch that go through the model one
        after the other, so that activations of one alone are in memory; embeddings are
        looked up and updated for the whole batch.
      dense: how the dense model lies on the devices.
      loss: loss of a sample, for models that have none of their own. Minimized is the
        mean over the batch, of losses times sample weights, if there are any.
      dense_wire: format in which gradients of dense parameters travel. In bfloat16 each
        device rounds the gradient of its samples, summed over micro-batches, and the
        devices' gradients are summed once a step, as DistributedDataParallel of PyTorch
        does by its ``bf16_compress_hook``. GPUs round every sum to bfloat16, too; XLA
        on CPU sums in float32, and rounds the result. Updates are float32.

    Raises:
      ValueError: if ``micro_batches`` is below 1, or ``dense_wire`` is unknown or not
        possible with ``dense``.
    """

    micro_batches: int = 1
    dense: DenseParallelism = "replicated"
    loss: Loss = LOG_LOSS
    dense_wire: WireFormat = "float32"

    def __post_init__(self):
        if self.micro_batches < 1:
            raise ValueError(
                f"micro_batches is {self.micro_batches}, must be at least 1"
            )
        if self.dense_wire not in get_args(WireFormat):
            formats = ", ".join(get_args(WireFormat))
            raise ValueError(f"dense_wire is {self.dense_wire!r}, must be of {formats}")
        if self.dense == "tensor" and self.by_device:
            raise ValueError(
                f"dense_wire is {self.dense_wire!r}, must be 'float32' where dense is "
                "'tensor': devices that share a layer send more than gradients"
            )

    @property
    def by_device(self) -> bool:
        """Whether each device computes the gradients of its own samples."""
        return self.dense_wire != "float32"


DEFAULT = StepOptions()


class Gradients(NamedTuple):
    """The result of backward.

    Attributes:
      loss: ``[]`` mean loss of the batch.
      logits: ``[batch]`` or ``[batch, tasks]``, in the order of the batch's samples.
      model_state: state after the batch; each micro-batch starts from that of the one
        before.
      dense: gradients of the loss by the model's parameters.
      embeddings: gradients by the arrays that ``lookup`` returned.
    """

    loss: jax.Array
    logits: jax.Array
    model_state: Any
    dense: Any
    embeddings: Lookups


def batch_gradients(
    model: StepModel,
    collection: EmbeddingCollection,
    options: StepOptions,
    state: TrainState,
    routes: Routes,
    batch: BatchColumns,
    dealt: int,
    shardings: Any,
) -> Gradients:
    """Computes gradients of the mean loss: at once, or in micro-batches one after the
    other. Losses of micro-batches are shares of the batch's mean, so their gradients
    add up to the batch's.

    Args:
      model: model of the dense layers.
      collection: the embedding tables.
      options: how the step works.
      state: state before the batch.
      routes: routes of the batch.
      batch: the samples.
      dealt: number of cuts among which samples are dealt by their events, or 1.
      shardings: result of ``state.update_shardings``.

    Raises:
      ModelError: if the loss does not have the shape that it must.
    """
    gradients_of = _gradients_of_samples(
        model, collection, options, len(batch.labels), state.params
    )
    lookups = collection.lookup(state.storages, routes, model.embedding_dtype)
    if options.micro_batches == 1:
        gradients = gradients_of(state.model_state, lookups, batch)
    else:
        cuts = Cuts(collection, options.micro_batches, batch, dealt)
        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params)
        if options.by_device:
            zeros = _zeros_by_device(collection, zeros)
        gradients = _sum_over_cuts(
            gradients_of, cuts, zeros, state.model_state, lookups
        )
    if not options.by_device:
        return gradients
    loss, dense = _sum_over_devices(
        collection, options.dense_wire, gradients.loss, gradients.dense, shardings
    )
    return gradients._replace(loss=loss, dense=dense)


def _gradients_of_samples(
    model: StepModel,
    collection: EmbeddingCollection,
    options: StepOptions,
    samples: int,
    params: Any,
) -> Callable[[Any, Lookups, BatchColumns], Gradients]:
    """Returns a function of the model state, embeddings and a batch, or a cut of it:
    the gradients of its share in the mean loss of all samples. Where devices compute
    their own, loss and dense gradients have a first axis, of devices."""
    by_sample = sample_sharding(options.dense, collection.mesh)

    def constrain(arrays):
        if options.by_device:  # which has these samples alone
            return arrays
        return lax.with_sharding_constraint(arrays, by_sample)

    share_of = _loss_share(model, collection, options, samples, constrain)
    gradients_of = (
        _gradients_by_device(share_of, collection)
        if options.by_device
        else jax.value_and_grad(share_of, argnums=(0, 1), has_aux=True)
    )

    def gradients(model_state, embeddings, batch):
        (loss, (logits, model_state)), (dense, by_embedding) = gradients_of(
            params, embeddings, model_state, batch
        )
        return Gradients(loss, logits, model_state, dense, by_embedding)

    return gradients


def _sum_over_cuts(
    gradients_of: Callable[[Any, Lookups, BatchColumns], Gradients],
    cuts: Cuts,
    zeros: Any,
    model_state: Any,
    lookups: Lookups,
) -> Gradients:
    """Adds up the gradients of the cuts of a batch, one after the other, from zeros of
    the loss and the dense gradients on."""

    def add(carried, numbered):
        sums, model_state, embeddings = carried
        number, samples = numbered
        gradients = gradients_of(model_state, *cuts.of(embeddings, number, samples))
        sums = jax.tree.map(jnp.add, sums, (gradients.loss, gradients.dense))
        # In the place of the embeddings, which no other cut reads: a result of its own
        # would take as much memory again.
        embeddings = cuts.with_gradients(embeddings, number, gradients.embeddings)
        return (sums, gradients.model_state, embeddings), gradients.logits

    ((loss, dense), model_state, embeddings), logits = lax.scan(
        add, (zeros, model_state, lookups), cuts.numbered()
    )
    return Gradients(loss, cuts.joined(logits), model_state, dense, embeddings)


def _loss_share(
    model: StepModel,
    collection: EmbeddingCollection,
    options: StepOptions,
    samples: int,
    constrain: Callable[[Any], Any],
) -> LossShare:
    """Makes the function whose gradients a step takes.

    Args:
      model: model of the dense layers.
      collection: the embedding tables.
      options: how the step works.
      samples: number of samples of the whole batch.
      constrain: shards arrays by samples.
    """

    @jax.named_scope("dense")
    def losses_of(params, model_state, embeddings, batch):
        inputs = embeddings, batch.dense, batch.labels, batch.sample_weights
        embeddings, dense, labels, weights = constrain(inputs)
        batch = batch._replace(dense=dense, labels=labels, sample_weights=weights)
        mesh = None if options.by_device else collection.mesh
        embeddings, batch = model_inputs(model, collection, embeddings, batch, mesh)
        losses, logits, model_state = model.train(
            params, model_state, embeddings, batch, options.loss
        )
        if weights is not None:
            if losses.ndim != 1:
                raise ModelError(
                    f"the loss has shape {losses.shape}, must be {labels.shape[:1]}, "
                    "one of each sample, since samples have weights"
                )
            losses = losses * weights
        return losses, constrain(logits), model_state

    def share_of(params, embeddings, model_state, batch):
        losses, logits, model_state = losses_of(params, model_state, embeddings, batch)
        if losses.ndim == 0 and options.by_device:
            raise ModelError(
                "the model's loss is the mean of a batch, must be one of each sample "
                f"where dense_wire is {options.dense_wire!r}"
            )
        # A mean is over the micro-batch, which is as large as all others.
        mean = losses.ndim == 0
        loss = losses / options.micro_batches if mean else losses.sum() / samples
        return loss, (logits, model_state)

    return share_of


def _gradients_by_device(
    share_of: LossShare, collection: EmbeddingCollection
) -> Callable:
    """Returns a function like ``value_and_grad`` of this share of the loss; losses and
    gradients by parameters are those of each device's samples, along a first axis."""

    def gradients_by_device(params, embeddings, model_state, batch):
        def of_device(params, embeddings, batch):
            gradients_of = jax.value_and_grad(share_of, argnums=(0, 1), has_aux=True)
            (loss, (logits, _)), (shares, gradients) = gradients_of(
                params, embeddings, model_state, batch
            )
            by_device = jax.tree.map(lambda share: share[None], (loss, shares))
            return by_device, logits, gradients

        inputs = PartitionSpec(), BATCH, BATCH
        (loss, shares), logits, gradients = collection.map(of_device, inputs, BATCH)(
            params, embeddings, batch
        )
        return (loss, (logits, model_state)), (shares, gradients)

    return gradients_by_device


def _zeros_by_device(collection: EmbeddingCollection, arrays: Any) -> Any:
    """Returns zeros of the shapes of the arrays for each device, along a first axis."""

    def zeros(arrays):
        return jax.tree.map(lambda array: jnp.zeros_like(array)[None], arrays)

    return collection.map(zeros, (PartitionSpec(),), BATCH)(arrays)


@jax.named_scope("dense")
def _sum_over_devices(
    collection: EmbeddingCollection,
    wire: WireFormat,
    losses: jax.Array,
    shares: Any,
    shardings: Any,
) -> tuple[jax.Array, Any]:
    """Returns the sum of ``losses [devices]``, and the float32 sums of the devices'
    gradients ``[devices, …]``, which travel in the format of the wire. Gradients of
    parameters that devices update in shares are reduce-scattered."""

    def sum_all(losses, shares):
        def sum_of(share, sharding):
            coded = share[0].astype(wire)
            axes = list(sharding.spec)
            if MESH_AXES in axes:
                total = lax.psum_scatter(
                    coded,
                    MESH_AXES,
                    scatter_dimension=axes.index(MESH_AXES),
                    tiled=True,
                )
            else:
                total = lax.psum(coded, MESH_AXES)
            return total.astype(share.dtype)

        return _exact_sum(losses[0], wire), jax.tree.map(sum_of, shares, shardings)

    specs = jax.tree.map(lambda sharding: sharding.spec, shardings)
    outputs = PartitionSpec(), specs
    return collection.map(sum_all, (BATCH, BATCH), outputs)(losses, shares)


def _exact_sum(share: jax.Array, wire: WireFormat) -> jax.Array:
    """Returns the float32 sum of the devices' float32 ``share []``. It travels in the
    format of the wire, so that XLA combines it with the gradients: in three numbers
    whose sum it is, each device's beside zeros, to which nothing is added."""
    bits = jnp.finfo(wire)
    rest = share
    terms = []
    for _ in range(3):  # of 8 bits each, to which a cast alone would not round
        term = lax.reduce_precision(rest, bits.nexp, bits.nmant)
        terms.append(term.astype(wire))
        rest = rest - term
    everywhere = lax.psum(own_share_alone(jnp.stack(terms)), MESH_AXES)
    return everywhere.astype(share.dtype).sum()
