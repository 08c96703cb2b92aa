"""The engine of a trainer: the state, and the programs that change it.

It starts steps and waits for none: ``in_flight`` looks at what became of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import chex
import jax

from embark_jax.cache.cached_rows import CachedRows
from embark_jax.cache.growth import TableGrowth
from embark_jax.cache.slots_needed import TooFewSlotsError
from embark_jax.embedding.arrays import TableState
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import DeviceBatch
from embark_jax.plans.capacities import grow
from embark_jax.train.gradients import StepOptions
from embark_jax.train.optimizers import Optimizers
from embark_jax.train.outcome import Outcome, StepReport, StepResult
from embark_jax.train.placing import PlacedBatch
from embark_jax.train.router import Router, StepRouter
from embark_jax.train.state import TrainState, init_state
from embark_jax.train.step import make_score_step, make_train_step
from embark_jax.train.step_model import CALL, StepModel

Prepared = TypeVar("Prepared")


class Engine:
    """The state of a training; steps and scorings of batches on it.

    Args:
      model: model of the dense layers.
      embeddings: the embedding tables.
      optimizers: optimizers of dense parameters and rows.
      options: how a step works.
      look_ahead: whether the route of a batch is made during the step before it.
      key: JAX random key of the initial tables.
      scratch: folder for rows of tier "disk"; None takes the one for temporary files.

    Attributes:
      state: state after the steps that were started.
      step: number of steps that were applied for certain.
      embeddings: the collection in use; replaced when capacities or tables grow.
      optimizers, look_ahead: as given.
      recompilations: number of times that capacities or tables had to grow.
      growth: growth of dynamic tables.
      cached: rows of cached tables, None if there are none.
    """

    def __init__(
        self,
        model: StepModel,
        embeddings: EmbeddingCollection,
        optimizers: Optimizers,
        options: StepOptions,
        look_ahead: bool,
        key: jax.Array,
        scratch: Path | None,
    ):
        self._model, self._options = model, options
        self.look_ahead = look_ahead
        self.step = 0
        self.recompilations = 0
        self.state = init_state(model, embeddings, optimizers, key, options.dense)
        self.growth = TableGrowth()
        self.cached: CachedRows | None = None
        if embeddings.cached:
            self.cached = CachedRows(
                embeddings,
                optimizers.rows,
                key,
                look_ahead,
                scratch,
            )
        self._router: Router = self.cached or StepRouter(embeddings, look_ahead)
        self.use(embeddings, optimizers)

    def use(self, embeddings: EmbeddingCollection, optimizers: Optimizers) -> None:
        """Changes to a plan of other capacities, or to other optimizers of the same
        state, such as with other rates."""
        self.embeddings, self.optimizers = embeddings, optimizers
        self._router.use(embeddings)
        self._train = make_train_step(
            self._model, embeddings, optimizers, self.state, self._options
        )
        self._scorer = functools.cache(
            functools.partial(make_score_step, self._model, embeddings)
        )

    def start(
        self,
        batch: DeviceBatch,
        following: DeviceBatch | None = None,
    ) -> StepReport:
        """Starts the step of a batch, and waits for nothing. A batch that is refused is
        not replayed, nor does ``step`` count.

        Args:
          batch: batch to apply.
          following: batch after it, if that is known.

        Raises:
          ValueError: if an array has another shape or type than the plan says.
          StoreError: if there is no room for rows; the state is as before.
        """
        tables, routes, ahead = self._with_room(
            lambda tables: self._router.prepare(tables, batch, following)
        )
        state = self.state = self.state.with_tables(tables)
        self.state, report, next_routes = self._train(state, batch, routes, ahead)
        self._router.keep(ahead, next_routes)
        report.numbers.copy_to_host_async()
        self.growth.end(self.step)
        return report

    def score(self, placed: PlacedBatch, method: str = CALL) -> StepReport:
        """Starts to score a batch by a method of the model, and waits for nothing; no
        row changes its slot."""
        batch = placed.on_devices
        tables, routes, give_back = self._with_room(
            lambda tables: self._router.lend(tables, batch)
        )
        state = self.state = self.state.with_tables(tables)
        report = self._scorer(method=method)(
            state.params, state.model_state, tables.storages, batch, routes
        )
        report.numbers.copy_to_host_async()
        self.state = state.with_tables(give_back(tables))
        self.growth.end(self.step)
        return report

    def outcome(self, report: StepReport) -> Outcome:
        """Waits for a step or scoring, and returns what became of it."""
        return Outcome.of(report, self.embeddings.plan.capacities)

    def land(
        self, batch: DeviceBatch, report: StepReport, outcome: Outcome
    ) -> StepResult:
        """Counts a step that was applied, and returns its result."""
        self.step += 1
        if self.cached is not None:
            self.cached.landed(batch)
        capacities = self.embeddings.plan.capacities
        used = {
            name: needed / max(capacities[name], 1)
            for name, needed in outcome.needed.items()
        }
        return StepResult(
            self.step,
            outcome.loss,
            report.logits,
            report.labels,
            used,
            batch.hot,
            report.weights,
        )

    def resume(self) -> None:
        """Lets steps change something again, once one was refused."""
        self.state = self.state.without_halt()
        if self.cached is not None:
            tables = self.cached.undo(self.state.tables)
            self.state = self.state.with_tables(tables)

    def make_room(self, needed: Mapping[str, int]) -> None:
        """Grows the capacities where a batch needs more."""
        plan = self.embeddings.plan
        capacities = grow(plan.capacities, needed)
        if capacities != plan.capacities:
            plan = dataclasses.replace(plan, capacities=capacities)
            self.use(self.embeddings.with_plan(plan), self.optimizers)
            self.recompilations += 1

    def _with_room(self, prepare: Callable[[TableState], Prepared]) -> Prepared:
        """Returns what a function of the tables does, once dynamic ones have as many
        slots as it needs."""
        while True:
            try:
                return prepare(self.state.tables)
            except TooFewSlotsError as error:
                if not error.slots:
                    raise
                self._grow_tables(error.slots)

    def _grow_tables(self, slots: Mapping[str, int]) -> None:
        """Makes dynamic tables have so many slots."""
        plan = self.embeddings.plan.with_slots(slots)
        if self.cached is None or plan == self.embeddings.plan:
            return
        self.growth.begin(self.embeddings.plan, plan)
        larger = self.embeddings.with_plan(plan)
        tables = self.cached.grow(self.state.tables, larger)
        self.state = self.state.with_tables(tables)
        self.use(larger, self.optimizers)
        self.recompilations += 1

    def whole_state(self) -> TrainState:
        """Returns the state as a checkpoint has it, with all rows of cached tables:
        good until the next batch."""
        if self.cached is None:
            return self.state
        return self.state.with_tables(self.cached.stored(self.state.tables))

    def blank_state(self) -> TrainState:
        """Returns a state like ``whole_state``, with any rows in cached tables: a
        checkpoint is restored into it."""
        if self.cached is None:
            return self.state
        return self.state.with_tables(self.cached.unfilled(self.state.tables))

    def restore(self, state: TrainState) -> None:
        """Takes over a state, such as a checkpoint's, shaped like ``whole_state``."""
        if self.cached is not None:
            self._grow_tables(self.cached.restored_slots())
            tables: TableState = self.cached.restore(state.tables, self.state.tables)
            state = state.with_tables(tables)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, self.state)
        self.state = state
        self.step = int(state.step)
