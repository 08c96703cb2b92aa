"""The trainer: applies batches in order, and never loses one.

Buffers of the exchange are static. A batch that needs larger ones is refused by the
step as a whole; the trainer compiles for a larger capacity and replays it, so that the
result is the same as if the buffers had been large from the start.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import optax

from embark_jax.data import Batch, BatchChecker, Dataset
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import TableRows, export_table
from embark_jax.embedding.rules import AnyRule
from embark_jax.metrics.pointwise import Metrics
from embark_jax.models.function import Model
from embark_jax.plans.capacities import grow
from embark_jax.plans.options import DenseParallelism, OnBadId
from embark_jax.report.progress import step_progress
from embark_jax.train.cached import CachedRows
from embark_jax.train.device_batch import DeviceBatch, PlacedBatch
from embark_jax.train.feeding import batches_ahead, read_ahead
from embark_jax.train.flax_model import CALL
from embark_jax.train.function_model import step_model
from embark_jax.train.growth import TableGrowth
from embark_jax.train.in_flight import STEPS_IN_FLIGHT, StepsInFlight
from embark_jax.train.losses import LOG_LOSS, Loss
from embark_jax.train.numbering import Numbering
from embark_jax.train.placing import Placing
from embark_jax.train.programs import Programs
from embark_jax.train.report import Flight, Numbers, StepReport
from embark_jax.train.results import StepResult, refuse_beyond_help, warn_if_done
from embark_jax.train.scoring import evaluate_scored, score_all
from embark_jax.train.state import Checkpoints, TrainState, clear_halt, init_state


class Trainer:
    """A model, its embeddings and their state; batches change them.

    Args:
      model: a Flax NNX module called as ``model(dense, embeddings) -> logits``, copied
        with all of its variables, such as running statistics and random streams; or a
        ``models.FunctionModel``.
      embeddings: the embedding tables.
      dense_optimizer: an optax optimizer of the model's parameters.
      embedding_optimizer: the rule for touched rows, or ``RowRules`` of several.
      micro_batches: parts of a batch that go through the model one after the other,
        for batches beyond memory. The plan is for one part; rows and parameters are
        updated once a batch.
      dense: how the dense model lies on the devices.
      overlap: whether the route of a batch is made during the step before it.
      loss: loss of a sample, whose mean is minimized, unless the model has its own.
      seed: seed of the initial tables.
      on_bad_id: rule for ids that are no row of a table; as in ``data.BatchChecker``.
      scratch: folder for rows of tier "disk"; None takes the one for temporary files.

    Attributes:
      state: the current ``TrainState``.
      check: brings training batches into the form that a step takes; counts bad ids.
      step: number of steps that were applied for certain.
      embeddings: the collection in use; replaced when capacities grow.
      embedding_optimizer: the rule for touched rows.
      batch_size: number of samples in a step, over all devices.
      recompilations: number of times a capacity had to grow.
      cached: rows of cached tables, None if there are none.
      growth: growth of dynamic tables, which is logged unless ``report`` is replaced.
    """

    def __init__(
        self,
        model: Model,
        embeddings: EmbeddingCollection,
        *,
        dense_optimizer: optax.GradientTransformation,
        embedding_optimizer: AnyRule,
        micro_batches: int = 1,
        dense: DenseParallelism = "replicated",
        overlap: bool = False,
        loss: Loss = LOG_LOSS,
        seed: int = 0,
        on_bad_id: OnBadId = "error",
        scratch: Path | None = None,
    ):
        self._model = step_model(model)
        self._dense_optimizer = dense_optimizer
        self.embedding_optimizer = embedding_optimizer
        self.batch_size = embeddings.plan.batch_size * micro_batches
        self._overlap = overlap
        self._on_bad_id: OnBadId = on_bad_id
        self.recompilations = 0
        self.step = 0
        optimizers, key = (dense_optimizer, embedding_optimizer), jax.random.key(seed)
        self.state = init_state(self._model, embeddings, *optimizers, key, dense)
        self._numbering = Numbering(embeddings.plan)
        self.growth = TableGrowth()
        sizes = self.batch_size, embeddings.plan.batch_size
        self._placing = Placing(self._numbering, embeddings.mesh, *sizes)
        rows = embedding_optimizer, key, self._numbering, scratch
        self.cached = CachedRows(embeddings, *rows) if embeddings.cached else None
        self._make_programs = functools.partial(
            Programs,
            self._model,
            micro_batches=micro_batches,
            dense=dense,
            overlap=overlap,
            loss=loss,
            cached=self.cached,
        )
        self._use(embeddings)
        self.check = self._checker()

    def _use(self, embeddings: EmbeddingCollection) -> None:
        self.embeddings = embeddings
        optimizers = self._dense_optimizer, self.embedding_optimizer
        self._programs = self._make_programs(embeddings, *optimizers, self.state)

    def use_optimizers(
        self, dense: optax.GradientTransformation, rows: AnyRule
    ) -> None:
        """Changes to optimizers of the same state, such as with other rates."""
        self._dense_optimizer, self.embedding_optimizer = dense, rows
        self._use(self.embeddings)

    def _make_room(self, needed: Mapping[str, int]) -> None:
        """Grows the capacities where a batch needs more."""
        plan = self.embeddings.plan
        capacities = grow(plan.capacities, needed)
        if capacities != plan.capacities:
            plan = dataclasses.replace(plan, capacities=capacities)
            self._use(self.embeddings.with_plan(plan))
            self.recompilations += 1

    def _grow_tables(self, keys: Mapping[str, int]) -> None:
        """Makes room for these numbers of keys of dynamic tables."""
        plan = self.growth.larger(self.embeddings.plan, keys)
        if self.cached is not None and plan is not self.embeddings.plan:
            larger = self.embeddings.with_plan(plan)
            self.state = self.cached.settle(self.state)
            self.state = self.cached.grow(self.state, larger)
            self._use(larger)
            self.recompilations += 1

    def fit(
        self,
        dataset: Dataset,
        steps: int,
        *,
        callback: Callable[[StepResult], None] = lambda result: None,
        progress: bool | None = None,
    ) -> StepResult | None:
        """Trains up to step ``steps``; warns if there is nothing to train.

        Args:
          dataset: data set whose batch ``step`` is a pure function of the step.
          steps: number of the last step, counted from the first step of all.
          callback: called with each step, in order, once it is certain.
          progress: whether to show a bar; None does so in a terminal and in a notebook.

        Returns:
          The last step; None if the state was at ``steps`` already.

        Raises:
          DataError, NonFiniteLossError: as ``iterate`` does.
        """
        warn_if_done(self.step, steps)
        last = None
        with step_progress(progress) as bar:
            task = bar.add_task("train", total=steps, completed=self.step, shown="")
            for last in self.iterate(dataset, steps):
                bar.update(task, completed=last.step, shown=f"loss {last.loss:.4f}")
                callback(last)
        return last

    def train(
        self,
        batches: Iterable[Batch],
        *,
        callback: Callable[[StepResult], None] = lambda result: None,
    ) -> StepResult | None:
        """Trains on your own batches, in order.

        Args:
          batches: batches as ``iterate_batches`` takes them.
          callback: called with each step, in order, once it is certain.

        Returns:
          The last step; None if there are no batches.

        Raises:
          DataError, NonFiniteLossError: as ``iterate_batches`` does.
        """
        last = None
        for last in self.iterate_batches(batches):
            callback(last)
        return last

    def iterate(
        self,
        dataset: Dataset,
        steps: int,
        stop: Callable[[int], bool] = lambda step: False,
    ) -> Iterator[StepResult]:
        """Trains like ``fit``, and yields each step once it is certain.

        Nothing is trained before the first step is asked for. Batches are made and
        checked in the background while the devices work. In a run of several processes
        each makes its own part of every batch.

        Args:
          dataset, steps: as for ``fit``.
          stop: called before each batch is made with its step (from 0); says whether to
            end early, and must answer alike in all processes.

        Raises:
          DataError, NonFiniteLossError: as ``iterate_batches`` does.
        """
        parts, part = jax.process_count(), jax.process_index()
        size = self.batch_size // parts

        def make_batch(step):
            return self.check(dataset.train_batch(step * parts + part, size))

        ahead = range(self.step, steps)
        wanted = itertools.takewhile(lambda step: not stop(step), ahead)
        depth = batches_ahead(size * self._checker().sample_bytes)
        batches = self._placing.feed(make_batch, wanted, depth)
        return self._in_flight().apply(batches)

    def iterate_batches(self, batches: Iterable[Batch]) -> Iterator[StepResult]:
        """Trains like ``train``, and yields each step once it is certain.

        Nothing is trained before the first step is asked for. When the iterator ends,
        early or not, ``state`` and ``step`` are those after the last batch taken; until
        then ``state`` may be ahead of what was yielded.

        Args:
          batches: batches of ``batch_size`` samples; in a run of several processes each
            gives its own part of every batch.

        Raises:
          DataError: if a batch breaks a rule of ``data.BatchChecker``; the state is the
            one before it.
          NonFiniteLossError: if a loss or an update is not finite; the state is the one
            before it.
        """
        return self._in_flight().apply(
            map(self._placing.place, map(self.check, batches))
        )

    def _in_flight(self) -> StepsInFlight:
        return StepsInFlight(self._dispatch, self._mend, self._land, int(self._overlap))

    def _dispatch(self, placed: PlacedBatch, following: PlacedBatch | None) -> Flight:
        batch, on_devices, *_ = placed
        self._numbering.use(keys := (following or placed).keys)
        self.growth.expect(keys)
        self._grow_tables(keys)
        report = self.apply(on_devices, batch.hot, following)
        self.growth.end(self.step)
        return Flight.of(batch, report, self._programs.capacities(batch.hot))

    def apply(
        self,
        batch: DeviceBatch,
        hot: bool = False,
        following: PlacedBatch | None = None,
    ) -> StepReport:
        """Dispatches one step and waits for nothing; a refused batch is not replayed,
        nor does ``step`` count. Training is done by ``fit`` and ``train``.

        Raises:
          ValueError: if an array has another shape or type than the plan says.
        """
        self.state, report = self._programs.train(self.state, batch, hot, following)
        return report

    def _mend(
        self, flights: Sequence[Flight], numbers: Numbers
    ) -> Iterable[PlacedBatch]:
        """Makes room for the first of the refused steps; returns the batches of all."""
        self.state = clear_halt(self.state)
        refuse_beyond_help(flights[0], numbers, self._checker(), self.step + 1)
        batches = [flight.batch for flight in flights]
        # A batch announced as hot that is not takes the ordinary step.
        batches[0] = dataclasses.replace(batches[0], hot=False)
        self._make_room(numbers.needed)
        return map(self._placing.place_again, batches)

    def _land(self, flight: Flight, numbers: Numbers) -> StepResult:
        self.step += 1
        return StepResult.of(self.step, flight, numbers)

    @property
    def model(self) -> Any:
        """A copy of the given model, with its trained variables and in evaluation mode;
        further training leaves it as it is."""
        return self._model.module(self.state.params, self.state.model_state)

    def table(self, name: str) -> TableRows:
        """Returns all rows of a table, wherever they lie, with their numbers or keys.
        Between steps, where one process sees all devices.

        Raises:
          ValueError: if there is no such table.
        """
        rows = export_table(self.embeddings, self.whole_state().storages, name)
        return self._numbering.with_keys(name, rows)

    def predict(
        self,
        batches: Iterable[Batch],
        check: BatchChecker | None = None,
        method: str = CALL,
    ) -> Iterator[tuple[Batch, jax.Array]]:
        """Yields each batch, checked, with its ``[batch]`` logits.

        A batch may be shorter than the plan's; it is padded with empty bags. In a run
        of several processes all give the same whole batches.

        Args:
          batches: batches to score.
          check: checker that counts their bad ids; None takes a new one.
          method: method of the model to call instead, such as "users" of ``TwoTower``.

        Raises:
          DataError: if a batch breaks a rule of ``data.BatchChecker``.
        """
        check = check or self._checker()
        placed = map(self._placing.place_to_score, map(check, batches))
        for batch, logits in self._score_all(placed, 0, method):
            yield batch, logits[: len(batch)]

    def evaluate(
        self, batches: Iterable[Batch], check: BatchChecker | None = None
    ) -> Metrics:
        """Returns metrics over all batches; arguments and errors as in ``predict``.

        Batches are taken ahead of time, by another thread.
        """
        check = check or self._checker()
        depth = batches_ahead(self.embeddings.plan.batch_size * check.sample_bytes)
        placed = read_ahead(map(check, batches), self._placing.place_to_score, depth)
        return evaluate_scored(self._score_all(placed, STEPS_IN_FLIGHT))

    def _score_all(
        self, placed: Iterable[PlacedBatch], in_flight: int, method: str = CALL
    ) -> Iterator[tuple[Batch, jax.Array]]:
        def start(placed: PlacedBatch) -> Flight:
            self._grow_tables(placed.keys)
            self.state, report = self._programs.predict(self.state, placed, method)
            self.growth.end(self.step)
            return Flight.of(placed.batch, report, self.embeddings.plan.capacities)

        return score_all(placed, start, self._make_room, self._checker(), in_flight)

    def _checker(self) -> BatchChecker:
        plan = self.embeddings.plan
        rows = {table.name: table.keys for table in plan.tables}
        return BatchChecker(plan.features, rows, on_bad_id=self._on_bad_id)

    def whole_state(self) -> TrainState:
        """Returns the state as a checkpoint has it, with all rows of cached tables:
        good until the next batch."""
        if self.cached is None:
            return self.state
        self.state = self.cached.settle(self.state)
        return self.cached.stored(self.state)

    def load(self, checkpoints: Checkpoints, step: int | None = None) -> dict[str, int]:
        """Takes over the state of a checkpoint; arguments, errors and result are those
        of ``checkpoint.Checkpointer.restore``."""

        def make_room(rows: Mapping[str, int]):
            self._grow_tables(rows)
            if self.cached is None:
                return self.state, self.embeddings
            self.state = self.cached.settle(self.state)
            return self.cached.unfilled(self.state), self.embeddings

        state, bad_ids = checkpoints.restore(*make_room({}), step, make_room)
        self.restore(state)
        return bad_ids

    def restore(self, state: TrainState) -> None:
        """Takes over a state, such as a checkpoint's, shaped like ``whole_state``."""
        if self.cached is not None:
            state = self.cached.restore(state, self.state)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, self.state)
        self.state = state
        self.step = int(state.step)
