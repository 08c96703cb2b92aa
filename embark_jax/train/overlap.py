"""The route of the next batch, made while the devices work on this one.

A route depends on ids alone, so making it a step ahead is exact. Inside the step
nothing waits for it: its sorts and exchanges run beside the dense layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax

from embark_jax.embedding.collection import EmbeddingCollection, Routes
from embark_jax.train.device_batch import DeviceBatch, PlacedBatch
from embark_jax.train.gradients import route
from embark_jax.train.report import StepReport
from embark_jax.train.state import TrainState


class OverlappedStep:
    """A train step that also takes the batch after the one it applies.

    Args:
      steps: results of ``make_train_step`` with ``next_collection``, by whether the
        batch is a hot batch, and whether the one after it is.
      collections: embedding tables, by whether they are for hot batches.
      micro_batches: number of parts that a batch is cut into.
    """

    def __init__(
        self,
        steps: Mapping[tuple[bool, bool], Callable],
        collections: Mapping[bool, EmbeddingCollection],
        micro_batches: int,
    ):
        def router(collection: EmbeddingCollection) -> Callable:
            return jax.jit(
                lambda batch: route(collection, batch.columns(), micro_batches)
            )

        self._steps = steps
        self._route = {hot: router(each) for hot, each in collections.items()}
        self._routed: DeviceBatch | None = None
        self._routes: Routes | None = None

    def __call__(
        self,
        state: TrainState,
        batch: DeviceBatch,
        hot: bool,
        following: PlacedBatch | None,
    ) -> tuple[TrainState, StepReport]:
        """Applies ``batch``; ``following`` is the one after it, None if not known."""
        if self._routed is not batch:
            self._routes = self._route[hot](batch)
        # Where nothing follows, the step makes this route again, for nobody.
        routed, routed_hot = batch, hot
        if following is not None:
            routed, routed_hot = following.on_devices, following.batch.hot
        step = self._steps[hot, routed_hot]
        state, report, self._routes = step(state, batch, self._routes, routed)
        self._routed = routed
        return state, report
