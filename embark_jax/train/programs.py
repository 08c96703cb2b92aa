"""The programs of a trainer: its train steps and a prediction, on one state."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import optax

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.rules import AnyRule
from embark_jax.plans.options import DenseParallelism
from embark_jax.train.cached import CachedRows
from embark_jax.train.device_batch import DeviceBatch, PlacedBatch
from embark_jax.train.flax_model import CALL
from embark_jax.train.function_model import StepModel
from embark_jax.train.losses import Loss
from embark_jax.train.overlap import OverlappedStep
from embark_jax.train.report import StepReport
from embark_jax.train.state import TrainState
from embark_jax.train.step import make_predict_step, make_train_step


class Programs:
    """The programs of a trainer; each is compiled when it is first needed.

    Hot rows lie in the storages of the state and nowhere else, so that a change from
    one train step to another moves nothing.

    Args:
      model: model of the dense layers.
      embeddings: the embedding tables.
      dense_optimizer, embedding_optimizer: optimizers of the step.
      state: state that the step takes.
      micro_batches, dense, loss: as in ``make_train_step``.
      overlap: whether a step makes the routes of the batch after it.
      cached: the rows of cached tables, if there are any.
    """

    def __init__(
        self,
        model: StepModel,
        embeddings: EmbeddingCollection,
        dense_optimizer: optax.GradientTransformation,
        embedding_optimizer: AnyRule,
        state: TrainState,
        micro_batches: int,
        dense: DenseParallelism,
        overlap: bool,
        loss: Loss,
        cached: CachedRows | None,
    ):
        hot_only = embeddings.with_plan(embeddings.plan, hot_only=True)
        collections = {False: embeddings, True: hot_only}
        self._capacities = {hot: each.capacities for hot, each in collections.items()}

        def make(hot: bool, following_hot: bool | None):
            return make_train_step(
                model,
                collections[hot],
                dense_optimizer,
                embedding_optimizer,
                state,
                micro_batches,
                dense,
                None if following_hot is None else collections[following_hot],
                loss,
                cached is not None and not hot,
            )

        self._cached, self._micro_batches = cached, micro_batches
        # Rows of cached tables come by routes that are made before the step.
        self._looks_ahead = overlap and cached is not None
        self._overlapped = None
        if cached is not None:
            cached.use(embeddings)
        if overlap and cached is None:
            steps = {
                (hot, following): make(hot, following)
                for hot in collections
                for following in collections
            }
            self._overlapped = OverlappedStep(steps, collections, micro_batches)
        else:
            self._steps = {hot: make(hot, None) for hot in collections}
        self._score = functools.cache(
            functools.partial(
                make_predict_step, model, embeddings, routed=cached is not None
            )
        )

    def train(
        self,
        state: TrainState,
        batch: DeviceBatch,
        hot: bool,
        following: PlacedBatch | None,
    ) -> tuple[TrainState, StepReport]:
        """Applies a batch; the step of a hot batch exchanges nothing for its
        embeddings. With overlap, each step makes the routes of ``following``."""
        if self._cached is not None and (self._looks_ahead or not hot):
            after = following.on_devices if following else None
            state, routes = self._cached.bring(state, batch, after, self._micro_batches)
            return self._steps[False](state, batch, routes)
        if self._overlapped is not None:
            return self._overlapped(state, batch, hot, following)
        return self._steps[hot](state, batch)

    def predict(
        self, state: TrainState, placed: PlacedBatch, method: str = CALL
    ) -> tuple[TrainState, StepReport]:
        """Scores a batch, by a method of the model; no row changes its slot."""
        score, batch = self._score(method=method), placed.on_devices
        dense = state.params, state.model_state
        if self._cached is None:
            return state, score(*dense, state.storages, batch)
        state, routes, give_back = self._cached.lend(state, batch, placed.unseen)
        report = score(*dense, state.storages, batch, routes)
        return give_back(state), report

    def capacities(self, hot: bool) -> Mapping[str, int]:
        """Returns the capacities of the step that ``train`` takes for such a batch."""
        return self._capacities[hot and not self._looks_ahead]
