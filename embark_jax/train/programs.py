"""The programs of a trainer: two train steps and a prediction, on one state."""

from __future__ import annotations

from collections.abc import Mapping

import optax
from embark_kernels import RowOptimizer

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.planner.request.dense import DenseParallelism
from embark_jax.train.device_batch import DeviceBatch
from embark_jax.train.flax_model import FlaxModel
from embark_jax.train.losses import Loss
from embark_jax.train.overlap import OverlappedStep
from embark_jax.train.report import StepReport
from embark_jax.train.step import (
    TrainState,
    make_predict_step,
    make_train_step,
)


class Programs:
    """What a trainer runs; each is compiled when it is first needed.

    Hot rows lie in the storages of the state and nowhere else, so that to go from one
    train step to the other moves nothing.

    Args:
      model: of the dense layers.
      embeddings: the embedding tables.
      dense_optimizer, embedding_optimizer: of the step.
      state: that it takes.
      micro_batches, dense, overlap, loss: as of ``make_train_step``.

    Attributes:
      predict: of ``make_predict_step``.
    """

    def __init__(
        self,
        model: FlaxModel,
        embeddings: EmbeddingCollection,
        dense_optimizer: optax.GradientTransformation,
        embedding_optimizer: RowOptimizer,
        state: TrainState,
        micro_batches: int,
        dense: DenseParallelism,
        overlap: bool,
        loss: Loss,
    ):
        hot = embeddings.with_plan(embeddings.plan, hot_only=True)
        self._capacities = {False: embeddings.capacities, True: hot.capacities}

        def make(collection: EmbeddingCollection, overlap: bool):
            return make_train_step(
                model,
                collection,
                dense_optimizer,
                embedding_optimizer,
                state,
                micro_batches,
                dense,
                overlap,
                loss,
            )

        step, self._overlap = make(embeddings, overlap), overlap
        self._step = step
        if overlap:
            self._overlapped = OverlappedStep(step, embeddings, micro_batches)
        self._hot_step = make(hot, overlap=False)
        self.predict = make_predict_step(model, embeddings)

    def train(
        self,
        state: TrainState,
        batch: DeviceBatch,
        following: DeviceBatch | None,
        hot: bool,
    ) -> tuple[TrainState, StepReport]:
        """Applies a batch: one of hot rows alone by the step that exchanges nothing for
        embeddings. With overlap all batches take the ordinary step."""
        if self._overlap:
            return self._overlapped(state, batch, following)
        return (self._hot_step if hot else self._step)(state, batch)

    def capacities(self, hot: bool) -> Mapping[str, int]:
        """Of the step that ``train`` takes for such a batch."""
        return self._capacities[hot and not self._overlap]
