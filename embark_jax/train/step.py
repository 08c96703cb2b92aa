"""The train step: forward, backward, exchange and all updates in one XLA program."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.embedding.batch_ids import DeviceBatch
from embark_jax.embedding.collection import (
    BATCH,
    EmbeddingCollection,
    Routes,
    Storages,
)
from embark_jax.embedding.lookups import Lookups
from embark_jax.embedding.rules import step_factors
from embark_jax.plans.plan import MESH_AXES
from embark_jax.plans.traffic import COMBINED_BYTES
from embark_jax.train.cuts import Cuts, check_cuts
from embark_jax.train.gradients import DEFAULT, StepOptions, batch_gradients
from embark_jax.train.state import Optimizers, TrainState, update_shardings
from embark_jax.train.step_model import (
    CALL,
    StepModel,
    check_independent,
    check_logits,
    model_inputs,
)

MATMUL_PRECISION = "highest"
"""Precision of products of float32 operands. By default XLA lets newer GPUs round them
to the 10 bits of TF32, and losses of meshes would differ by more than 1e-4. Models that
want speed ask for bfloat16, or for another precision in a product of their own."""

LARGEST_GRADIENT = 1e9
"""Largest gradient by an embedding, times a weight, that a step applies. The sum of 1e8
of them, for one row, is 1e17, and its square, 1e34, float32 holds even after thousands
of steps: so no rule of ours makes a row or a state of float32 infinite, and these need
no look of their own."""
ARRAYS_A_CHECK = 12
"""Arrays in one check. XLA fuses it with their updates, each of which has up to four
operands, and fuses up to 96 operands."""
Refused = Literal["bad ids", "overflow", "not finite"]
"""Why a step changed nothing: an id is no row of its table, the batch needs more
capacity than there was, or its loss or an update is not finite."""
REFUSED: tuple[Refused | None, ...] = (None, *get_args(Refused))
"""What the first of a report's numbers means."""


class StepReport(NamedTuple):
    """The results of a step besides the new state, on the devices.

    Attributes:
      numbers: ``[2 + capacities]`` int32, as ``_join_numbers`` makes them.
      bad_ids: ``[devices, features]`` number of ids that are no row of their table, as
        in ``Routes``.
      logits: ``[batch]`` or ``[batch, tasks]`` logits before the update, sharded.
      labels: labels, shaped like the logits, sharded.
      weights: ``[batch]`` weights of the samples, sharded, if they have some.
    """

    numbers: jax.Array
    bad_ids: jax.Array
    logits: jax.Array
    labels: jax.Array
    weights: jax.Array | None = None


class TrainStep(Protocol):
    """A jitted train step, which donates its state."""

    def __call__(
        self,
        state: TrainState,
        batch: DeviceBatch,
        routes: Routes,
        following: DeviceBatch | None,
    ) -> tuple[TrainState, StepReport, Routes | None]: ...

    def lower(self, *args: Any) -> jax.stages.Lowered: ...


class ScoreStep(Protocol):
    """A jitted evaluation of a batch."""

    def __call__(
        self,
        params: Any,
        model_state: Any,
        storages: Storages,
        batch: DeviceBatch,
        routes: Routes,
    ) -> StepReport: ...


def make_train_step(
    model: StepModel,
    collection: EmbeddingCollection,
    optimizers: Optimizers,
    state: TrainState,
    options: StepOptions = DEFAULT,
) -> TrainStep:
    """Makes the train step.

    ``routes`` are those of the batch, as ``collection.route_batch`` makes them.
    ``following`` is the batch after it, whose routes the step makes beside the dense
    layers and returns; None makes none, which is for cached tables, whose routes are
    made outside. Batches of hot rows alone take a program of their own, compiled when
    the first comes.

    A step is applied as a whole or not at all. It is refused if the batch overflows a
    capacity (ids would be missing) or has an id that is no row of its table, if the
    loss or an update is not finite, and while the state is halted.

    Args:
      model: model of the dense layers.
      collection: the embedding tables.
      optimizers: optimizers of dense parameters and rows.
      state: result of ``init_state`` or ``abstract_state``.
      options: how the step works.

    Raises:
      ValueError: if dense gradients cannot travel in their format, since the loss of a
        sample may depend on other samples; or the batch cannot be cut.
    """
    if options.dense != "tensor":  # where columns lie on several devices
        collection = collection.with_values_beside(model.beside)
    updated = update_shardings(options.dense, state.params, collection.mesh)
    check_cuts(collection.plan, options.micro_batches)
    if options.by_device:
        check_independent(model, f"dense_wire is {options.dense_wire!r}")

    def train_step(
        state: TrainState,
        batch: DeviceBatch,
        routes: Routes,
        following: DeviceBatch | None,
    ) -> tuple[TrainState, StepReport, Routes | None]:
        tables = collection.for_batch(batch.hot)
        next_routes = None
        if following is not None:
            next_routes = collection.for_batch(following.hot).route_batch(following)
        columns = batch.columns()
        with jax.default_matmul_precision(MATMUL_PRECISION):
            gradients = batch_gradients(
                model, tables, options, state, routes, columns, batch.cuts, updated
            )
        dense_gradient, params = lax.with_sharding_constraint(
            (gradients.dense, state.params), (updated, updated)
        )
        dense_gradient, late_gradients, next_routes = _row_gradients_last(
            collection.mesh, dense_gradient, gradients.embeddings, next_routes
        )
        with jax.named_scope("dense_update"):
            updates, dense_state = optimizers.dense.update(
                dense_gradient, state.dense_state, params
            )
            params = optax.apply_updates(params, updates)

        # Rows wait for the check of the dense update, so that a batch is applied as a
        # whole: a dense gradient may be NaN where all of the embeddings' are finite.
        # Without the wait, old rows would have to be kept until then, to be put back;
        # on 8 and 128 simulated H100s that would save 0 to 0.8 % of a step (DLRM-DCNv2,
        # T180, T200), and cost another pass over the touched rows.
        step = state.step + 1
        with jax.named_scope("checks"):
            finite = _rows_stay_finite(tables, gradients.embeddings, routes, options)
            factors = step_factors(optimizers.rows, step)
            others = dense_state, gradients.model_state, gradients.loss, factors
            finite &= _all_finite(params, others, alike=options.dense != "tensor")
            finite &= ~state.halted
        fits = tables.fits(routes)
        storages, embedding_state, applied = tables.update(
            state.storages,
            state.embedding_state,
            routes,
            gradients.embeddings,
            optimizers.rows,
            step,
            fits & ~routes.any_bad & finite,
            late_gradients,
        )

        def choose(new, old):
            return jnp.where(applied, new, old)

        new_state = TrainState(
            step=choose(step, state.step),
            halted=~applied,
            params=jax.tree.map(choose, params, state.params),
            dense_state=jax.tree.map(choose, dense_state, state.dense_state),
            model_state=jax.tree.map(choose, gradients.model_state, state.model_state),
            storages=storages,
            embedding_state=embedding_state,
        )
        report = StepReport(
            _join_numbers(routes, tables.needed(routes), fits, applied, gradients.loss),
            routes.bad_ids,
            *_in_order(
                collection,
                batch,
                (gradients.logits, columns.labels, columns.sample_weights),
            ),
        )
        return new_state, report, next_routes

    state_shardings = jax.tree.map(lambda array: array.sharding, state)
    return jax.jit(
        train_step,
        out_shardings=(state_shardings, _report_shardings(collection.mesh), None),
        donate_argnums=0,
        compiler_options=_compiler_options(collection.mesh),
    )


def _row_gradients_last(
    mesh: Mesh, dense_gradient: Any, embeddings: Lookups, next_routes: Routes | None
) -> tuple[Any, Lookups, Routes | None]:
    """Returns the same in the order in which they use the links: ids of the next batch
    and sums over all devices come first, row gradients last.

    So ids travel beside the dense layers, and the dense update, for which the rows'
    must wait, runs while their gradients travel. Where there are no links, gradients
    that wait would only be written once more."""
    given = dense_gradient, embeddings, next_routes
    return lax.optimization_barrier(given) if mesh.size > 1 else given


def _report_shardings(mesh: Mesh) -> StepReport:
    by_batch: Any = NamedSharding(mesh, BATCH)
    everywhere: Any = NamedSharding(mesh, PartitionSpec())
    return StepReport(everywhere, *[by_batch] * 4)


def _compiler_options(mesh: Mesh) -> dict[str, int] | None:
    """Returns options of XLA that only GPUs have."""
    if mesh.devices.flat[0].platform != "gpu":
        return None
    return {"xla_gpu_all_reduce_combine_threshold_bytes": COMBINED_BYTES}


def make_score_step(
    model: StepModel,
    collection: EmbeddingCollection,
    micro_batches: int = 1,
    method: str = CALL,
) -> ScoreStep:
    """Makes the evaluation of a batch.

    The report has no loss. With another ``method`` of the model the logits are its
    results."""

    collection = collection.with_values_beside(model.beside)

    def score_step(params, model_state, storages, batch, routes):

        def logits_of(embeddings, columns):
            inputs = model_inputs(
                model, collection, embeddings, columns, collection.mesh
            )
            embeddings, columns = inputs
            with jax.default_matmul_precision(MATMUL_PRECISION):
                return model.score(
                    params, model_state, columns.dense, embeddings, method
                )

        columns = batch.columns()
        embeddings = collection.lookup(storages, routes, model.embedding_dtype)
        if micro_batches == 1:
            logits = logits_of(embeddings, columns)
        else:
            cuts = Cuts(collection, micro_batches, columns, batch.cuts)

            def of_cut(numbered):
                return logits_of(*cuts.of(embeddings, *numbered))

            logits = cuts.joined(lax.map(of_cut, cuts.numbered()))
        logits, labels = _in_order(collection, batch, (logits, columns.labels))
        if method == CALL:
            check_logits(logits, labels)
        numbers = _join_numbers(
            routes,
            collection.needed(routes),
            collection.fits(routes),
            jnp.array(True),
            jnp.zeros(()),
        )
        return StepReport(numbers, routes.bad_ids, logits, labels)

    return jax.jit(score_step)


def _in_order(collection: EmbeddingCollection, batch: DeviceBatch, arrays: Any) -> Any:
    """Returns arrays of samples in the order that these had before they were dealt."""
    if batch.place is None:
        return arrays

    def order(place, arrays):
        return jax.tree.map(lambda array: array[place], arrays)

    return collection.map(order, BATCH, BATCH)(batch.place, arrays)


def _join_numbers(
    routes: Routes,
    needed: Mapping[str, jax.Array],
    fits: jax.Array,
    applied: jax.Array,
    loss: jax.Array,
) -> jax.Array:
    """Joins the numbers of a step into one array, which the host asks for once.

    Args:
      routes: routes of the batch.
      needed, fits: what the collection says of them.
      applied: ``[]`` bool: whether the step was; where no other reason says why it was
        not, loss or update are not finite.
      loss: ``[]`` float32 mean loss of the batch.
    """
    reasons = jnp.stack([routes.any_bad, ~fits, ~applied])
    refused = jnp.where(reasons.any(), 1 + jnp.argmax(reasons), 0)
    numbers = [
        refused.astype(jnp.int32),
        lax.bitcast_convert_type(loss.astype(jnp.float32), jnp.int32),
        *(count.astype(jnp.int32) for count in needed.values()),
    ]
    return jnp.stack(numbers)


def _rows_stay_finite(
    collection: EmbeddingCollection,
    gradients: Lookups,
    routes: Routes,
    options: StepOptions,
) -> jax.Array:
    """Returns whether no gradient by an embedding, times a weight of its bag, is beyond
    ``LARGEST_GRADIENT``, or NaN.

    The devices tell each other by a sum in the format of the dense gradients', with
    which XLA combines it: a collective of its own would cost its latency.
    """

    def count_others(gradients, routes):
        terms = collection.largest_terms(gradients, routes)
        others = ~jnp.stack([(term <= LARGEST_GRADIENT).all() for term in terms]).all()
        return lax.psum(others.astype(options.dense_wire), MESH_AXES)

    specs = BATCH, collection.route_specs
    return collection.map(count_others, specs, PartitionSpec())(gradients, routes) == 0


def _all_finite(params: Any, others: Any, alike: bool) -> jax.Array:
    """Returns whether all floating-point numbers are; a random key, say, has none.

    A look is two kernels on a GPU, so arrays of one shape are looked at together if
    they lie alike on the devices. Of matrices these are a parameter and what its
    optimizer keeps of it: a look at several parameters would hold until then what all
    their gradients are made of, 2 GB in DLRM-DCNv2 with 65,536 samples on one H200.
    """
    parameters_of = Counter(leaf.shape for leaf in jax.tree.leaves(params))
    finite = defaultdict(list)
    before = Counter[tuple[int, ...]]()
    for number, leaf in enumerate(jax.tree.leaves((params, others))):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        look = number
        if alike:
            same = max(1, parameters_of[leaf.shape]) if leaf.ndim > 1 else 1
            look = before[leaf.shape] % same
        before[leaf.shape] += 1
        finite[leaf.shape, look].append(jnp.isfinite(leaf))
    together = (
        functools.reduce(jnp.logical_and, same[first : first + ARRAYS_A_CHECK])
        for same in finite.values()
        for first in range(0, len(same), ARRAYS_A_CHECK)
    )
    return jnp.stack([each.all() for each in together]).all()
