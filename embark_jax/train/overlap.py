"""The route of the next batch, made while the devices work on this one.

A route depends on ids alone, so making it a step ahead is exact. Inside the step
nothing waits for it: its sorts and exchanges run beside the dense layers.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from embark_jax.embedding.collection import EmbeddingCollection, Routes
from embark_jax.train.device_batch import DeviceBatch
from embark_jax.train.gradients import route
from embark_jax.train.report import StepReport
from embark_jax.train.step import TrainState


class OverlappedStep:
    """A train step that is told the batch after the one it is to apply.

    Args:
      step: of ``make_train_step`` with ``overlap``.
      collection: the embedding tables.
      micro_batches: that a batch is cut into.
    """

    def __init__(
        self, step: Callable, collection: EmbeddingCollection, micro_batches: int
    ):
        self._step = step
        self._route = jax.jit(
            lambda batch: route(collection, batch.columns(), micro_batches)
        )
        self._routed: DeviceBatch | None = None
        self._routes: Routes | None = None

    def __call__(
        self, state: TrainState, batch: DeviceBatch, following: DeviceBatch | None
    ) -> tuple[TrainState, StepReport]:
        """Applies ``batch``; ``following`` is the one after it, None if not known."""
        if self._routed is not batch:
            self._routes = self._route(batch)
        # Where nothing follows, the route that is made is this one again, for nobody.
        state, report, self._routes = self._step(
            state, batch, self._routes, batch if following is None else following
        )
        self._routed = following
        return state, report
