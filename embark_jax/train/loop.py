"""The loop: batches are placed on the devices, started, and landed or started again.

Buffers of the exchange are static, so a step refuses a batch that needs larger ones.
Steps behind it, already started, then do nothing. The loop compiles for a larger
capacity and starts them all again, in order, so that the result is the same as if the
buffers had been large from the start.

Each step makes the routes of the batch after it, beside the dense layers. Rows of
cached tables come by routes that ``CachedRows`` makes a batch ahead, too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import chex
import jax
import numpy as np

from embark_jax._base.errors import UserError
from embark_jax._base.memory import host_memory_bytes
from embark_jax.cache.cached_rows import CachedRows, TooFewSlotsError
from embark_jax.cache.row_store import StoreError
from embark_jax.data import (
    Batch,
    BatchChecker,
    DataError,
    feature_statistics,
    prefetch,
)
from embark_jax.embedding.collection import EmbeddingCollection, Routes
from embark_jax.plans.capacities import grow
from embark_jax.plans.options import OnBadId
from embark_jax.train.device_batch import (
    DeviceBatch,
    own_samples,
    put_batch,
)
from embark_jax.train.gradients import StepOptions
from embark_jax.train.state import (
    Optimizers,
    StateLostError,
    TrainState,
    init_state,
)
from embark_jax.train.step import (
    REFUSED,
    Refused,
    StepReport,
    make_score_step,
    make_train_step,
)
from embark_jax.train.step_model import CALL, StepModel

STEPS_IN_FLIGHT = 2
"""Steps that were started behind the one that is looked at."""
MAX_AHEAD = 4
"""Batches on the host; more would only make a run end later when it is asked to."""
MEMORY_SHARE = 1 / 32
"""Share of the host's memory that batches may take; several processes may share a
host."""
PLACED_AHEAD = 1
"""Batches on the devices, which have no memory to spare."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step.

    Attributes:
      step: number of the step, from 1.
      loss: mean log loss of its batch, before the update.
      logits, labels: ``[batch]`` or ``[batch, tasks]``, sharded by samples; logits
        before the update.
      used: share of each of the plan's capacities that the batch needed.
      hot: whether all ids of the batch were of hot rows, so that it took the step that
        exchanges no embeddings.
      weights: ``[batch]`` weights of the samples, sharded, if they have some.
      refused: why it changed nothing; None if it was applied, as all have been that a
        trainer yields.
      needed: what the batch needed of each of these capacities.
    """

    step: int
    loss: float
    logits: jax.Array = dataclasses.field(repr=False)
    labels: jax.Array = dataclasses.field(repr=False)
    used: Mapping[str, float] = dataclasses.field(repr=False)
    hot: bool = False
    weights: jax.Array | None = dataclasses.field(default=None, repr=False)
    refused: Refused | None = None
    needed: Mapping[str, int] = dataclasses.field(default_factory=dict, repr=False)


class NonFiniteLossError(UserError, ArithmeticError):
    """The loss of a batch or its update is NaN or infinite; the state is the one before
    this batch."""


class BadIdError(DataError):
    """Ids that are no row of their table reached the devices; the state is the one
    before their batch."""


class Placed(NamedTuple):
    """A batch on the host, and its copy on the devices, to train or to score."""

    batch: Batch
    on_devices: DeviceBatch
    to_score: bool


class Flight(NamedTuple):
    """A batch whose step or scoring was started."""

    placed: Placed
    report: StepReport


class Loop:
    """The state of a training, and batches on their way through it;
    ``Trainer`` is its public form.

    Args:
      model: model of the dense layers.
      embeddings: the embedding tables.
      optimizers: optimizers of dense parameters and rows.
      options: how a step works.
      key: JAX random key of the initial tables.
      scratch: folder for rows of tier "disk"; None takes the one for temporary files.

    Attributes:
      step: number of steps that were applied for certain.
      embeddings: the collection in use; replaced when capacities or tables grow.
      optimizers: the optimizers in use.
      recompilations: number of times that capacities or tables had to grow.
      cached: rows of cached tables, None if there are none.
    """

    def __init__(
        self,
        model: StepModel,
        embeddings: EmbeddingCollection,
        optimizers: Optimizers,
        options: StepOptions,
        key: jax.Array,
        scratch: Path | None,
    ):
        self._model, self._options = model, options
        self._lost = ""
        self._waiting: deque[Placed] = deque()
        self._flying: deque[Flight] = deque()
        self.step = 0
        self.recompilations = 0
        self.state = init_state(model, embeddings, optimizers, key, options.dense)
        self.cached: CachedRows | None = None
        if embeddings.cached:
            self.cached = CachedRows(embeddings, optimizers.rows, key, scratch)
        self.use(embeddings, optimizers)

    @property
    def state(self) -> TrainState:
        """State after the steps that were started.

        Raises:
          StateLostError: if a checkpoint that turned out to be damaged took its place.
        """
        if self._lost:
            raise StateLostError(self._lost)
        return self._state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._state = state

    def lose_state(self, reason: str) -> None:
        """Has all that needs the state raise ``StateLostError``."""
        self._lost = f"the state is gone: {reason}"

    def use(self, embeddings: EmbeddingCollection, optimizers: Optimizers) -> None:
        """Changes to a plan of other capacities, or to other optimizers of the same
        state, such as with other rates."""
        self.embeddings, self.optimizers = embeddings, optimizers
        if self.cached is not None:
            self.cached.use(embeddings)
        self._ahead: tuple[DeviceBatch, Routes] | None = None
        self._route = jax.jit(EmbeddingCollection.route_batch, static_argnums=0)
        self._train = make_train_step(
            self._model, embeddings, optimizers, self.state, self._options
        )
        self._scorer = functools.cache(
            functools.partial(
                make_score_step, self._model, embeddings, self._options.micro_batches
            )
        )

    def checker(self, on_bad_id: OnBadId = "error") -> BatchChecker:
        """Returns a checker of batches against the tables."""
        plan = self.embeddings.plan
        rows = {table.name: table.keys for table in plan.tables}
        return BatchChecker(plan.features, rows, on_bad_id=on_bad_id)

    def batches_ahead(self, samples: int) -> int:
        """Returns how many batches of this process to make ahead of the one that is
        waited for."""
        batch_bytes = samples * self.checker().sample_bytes
        fitting = int(host_memory_bytes() * MEMORY_SHARE / batch_bytes)
        return max(1, min(MAX_AHEAD, fitting))

    def place(self, batch: Batch, to_score: bool = False) -> Placed:
        """Puts this process's samples of a batch on the devices; one to score is given
        whole, and may be shorter than the plan's."""
        plan, mesh = self.embeddings.plan, self.embeddings.mesh
        samples = own_samples(batch, plan.batch_size) if to_score else batch
        hot = batch.hot and not to_score
        cuts = self._options.micro_batches
        on_devices = put_batch(samples, plan, mesh, hot, cuts)
        return Placed(batch, on_devices, to_score)

    def place_ahead(
        self, batches: Iterable[Batch], to_score: bool = False
    ) -> Iterator[Placed]:
        """Yields the batches placed; a thread does so ahead."""
        place = functools.partial(self.place, to_score=to_score)
        return prefetch(place, batches, PLACED_AHEAD)

    def _fitting(self, placed: Placed) -> Placed:
        """Places a batch again if the plan has other room for events since then."""
        if placed.on_devices.has_room(self.embeddings.plan.events):
            return placed
        return self.place(placed.batch, placed.to_score)

    def run(self, batches: Iterable[Placed]) -> Iterator[StepResult]:
        """Applies batches in order, and yields each step once it is certain. When this
        ends, early or not, all batches taken have been applied, unless an error says
        that they cannot be.

        Raises:
          BadIdError: if ids that are no row of their table reached the devices.
          NonFiniteLossError: if a loss or an update is not finite.
          StoreError: if there is no room for rows.
        """
        waiting, flying = self._waiting, self._flying
        try:
            for placed in batches:
                waiting.append(placed)
                if len(waiting) > 1:  # a step makes the routes of the batch after it
                    self._start_first()
                if len(flying) > STEPS_IN_FLIGHT:
                    yield self.land()
            while waiting:
                self._start_first()
            while flying:
                yield self.land()
        except (NonFiniteLossError, BadIdError, StoreError):
            waiting.clear()
            raise
        finally:
            while waiting:
                self._start_first()
            while flying:
                self.land()

    def _start_first(self) -> None:
        """Starts the step of the first batch that waits."""
        waiting = self._waiting
        try:
            placed = self._fitting(waiting.popleft())
            if waiting:
                waiting[0] = self._fitting(waiting[0])
            following = waiting[0].on_devices if waiting else None
            report = self.start(placed.on_devices, following)
        except BaseException:  # the next would fail as well, or find no state
            waiting.clear()
            raise
        self._flying.append(Flight(placed, report))

    def start(
        self, batch: DeviceBatch, following: DeviceBatch | None = None
    ) -> StepReport:
        """Starts the step of a batch, and waits for nothing. A batch that is refused is
        not started again, nor does ``step`` count: training is done by ``run``.

        Args:
          batch: batch to apply.
          following: batch after it, if that is known.

        Raises:
          ValueError: if an array has another shape or type than the plan says.
          StoreError: if there is no room for rows; the state is as before.
        """
        ahead = None
        if self.cached is not None:
            routes = self._bring(batch, following)
        else:
            made, self._ahead = self._ahead, None
            if made is not None and made[0] is batch:
                routes = made[1]
            else:
                routes = self._routes(batch)
            # Where none of the same kind follows, the step makes its own routes again,
            # for nobody: another program would have to be compiled.
            alike = following is not None and following.hot == batch.hot
            ahead = following if alike else batch
        self.state, report, next_routes = self._train(self.state, batch, routes, ahead)
        if following is not None and ahead is not None:
            made = next_routes if ahead is following else self._routes(following)
            self._ahead = following, made
        report.numbers.copy_to_host_async()
        return report

    def _routes(self, batch: DeviceBatch) -> Routes:
        """Makes the routes of a batch alone."""
        return self._route(self.embeddings.for_batch(batch.hot), batch)

    def _bring(
        self,
        batch: DeviceBatch,
        following: DeviceBatch | None = None,
        to_score: bool = False,
    ) -> Routes:
        """Brings the rows of a batch into slots, of which dynamic tables get as many as
        it needs, and returns its routes."""
        assert self.cached is not None
        while True:
            try:
                tables, routes = self.cached.bring(
                    self.state.tables, batch, following, to_score
                )
            except TooFewSlotsError as error:
                if not error.slots:
                    raise
                self._grow_tables(error.slots)
            else:
                self.state = self.state.with_tables(tables)
                return routes

    def land(self) -> StepResult:
        """Waits for the first step in flight, and for as long as it is refused, starts
        it again."""
        while True:
            placed, report = self._flying[0]
            batch = placed.on_devices
            capacities = self.embeddings.plan.capacities
            result = result_of(report, capacities, self.step + 1, batch.hot)
            if result.refused is None:
                self._flying.popleft()
                self.step += 1
                if self.cached is not None:
                    self.cached.applied(batch)
                return result
            self._start_again(result)

    def _start_again(self, result: StepResult) -> None:
        """Makes room for the first step, and starts all that are in flight again.

        Raises:
          BadIdError, NonFiniteLossError: if more room would not help.
        """
        refused = list(self._flying)
        self._flying.clear()
        self.state = self.state.without_halt()
        if self.cached is not None:
            tables = self.cached.undo(self.state.tables)
            self.state = self.state.with_tables(tables)
        batches = [flight.placed.batch for flight in refused]
        if result.refused == "bad ids":
            _refuse_bad_ids(batches[0], refused[0].report.bad_ids, self.checker())
        if result.refused == "not finite":
            _refuse_non_finite(batches[0], result)
        self._make_room(result.needed)
        # A batch announced as hot that is not takes the ordinary step.
        batches[0] = dataclasses.replace(batches[0], hot=False)
        self._waiting.extendleft(map(self.place, reversed(batches)))
        for _ in batches:
            self._start_first()

    def score(
        self, batches: Iterable[Placed], in_flight: int = 0, method: str = CALL
    ) -> Iterator[tuple[Batch, jax.Array]]:
        """Yields each batch and its logits, also those of the padding on the devices.

        Args:
          batches: the batches, placed to score.
          in_flight: number of batches started before the oldest is waited for.
          method: method of the model.

        Raises:
          BadIdError: if ids that are no row of their table reached the devices.
        """
        flying: deque[Flight] = deque()
        for placed in batches:
            flying.append(self._start_to_score(placed, method))
            if len(flying) > in_flight:
                yield self._scored(flying.popleft(), method)
        while flying:
            yield self._scored(flying.popleft(), method)

    def _start_to_score(self, placed: Placed, method: str) -> Flight:
        """Starts to score a batch; afterwards all rows are in the slots they were."""
        placed = self._fitting(placed)
        batch = placed.on_devices
        if self.cached is None:
            routes = self._routes(batch)
        else:
            routes = self._bring(batch, to_score=True)
        state = self.state
        try:
            report = self._scorer(method=method)(
                state.params, state.model_state, state.storages, batch, routes
            )
        finally:
            if self.cached is not None:
                self.state = state.with_tables(self.cached.undo_last(state.tables))
        report.numbers.copy_to_host_async()
        return Flight(placed, report)

    def _scored(self, flight: Flight, method: str) -> tuple[Batch, jax.Array]:
        """Waits for a batch's logits; for as long as it is refused, scores it again."""
        while True:
            (batch, *_), report = flight
            result = result_of(report, self.embeddings.plan.capacities)
            if result.refused is None:
                return batch, report.logits
            if result.refused == "bad ids":
                _refuse_bad_ids(batch, report.bad_ids, self.checker())
            self._make_room(result.needed)
            flight = self._start_to_score(flight.placed, method)

    def _make_room(self, needed: Mapping[str, int]) -> None:
        """Grows the capacities where a batch needs more."""
        plan = self.embeddings.plan
        capacities = grow(plan.capacities, needed)
        if capacities != plan.capacities:
            plan = dataclasses.replace(plan, capacities=capacities)
            self.use(self.embeddings.with_plan(plan), self.optimizers)
            self.recompilations += 1

    def _grow_tables(self, slots: Mapping[str, int]) -> None:
        """Makes dynamic tables have so many slots, on all devices together."""
        plan = self.embeddings.plan.with_slots(slots)
        if self.cached is None or plan == self.embeddings.plan:
            return
        larger = self.embeddings.with_plan(plan)
        tables = self.cached.grow(self.state.tables, larger, self.step)
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


def result_of(
    report: StepReport, capacities: Mapping[str, int], step: int = 0, hot: bool = False
) -> StepResult:
    """Waits for a step, and returns its result.

    Args:
      report: what it left on the devices.
      capacities: capacities that it was compiled for.
      step, hot: as in ``StepResult``.
    """
    joined = np.asarray(report.numbers)
    refused, _, *counts = joined.tolist()
    needed = dict(zip(capacities, counts, strict=True))
    return StepResult(
        step,
        float(joined[1:2].view(np.float32)[0]),
        report.logits,
        report.labels,
        {name: count / max(capacities[name], 1) for name, count in needed.items()},
        hot,
        report.weights,
        REFUSED[refused],
        needed,
    )


def _refuse_non_finite(batch: Batch, result: StepResult) -> NoReturn:
    """Raises ``NonFiniteLossError`` for the step of a batch."""
    raise NonFiniteLossError(
        f"loss is {result.loss:.6g} at step {result.step}, and it, a rate or the "
        "update not finite; the batch:\n  " + "\n  ".join(feature_statistics(batch))
    )


def _refuse_bad_ids(batch: Batch, bad_ids: jax.Array, check: BatchChecker) -> NoReturn:
    """Raises ``BadIdError`` for ids that reached the devices in spite of a checker.

    Args:
      batch: this process's samples of the batch.
      bad_ids: ``[…, features]`` number of bad ids of each feature, by devices.
      check: checker that knows the features and their tables.
    """
    shards = [np.asarray(shard.data) for shard in bad_ids.addressable_shards]
    counts = [shard.reshape(-1, shard.shape[-1]).sum(axis=0) for shard in shards]
    problems = check.describe_bad_ids(batch, np.sum(counts, axis=0))
    where = "\n  ".join(problems) or "in the samples of another process"
    raise BadIdError(f"ids out of range, nothing of the batch is used:\n  {where}")
