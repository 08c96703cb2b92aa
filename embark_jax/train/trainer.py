"""The trainer: a pipeline that applies batches in order, and never loses one.

A batch is put on the devices, its routes are made a batch ahead, its step is started,
and finished once its result is known. Buffers of the exchange are static, so a step
refuses a batch that needs larger ones, and steps behind it, already started, do
nothing. The trainer then compiles for a larger capacity and starts them all again, in
order: the result is the same as if the buffers had been large from the start.

Each step makes the routes of the batch after it, beside the dense layers. Those of
cached tables are made by ``CachedRows``, also a batch ahead.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import optax
from embark_kernels import RowOptimizer

from embark_jax._base.memory import host_memory_bytes
from embark_jax.cache.row_store import StoreError
from embark_jax.cache.stored_rows import KEY, NO_ROW, USED
from embark_jax.data import Batch, BatchChecker, Dataset, prefetch
from embark_jax.embedding.collection import EmbeddingCollection, Routes
from embark_jax.embedding.logical import TableRows, export_table
from embark_jax.embedding.rules import AnyRule, RowRules, check_planned
from embark_jax.metrics.pointwise import Metrics, evaluate, to_host
from embark_jax.models.function import Model
from embark_jax.plans.capacities import grow
from embark_jax.plans.options import DenseParallelism, OnBadId, WireFormat
from embark_jax.report.display import step_progress
from embark_jax.train.cached_rows import CachedRows, TooFewSlotsError
from embark_jax.train.device_batch import DeviceBatch, own_samples, put_batch
from embark_jax.train.gradients import StepOptions
from embark_jax.train.losses import LOG_LOSS, Loss
from embark_jax.train.results import (
    BadIdError,
    NonFiniteLossError,
    StepResult,
    raise_bad_ids,
    raise_non_finite,
    result_of,
)
from embark_jax.train.state import (
    Checkpoints,
    Optimizers,
    StateLostError,
    TrainState,
    init_state,
)
from embark_jax.train.step import StepReport, make_score_step, make_train_step
from embark_jax.train.step_model import CALL, step_model

STEPS_IN_FLIGHT = 2
"""Steps that were started behind the one that is looked at."""
MAX_AHEAD = 4
"""Batches on the host; more would only make a run end later when it is asked to."""
MEMORY_SHARE = 1 / 32
"""Share of the host's memory that batches may take; several processes may share a
host."""
PUT_AHEAD = 1
"""Batches on the devices, which have no memory to spare."""


class PutBatch(NamedTuple):
    """A batch on the host, and its copy on the devices, to train or to score."""

    batch: Batch
    on_devices: DeviceBatch
    to_score: bool


class PendingStep(NamedTuple):
    """A batch whose step or scoring was started, and is not finished."""

    put: PutBatch
    report: StepReport


class Trainer:
    """A model, its embeddings and their state; batches change them.

    Args:
      model: a Flax NNX module called as ``model(dense, embeddings) -> logits``, copied
        with all of its variables, such as running statistics and random streams; or a
        ``models.FunctionModel``.
      embeddings: the embedding tables.
      dense_optimizer: an optax optimizer of the model's parameters.
      embedding_optimizer: the rule for touched rows, or ``RowRules`` of several.
      micro_batches: number of equal cuts of a batch that go through the model one
        after the other, where activations of the whole batch do not fit in memory.
        Embeddings are looked up and updated for the whole batch.
      dense: how the dense model lies on the devices.
      dense_wire: format in which gradients of dense parameters travel; bfloat16 needs a
        model without state whose samples are independent. See ``StepOptions``.
      loss: loss of a sample, whose mean is minimized, unless the model has its own.
      seed: seed of the initial tables.
      on_bad_id: rule for ids out of range for their table; as in ``data.BatchChecker``.
      scratch: folder for rows of tier "disk"; None takes the one for temporary files.

    Attributes:
      step: number of steps that were applied for certain.
      embeddings: the collection in use; replaced when capacities or tables grow.
      embedding_dtype: dtype in which the model takes pooled embeddings.
      optimizers: the optimizers in use.
      recompilations: number of times that capacities or tables had to grow.
      cached: rows of cached tables, None if there are none.
      check: brings training batches into the form that a step takes; counts bad ids.
      batch_size: number of samples in a step, over all devices.
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
        dense_wire: WireFormat = "float32",
        loss: Loss = LOG_LOSS,
        seed: int = 0,
        on_bad_id: OnBadId = "error",
        scratch: Path | None = None,
    ):
        if not isinstance(embedding_optimizer, RowOptimizer | RowRules):
            raise ValueError(
                f"embedding_optimizer is a {type(embedding_optimizer).__name__}, must "
                "be a row optimizer such as ej.RowwiseAdagrad(0.05); optimizers of "
                "optax are for dense_optimizer"
            )
        check_planned(embeddings.plan, embedding_optimizer)
        key = jax.random.key(seed)
        self._model = step_model(model)
        self._options = StepOptions(micro_batches, dense, loss, dense_wire)
        self._on_bad_id: OnBadId = on_bad_id
        self._lost = ""
        self._waiting: deque[PutBatch] = deque()
        self._pending: deque[PendingStep] = deque()
        self.step = 0
        self.recompilations = 0
        self.embeddings = embeddings
        self.embedding_dtype = self._model.embedding_dtype
        self.optimizers = Optimizers(dense_optimizer, embedding_optimizer)
        self.batch_size = embeddings.plan.batch_size
        self.check = self.checker(on_bad_id)
        self.state = init_state(self._model, embeddings, self.optimizers, key, dense)
        self.cached: CachedRows | None = None
        if embeddings.cached:
            self.cached = CachedRows(embeddings, embedding_optimizer, key, scratch)
        self._make_programs()

    @property
    def state(self) -> TrainState:
        """State after the steps that were started.

        Raises:
          StateLostError: if a checkpoint that turned out to be damaged took its place.
        """
        if self._lost:
            raise StateLostError(f"the state is gone: {self._lost}")
        return self._state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._state = state

    @property
    def model(self) -> Any:
        """A copy of the given model, with its trained variables and in evaluation mode;
        further training leaves it as it is."""
        return self._model.module(self.state.params, self.state.model_state)

    def use_optimizers(self, optimizers: Optimizers) -> None:
        """Changes to optimizers of the same state, such as with other rates."""
        self.optimizers = optimizers
        self._make_programs()

    def _make_programs(self) -> None:
        """Makes the programs of the collection and the optimizers in use; each is
        compiled when it is called first."""
        # The next batch, and its routes, which the step before made.
        self._ahead: tuple[DeviceBatch, Routes] | None = None
        self._route_program = jax.jit(EmbeddingCollection.route_batch, static_argnums=0)
        self._train_step = make_train_step(
            self._model, self.embeddings, self.optimizers, self.state, self._options
        )
        self._scorer = functools.cache(
            functools.partial(
                make_score_step,
                self._model,
                self.embeddings,
                self._options.micro_batches,
            )
        )

    def checker(self, on_bad_id: OnBadId = "error") -> BatchChecker:
        """Returns a checker of batches against the tables."""
        plan = self.embeddings.plan
        rows = {table.name: table.keys for table in plan.tables}
        return BatchChecker(plan.features, rows, on_bad_id=on_bad_id)

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
          DataError, NonFiniteLossError: as ``iterate_batches`` does.
        """
        if self.step >= steps:
            warnings.warn(
                f"nothing to train: step {self.step:,} is reached, and steps={steps:,} "
                "is the number of the last step, not of further ones; "
                f"{self.step:,} + N trains N more",
                stacklevel=2,
            )
        last = None
        with step_progress(progress) as bar:
            task = bar.add_task("train", total=steps, completed=self.step, shown="")
            for last in self.iterate(dataset, steps):
                bar.update(task, completed=last.step, shown=f"loss {last.loss:.4f}")
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
        processes, process = jax.process_count(), jax.process_index()
        size = self.batch_size // processes

        def make_batch(step):
            return self.check(dataset.train_batch(step * processes + process, size))

        ahead = range(self.step, steps)
        wanted = itertools.takewhile(lambda step: not stop(step), ahead)
        batches = prefetch(make_batch, wanted, self._batches_ahead(size))
        return self._run(self._put_ahead(batches))

    def iterate_batches(self, batches: Iterable[Batch]) -> Iterator[StepResult]:
        """Trains on your own batches, in order; yields each step once it is certain.

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
        return self._run(map(self._put, map(self.check, batches)))

    def _run(self, batches: Iterable[PutBatch]) -> Iterator[StepResult]:
        """Applies batches in order, and yields each step once it is certain. When this
        ends, early or not, all batches taken have been applied, unless an error says
        that they cannot be.

        Raises:
          BadIdError: if ids out of range for their table reached the devices.
          NonFiniteLossError: if a loss or an update is not finite.
          StoreError: if there is no room for rows.
        """
        waiting, pending = self._waiting, self._pending
        try:
            for put in batches:
                waiting.append(put)
                if len(waiting) > 1:  # a step makes the routes of the batch after it
                    self._start_first()
                if len(pending) > STEPS_IN_FLIGHT:
                    yield self._finish_step()
            while waiting:
                self._start_first()
            while pending:
                yield self._finish_step()
        except (NonFiniteLossError, BadIdError, StoreError):
            waiting.clear()
            raise
        finally:
            while waiting:
                self._start_first()
            while pending:
                self._finish_step()

    def _batches_ahead(self, samples: int) -> int:
        """Returns how many batches of this process to make ahead of the one that is
        waited for."""
        batch_bytes = samples * self.checker().sample_bytes
        fitting = int(host_memory_bytes() * MEMORY_SHARE / batch_bytes)
        return max(1, min(MAX_AHEAD, fitting))

    def _put(self, batch: Batch, to_score: bool = False) -> PutBatch:
        """Puts this process's samples of a batch on the devices; one to score is given
        whole, and may be shorter than the plan's."""
        plan, mesh = self.embeddings.plan, self.embeddings.mesh
        samples = own_samples(batch, plan.batch_size) if to_score else batch
        hot = batch.hot and not to_score
        cuts = self._options.micro_batches
        on_devices = put_batch(samples, plan, mesh, hot, cuts)
        return PutBatch(batch, on_devices, to_score)

    def _put_ahead(
        self, batches: Iterable[Batch], to_score: bool = False
    ) -> Iterator[PutBatch]:
        """Puts batches on the devices, in a thread, ahead of the one that is taken."""
        put = functools.partial(self._put, to_score=to_score)
        return prefetch(put, batches, PUT_AHEAD)

    def _fitting(self, put: PutBatch) -> PutBatch:
        """Puts a batch again if the plan has other room for events since then."""
        if put.on_devices.has_room(self.embeddings.plan.events):
            return put
        return self._put(put.batch, put.to_score)

    def _start_first(self) -> None:
        """Starts the step of the first batch that waits."""
        waiting = self._waiting
        try:
            put = self._fitting(waiting.popleft())
            if waiting:
                waiting[0] = self._fitting(waiting[0])
            following = waiting[0].on_devices if waiting else None
            report = self.start(put.on_devices, following)
        except BaseException:  # the next would fail as well, or find no state
            waiting.clear()
            raise
        self._pending.append(PendingStep(put, report))

    def start(
        self, batch: DeviceBatch, following: DeviceBatch | None = None
    ) -> StepReport:
        """Starts the step of a batch, and waits for nothing. A batch that is refused is
        not started again, nor does ``step`` count: other methods train.

        Args:
          batch: batch to apply.
          following: batch after it, if that is known.

        Raises:
          ValueError: if an array has another shape or type than the plan says.
          StoreError: if there is no room for rows; the state is as before.
        """
        ahead = None
        if self.cached is not None:
            routes = self._load_rows(batch, following)
        else:
            made, self._ahead = self._ahead, None
            if made is not None and made[0] is batch:
                routes = made[1]
            else:
                routes = self._make_routes(batch)
            # Where none of the same kind follows, the step makes its own routes again,
            # and they are thrown away: another program would have to be compiled.
            same_kind = following is not None and following.hot == batch.hot
            ahead = following if same_kind else batch
        self.state, report, next_routes = self._train_step(
            self.state, batch, routes, ahead
        )
        if following is not None and ahead is not None:
            if ahead is not following or next_routes is None:
                next_routes = self._make_routes(following)
            self._ahead = following, next_routes
        report.numbers.copy_to_host_async()
        return report

    def _make_routes(self, batch: DeviceBatch) -> Routes:
        """Makes the routes of a batch alone."""
        return self._route_program(self.embeddings.for_batch(batch.hot), batch)

    def _load_rows(
        self,
        batch: DeviceBatch,
        following: DeviceBatch | None = None,
        to_score: bool = False,
    ) -> Routes:
        """Loads the rows of a batch into slots, of which dynamic tables get as many as
        it needs, and returns its routes."""
        assert self.cached is not None
        while True:
            try:
                tables, routes = self.cached.load_rows(
                    self.state.tables, batch, following, to_score
                )
            except TooFewSlotsError as error:
                if not error.slots:
                    raise
                self._grow_tables(error.slots)
            else:
                self.state = self.state.with_tables(tables)
                return routes

    def _finish_step(self) -> StepResult:
        """Waits for the first step that is pending, and for as long as it is refused,
        starts it again."""
        while True:
            put, report = self._pending[0]
            batch, capacities = put.on_devices, self.embeddings.plan.capacities
            result = result_of(report, capacities, self.step + 1, batch.hot)
            if result.refused is None:
                self._pending.popleft()
                self.step += 1
                if self.cached is not None:
                    self.cached.applied(batch)
                return result
            self._start_again(result)

    def _start_again(self, result: StepResult) -> None:
        """Makes room for the first step, and starts all that are pending again.

        Raises:
          BadIdError, NonFiniteLossError: if more room would not help.
        """
        refused = list(self._pending)
        self._pending.clear()
        self.state = self.state.without_halt()
        if self.cached is not None:
            tables = self.cached.undo(self.state.tables)
            self.state = self.state.with_tables(tables)
        batches = [step.put.batch for step in refused]
        if result.refused == "bad ids":
            raise_bad_ids(batches[0], refused[0].report.bad_ids, self.checker())
        if result.refused == "not finite":
            raise_non_finite(batches[0], result)
        self._make_room(result.needed)
        # A batch announced as hot that is not takes the ordinary step.
        batches[0] = dataclasses.replace(batches[0], hot=False)
        self._waiting.extendleft(map(self._put, reversed(batches)))
        for _ in batches:
            self._start_first()

    def _make_room(self, needed: Mapping[str, int]) -> None:
        """Grows the capacities where a batch needs more."""
        plan = self.embeddings.plan
        capacities = grow(plan.capacities, needed)
        if capacities != plan.capacities:
            plan = dataclasses.replace(plan, capacities=capacities)
            self._use(self.embeddings.with_plan(plan))

    def _grow_tables(self, slots: Mapping[str, int]) -> None:
        """Makes dynamic tables have so many slots, on all devices together."""
        plan = self.embeddings.plan.with_slots(slots)
        if self.cached is None or plan == self.embeddings.plan:
            return
        larger = self.embeddings.with_plan(plan)
        tables = self.cached.grow(self.state.tables, larger, self.step)
        self.state = self.state.with_tables(tables)
        self._use(larger)

    def _use(self, embeddings: EmbeddingCollection) -> None:
        """Changes to the collection of a larger plan."""
        self.embeddings = embeddings
        if self.cached is not None:
            self.cached.use(embeddings)
        self._make_programs()
        self.recompilations += 1

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
        check = check or self.checker(self._on_bad_id)
        put = (self._put(batch, to_score=True) for batch in map(check, batches))
        for batch, logits in self._score(put, method=method):
            yield batch, logits[: len(batch)]

    def evaluate(
        self, batches: Iterable[Batch], check: BatchChecker | None = None
    ) -> Metrics:
        """Returns metrics over all batches; arguments and errors as in ``predict``.

        Batches are taken ahead of time, by another thread.
        """
        labels, logits, weights = self.scores(batches, check)
        return evaluate(labels, logits, weights)

    def scores(
        self, batches: Iterable[Batch], check: BatchChecker | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns labels, logits and weights of all samples, as ``evaluate`` takes
        them; else like it."""
        checked = map(check or self.checker(self._on_bad_id), batches)
        taken = prefetch(
            lambda _: next(checked, None),
            itertools.repeat(None),
            self._batches_ahead(self.batch_size),
        )
        to_the_end = iter(lambda: next(taken), None)
        put = self._put_ahead(to_the_end, to_score=True)
        labels, scores, weights = [], [], []
        for batch, logits in self._score(put, STEPS_IN_FLIGHT):
            labels.append(batch.labels.copy())  # a view would keep a whole batch
            if batch.sample_weights is not None:
                weights.append(batch.sample_weights.copy())
            scores.append(logits)  # no device is waited for before the end
        if not labels:
            return np.empty(0), np.empty(0), None
        logits = [to_host(x)[: len(y)] for x, y in zip(scores, labels, strict=True)]
        given = np.concatenate(weights) if weights else None
        return np.concatenate(labels), np.concatenate(logits), given

    def _score(
        self, batches: Iterable[PutBatch], in_flight: int = 0, method: str = CALL
    ) -> Iterator[tuple[Batch, jax.Array]]:
        """Yields each batch and its logits, also those of the padding on the devices.

        Args:
          batches: the batches, put to be scored.
          in_flight: number of batches started before the oldest is waited for.
          method: method of the model.

        Raises:
          BadIdError: if ids out of range for their table reached the devices.
        """
        pending: deque[PendingStep] = deque()
        for put in batches:
            pending.append(self._start_to_score(put, method))
            if len(pending) > in_flight:
                yield self._finish_score(pending.popleft(), method)
        while pending:
            yield self._finish_score(pending.popleft(), method)

    def _start_to_score(self, put: PutBatch, method: str) -> PendingStep:
        """Starts to score a batch; afterwards all rows are in the slots they were."""
        put = self._fitting(put)
        batch = put.on_devices
        if self.cached is None:
            routes = self._make_routes(batch)
        else:
            routes = self._load_rows(batch, to_score=True)
        state = self.state
        try:
            report = self._scorer(method=method)(
                state.params, state.model_state, state.storages, batch, routes
            )
        finally:
            if self.cached is not None:
                self.state = state.with_tables(self.cached.undo_last(state.tables))
        report.numbers.copy_to_host_async()
        return PendingStep(put, report)

    def _finish_score(
        self, pending: PendingStep, method: str
    ) -> tuple[Batch, jax.Array]:
        """Waits for a batch's logits; for as long as it is refused, scores it again."""
        while True:
            (batch, *_), report = pending
            result = result_of(report, self.embeddings.plan.capacities)
            if result.refused is None:
                return batch, report.logits
            if result.refused == "bad ids":
                raise_bad_ids(batch, report.bad_ids, self.checker())
            self._make_room(result.needed)
            pending = self._start_to_score(pending.put, method)

    def table(self, name: str) -> TableRows:
        """Returns all rows of a table, wherever they lie, by number or key, ascending.
        Between steps; in a run of several processes all must call it, and all get them.

        Raises:
          ValueError: if there is no such table.
        """
        state = self.whole_state()
        rows = export_table(self.embeddings, state.storages, name)
        (table,) = (t for t in self.embeddings.plan.tables if t.name == name)
        if not table.is_dynamic:
            return TableRows(np.arange(len(rows)), rows)
        states: Any = state.embedding_state
        keys, used = (
            export_table(
                self.embeddings,
                {storage: arrays.get(value) for storage, arrays in states.items()},
                name,
            )[:, 0]
            for value in (KEY, USED)
        )
        filled = np.flatnonzero(used != NO_ROW)
        filled = filled[np.argsort(keys[filled])]
        return TableRows(keys[filled], rows[filled])

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
        return self.state.with_tables(self.cached.blank(self.state.tables))

    def restore(self, state: TrainState) -> None:
        """Takes over a state, such as a checkpoint's, shaped like ``whole_state``."""
        if self.cached is not None:
            self._grow_tables(self.cached.restored_slots())
            tables = self.cached.restore(state.tables, self.state.tables)
            state = state.with_tables(tables)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, self.state)
        self.state = state
        self.step = int(state.step)

    def load(self, checkpoints: Checkpoints, step: int | None = None) -> dict[str, int]:
        """Takes over the state of a checkpoint; arguments, errors and result are those
        of ``checkpoint.Checkpointer.restore``. After a ``StateLostError`` all that
        needs the state raises one; after any other error it is as before."""
        blank = self.blank_state()
        try:
            state, bad_ids = checkpoints.restore(blank, self.embeddings, step)
        except StateLostError as error:
            self._lost = str(error)
            raise
        self.restore(state)
        return bad_ids
