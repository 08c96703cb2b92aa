"""The train step: forward, backward, exchange and all updates in one XLA program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.embedding.collection import MICRO_BATCHES, EmbeddingCollection
from embark_jax.embedding.rules import AnyRule
from embark_jax.plans.options import DenseParallelism
from embark_jax.train.dense_parallelism import sample_sharding, update_shardings
from embark_jax.train.device_batch import check_batch
from embark_jax.train.flax_model import CALL, check_logits
from embark_jax.train.function_model import StepModel
from embark_jax.train.gradients import gradients, route
from embark_jax.train.losses import LOG_LOSS, Loss
from embark_jax.train.report import StepReport, join_numbers
from embark_jax.train.state import TrainState

MATMUL_PRECISION = "highest"
"""Precision of products of float32 operands. By default XLA lets newer GPUs round them
to the 10 bits of TF32, and losses of meshes would differ by more than 1e-4. Models that
want speed ask for bfloat16, or for another precision in a product of their own."""


def make_train_step(
    model: StepModel,
    collection: EmbeddingCollection,
    dense_optimizer: optax.GradientTransformation,
    embedding_optimizer: AnyRule,
    state: TrainState,
    micro_batches: int = 1,
    dense: DenseParallelism = "replicated",
    next_collection: EmbeddingCollection | None = None,
    loss: Loss = LOG_LOSS,
    routed: bool = False,
) -> Callable:
    """Makes a jitted step ``(state, batch) -> (state, report)``; it donates its state.

    A step is applied as a whole or not at all. It is refused if the batch overflows a
    capacity (ids would be missing) or has an id that is no row of its table, if the
    loss or an update is not finite, and while the state is halted.

    Args:
      model: model of the dense layers.
      collection: the embedding tables.
      dense_optimizer: optax optimizer of the dense parameters.
      embedding_optimizer: the rule for touched rows.
      state: result of ``init_state`` or ``abstract_state``.
      micro_batches: parts of a batch that go through the model one after the other;
        the collection's plan is for one of them.
      dense: how the dense model lies on the devices, as in ``state``.
      next_collection: if given, the step is ``(state, batch, routes, following) ->
        (state, report, routes of following)``: this collection makes the routes of the
        batch after this one. The given routes are donated, too.
      loss: loss of a sample, for models that have none of their own. Minimized is the
        mean over the batch, of losses times sample weights, if there are any.
      routed: makes the step ``(state, batch, routes) -> (state, report)``.

    Raises:
      ValueError: if ``micro_batches`` is below 1.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches is {micro_batches}, must be at least 1")
    updated = update_shardings(dense, state.params, collection.mesh)
    by_sample = sample_sharding(dense, collection.mesh)
    capacities = collection.capacities

    @jax.named_scope("dense")
    def losses_of(params, model_state, embeddings, batch):
        given = embeddings, batch.dense, batch.labels, batch.sample_weights
        embeddings, dense, labels, weights = lax.with_sharding_constraint(
            given, by_sample
        )
        batch = batch._replace(dense=dense, labels=labels, sample_weights=weights)
        losses, logits, model_state = model.train(
            params, model_state, embeddings, batch, loss
        )
        if weights is not None and losses.ndim == 1:
            losses = losses * weights
        return losses, lax.with_sharding_constraint(logits, by_sample), model_state

    def apply_batch(state, batch, routes):
        with jax.default_matmul_precision(MATMUL_PRECISION):
            found = gradients(
                losses_of,
                collection,
                state.params,
                state.model_state,
                state.storages,
                routes,
                batch,
                micro_batches,
            )
        gradient, params = lax.with_sharding_constraint(
            (found.dense, state.params), (updated, updated)
        )
        with jax.named_scope("dense_update"):
            updates, dense_state = dense_optimizer.update(
                gradient, state.dense_state, params
            )
            params = optax.apply_updates(params, updates)

        # Rows wait for the check of the dense update, so that a batch is applied as a
        # whole: a dense gradient may be NaN where all of the embeddings' are finite.
        # Without the wait, old rows would have to be kept until then, to be put back;
        # on 8 and 128 simulated H100s that would save 0 to 0.8 % of a step (DLRM-DCNv2,
        # T180, T200), and cost another pass over the touched rows.
        # Optimizers of rows accumulate squares.
        with jax.named_scope("checks"):
            squares = jax.tree.map(jnp.square, found.embeddings)
            finite = _all_finite(
                (found.loss, squares, params, dense_state, found.model_state)
            )
        any_bad = routes.any_bad.any()  # of any micro-batch
        applied = collection.fits(routes) & ~any_bad & finite & ~state.halted

        def choose(new, old):
            return jnp.where(applied, new, old)

        step = state.step + 1
        storages, embedding_state = collection.update(
            state.storages,
            state.embedding_state,
            routes,
            found.embeddings,
            embedding_optimizer,
            step,
            applied,
            micro_batches,
        )
        new_state = TrainState(
            step=choose(step, state.step),
            halted=~applied,
            params=jax.tree.map(choose, params, state.params),
            dense_state=jax.tree.map(choose, dense_state, state.dense_state),
            model_state=jax.tree.map(choose, found.model_state, state.model_state),
            storages=storages,
            embedding_state=embedding_state,
        )
        numbers = join_numbers(
            applied, any_bad, found.loss, collection.needed(routes), capacities
        )
        return new_state, StepReport(
            numbers, routes.bad_ids, found.logits, batch.labels
        )

    def train_step(state, batch):
        check_batch(collection.plan, batch, micro_batches)
        batch = batch.columns()
        routes = route(collection, batch, micro_batches)
        # As opaque as routes made a step ahead, so that both ways compile to the same
        # arithmetic.
        return apply_batch(state, batch, lax.optimization_barrier(routes))

    def routed_step(state, batch, routes):
        check_batch(collection.plan, batch, micro_batches)
        return apply_batch(state, batch.columns(), routes)

    def overlapped_step(state, batch, routes, following):
        check_batch(collection.plan, batch, micro_batches)
        state, report = apply_batch(state, batch.columns(), routes)
        assert next_collection is not None
        routes = route(next_collection, following.columns(), micro_batches)
        return state, report, routes

    by_batch = NamedSharding(collection.mesh, PartitionSpec(collection.mesh.axis_names))
    replicated = NamedSharding(collection.mesh, PartitionSpec())
    by_micro_batch = NamedSharding(collection.mesh, MICRO_BATCHES)
    bad_ids = by_batch if micro_batches == 1 else by_micro_batch
    report = StepReport._make([replicated, bad_ids, by_batch, by_batch])
    out_shardings = jax.tree.map(lambda each: each.sharding, state), report
    if next_collection is not None:
        # Routes of hot batches and of others do not fit into each other's place.
        alike = next_collection.hot_only == collection.hot_only
        return jax.jit(
            overlapped_step,
            out_shardings=(*out_shardings, None),
            donate_argnums=(0, 2) if alike else 0,
        )
    step = routed_step if routed else train_step
    return jax.jit(step, out_shardings=out_shardings, donate_argnums=0)


def _all_finite(arrays: Any) -> jax.Array:
    """Whether all floating-point numbers are; a random key, say, has none."""
    found = [
        jnp.isfinite(leaf).all()
        for leaf in jax.tree.leaves(arrays)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return jnp.all(jnp.stack(found))


def make_predict_step(
    model: StepModel,
    collection: EmbeddingCollection,
    routed: bool = False,
    method: str = CALL,
) -> Callable:
    """Makes a jitted ``(params, model_state, storages, batch) -> report``; its numbers
    have no loss, and ``applied`` says whether the logits are good. If ``routed``, it
    takes routes, too. With another ``method`` of the model the logits are its
    results."""
    capacities = collection.capacities

    def predict(params, model_state, storages, batch):
        check_batch(collection.plan, batch, micro_batches=1)
        columns = batch.columns()
        routes = collection.route(columns.ids, columns.weights)
        return score(params, model_state, storages, batch, routes)

    def score(params, model_state, storages, batch, routes):
        batch = batch.columns()
        embeddings = collection.lookup(storages, routes)
        with jax.default_matmul_precision(MATMUL_PRECISION):
            inputs = batch.dense, embeddings
            logits = model.score(params, model_state, *inputs, method)
        if method == CALL:
            check_logits(logits, batch.labels)
        any_bad = routes.any_bad
        fine = collection.fits(routes) & ~any_bad
        needed, no_loss = collection.needed(routes), jnp.zeros(())
        numbers = join_numbers(fine, any_bad, no_loss, needed, capacities)
        return StepReport(numbers, routes.bad_ids, logits, batch.labels)

    return jax.jit(score if routed else predict)
