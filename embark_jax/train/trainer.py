"""The trainer: applies batches in order, and never loses one.

Buffers of the exchange are static. A batch that needs larger ones is refused by the
step as a whole; the trainer compiles for a larger capacity and replays it, so that the
result is the same as if the buffers had been large from the start.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from embark_kernels import RowOptimizer
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.data import (
    Batch,
    BatchChecker,
    Dataset,
    feature_statistics,
    prefetch,
)
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.planner import grow
from embark_jax.tables import PADDING_ID
from embark_jax.train.dense_parallelism import DenseParallelism
from embark_jax.train.gradients import DeviceBatch
from embark_jax.train.metrics import EvalAccumulator, Metrics
from embark_jax.train.overlap import OverlappedStep
from embark_jax.train.step import (
    StepReport,
    TrainState,
    init_state,
    make_predict_step,
    make_train_step,
)

STEPS_IN_FLIGHT = 2
"""Steps dispatched before the oldest is looked at: the host stays ahead of devices."""


class NonFiniteLossError(ArithmeticError):
    """The loss of a batch or its update is NaN or infinite; the state is that before
    this batch."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """A step that was applied.

    Attributes:
      step: its number, from 1.
      loss: mean log loss of its batch, before the update.
      logits, labels: ``[batch]``, sharded by samples; logits before the update.
      used: for each sharded storage the share of its capacity that the batch needed.
    """

    step: int
    loss: float
    logits: jax.Array
    labels: jax.Array
    used: Mapping[str, float]


def put_batch(batch: Batch, mesh: Mesh) -> DeviceBatch:
    """Copies a checked batch to the devices, sharded by samples.

    In a run of several processes each gives its own part, and all get the whole batch.
    """
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def put(array):
        # 64-bit ids stay what they are; elsewhere JAX would cut them to 32 bits.
        with jax.enable_x64(array.dtype == np.int64):
            return jax.make_array_from_process_local_data(sharding, array)

    ids = {name: put(value) for name, value in batch.ids.items()}
    weights = {name: put(value) for name, value in batch.weights.items()}
    return DeviceBatch(put(batch.dense), ids, weights, put(batch.labels))


class Trainer:
    """A model, its embeddings and their state, and how a batch changes them.

    Args:
      model: a Flax NNX module called as ``model(dense, embeddings) -> logits``.
      embeddings: the embedding tables.
      dense_optimizer: an optax optimizer of the model's parameters.
      embedding_optimizer: the rule for touched rows.
      micro_batches: parts of a batch that go through the model one after the other,
        for batches beyond memory. The plan is for one part; rows and parameters are
        updated once a batch.
      dense: how the dense model lies on the devices.
      overlap: whether the route of a batch is made during the step before it.
      seed: of the initial tables.

    Attributes:
      state: the current ``TrainState``.
      step: steps that were applied for certain.
      embeddings: the collection in use; replaced when capacities grow.
      embedding_optimizer: the rule for touched rows.
      batch_size: global, samples a step.
      recompilations: times a capacity had to grow.
    """

    def __init__(
        self,
        model: nnx.Module,
        embeddings: EmbeddingCollection,
        *,
        dense_optimizer: optax.GradientTransformation,
        embedding_optimizer: RowOptimizer,
        micro_batches: int = 1,
        dense: DenseParallelism = "replicated",
        overlap: bool = False,
        seed: int = 0,
    ):
        self._model = model
        self._dense_optimizer = dense_optimizer
        self.embedding_optimizer = embedding_optimizer
        self.batch_size = embeddings.plan.batch_size * micro_batches
        self._micro_batches = micro_batches
        self._dense: DenseParallelism = dense
        self._overlap = overlap
        self.recompilations = 0
        self.step = 0
        self.state = init_state(
            model,
            embeddings,
            dense_optimizer,
            embedding_optimizer,
            jax.random.key(seed),
            dense,
        )
        self._use(embeddings)

    def _use(self, embeddings: EmbeddingCollection) -> None:
        self.embeddings = embeddings
        step = make_train_step(
            self._model,
            embeddings,
            self._dense_optimizer,
            self.embedding_optimizer,
            self.state,
            self._micro_batches,
            self._dense,
            self._overlap,
        )
        if self._overlap:
            self._step = OverlappedStep(step, embeddings, self._micro_batches)
        else:
            self._step = lambda state, batch, following: step(state, batch)
        self._predict = make_predict_step(self._model, embeddings)

    def _make_room(self, needed: Mapping[str, jax.Array]) -> bool:
        """Grows the capacities where a batch needs more; returns whether any grew."""
        plan = self.embeddings.plan
        if not _overflows(needed, plan.capacities):
            return False
        sizes = {name: int(value) for name, value in needed.items()}
        plan = dataclasses.replace(plan, capacities=grow(plan.capacities, sizes))
        self._use(self.embeddings.with_plan(plan))
        self.recompilations += 1
        return True

    def fit(
        self,
        dataset: Dataset,
        steps: int,
        check: Callable[[Batch], Batch] | None = None,
        stop: Callable[[int], bool] = lambda step: False,
    ) -> Iterator[StepResult]:
        """Trains up to step ``steps``, from wherever the state is.

        Batches are made and checked in the background while the devices work. In a run
        of several processes each makes its own part of every batch.

        Args:
          dataset: its batch ``step`` is a pure function of the step.
          steps: number of the last step.
          check: such as a ``data.BatchChecker``; None takes one that refuses bad ids.
          stop: asked before each batch is made, with its step (from 0), whether to end
            early; must answer alike in all processes.
        """
        check = check or self._strict_checker(dataset)
        parts, part = jax.process_count(), jax.process_index()
        size = self.batch_size // parts

        def make_batch(step):
            return check(dataset.train_batch(step * parts + part, size))

        wanted = itertools.takewhile(
            lambda step: not stop(step), range(self.step, steps)
        )
        return self.train(prefetch(make_batch, wanted))

    def train(self, batches: Iterable[Batch]) -> Iterator[StepResult]:
        """Applies checked batches in order; yields each step once it is certain.

        In a run of several processes each gives its own part of every batch.

        When the iterator ends, early or not, ``state`` and ``step`` are those after the
        last batch taken; until then ``state`` may be ahead of what was yielded.

        Raises:
          NonFiniteLossError: if a loss or an update is not finite; the state is that
            before it.
        """
        waiting: deque[_Copied] = deque()
        flying: deque[_Flight] = deque()
        try:
            for batch in batches:
                waiting.append(self._copy(batch))
                if len(waiting) > self._overlap:
                    flying.append(self._dispatch(waiting))
                if len(flying) > STEPS_IN_FLIGHT:
                    yield self._land(flying)
            while waiting:
                flying.append(self._dispatch(waiting))
            while flying:
                yield self._land(flying)
        except NonFiniteLossError:
            waiting.clear()
            raise
        finally:
            while waiting:
                flying.append(self._dispatch(waiting))
            while flying:
                self._land(flying)

    def _copy(self, batch: Batch) -> _Copied:
        return _Copied(batch, self._put(batch, self.batch_size))

    def _dispatch(self, waiting: deque[_Copied]) -> _Flight:
        """Starts the step of the first that waits."""
        batch, on_devices = waiting.popleft()
        following = waiting[0].on_devices if waiting else None
        report = self.apply(on_devices, following)
        return _Flight(
            batch, on_devices.labels, report, self.embeddings.plan.capacities
        )

    def apply(
        self, batch: DeviceBatch, following: DeviceBatch | None = None
    ) -> StepReport:
        """Dispatches one step and waits for nothing; a refused batch is not replayed,
        nor does ``step`` count. ``train`` is what trains."""
        self.state, report = self._step(self.state, batch, following)
        return report

    def _put(self, batch: Batch, size: int) -> DeviceBatch:
        """Copies this process's part of a batch of ``size`` samples."""
        size //= jax.process_count()
        if len(batch) != size:
            raise ValueError(
                f"batch has {len(batch)} samples, the plan is made for {size} in each "
                "process"
            )
        return put_batch(batch, self.embeddings.mesh)

    def _land(self, flying: deque[_Flight]) -> StepResult:
        """Waits for the oldest step; replays it and those behind it if refused."""
        while not bool(flying[0].report.applied):
            batches = [flight.batch for flight in flying]
            report, capacities = flying[0].report, flying[0].capacities
            flying.clear()
            self._clear_halt()
            if not _overflows(report.needed, capacities):
                raise NonFiniteLossError(
                    f"loss is {float(report.loss):.6g} at step {self.step + 1}, and it "
                    "or the update not finite; the batch:"
                    "\n  " + "\n  ".join(feature_statistics(batches[0]))
                )
            self._make_room(report.needed)
            again = deque(map(self._copy, batches))
            while again:
                flying.append(self._dispatch(again))
        _, labels, report, capacities = flying.popleft()
        self.step += 1
        return StepResult(
            step=self.step,
            loss=float(report.loss),
            logits=report.logits,
            labels=labels,
            used={n: int(report.needed[n]) / have for n, have in capacities.items()},
        )

    def predict(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, jax.Array]]:
        """Yields each checked batch with its ``[batch]`` logits.

        A batch may be shorter than the plan's; it is padded with empty bags. In a run
        of several processes all give the same whole batches.
        """
        size = self.embeddings.plan.batch_size
        for batch in batches:
            padded = self._put(_own_part(batch, size), size)
            logits, needed = self._predict(
                self.state.params, self.state.storages, padded
            )
            while self._make_room(needed):
                logits, needed = self._predict(
                    self.state.params, self.state.storages, padded
                )
            yield batch, logits[: len(batch)]

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Metrics over all checked batches together."""
        scores = EvalAccumulator()
        for batch, logits in self.predict(batches):
            scores.add(batch.labels, logits, len(batch))
        return scores.result()

    def _strict_checker(self, dataset: Dataset) -> BatchChecker:
        rows = {table.name: table.rows for table in self.embeddings.plan.tables}
        features = self.embeddings.plan.features
        return BatchChecker(features, rows, dataset.dense_features)

    def restore(self, state: TrainState) -> None:
        """Takes over a state, of a checkpoint say, that is shaped like the current."""
        chex.assert_trees_all_equal_shapes_and_dtypes(state, self.state)
        self.state = state
        self.step = int(state.step)

    def _clear_halt(self) -> None:
        halted = jax.device_put(jnp.zeros((), bool), self.state.halted.sharding)
        self.state = self.state._replace(halted=halted)


class _Copied(NamedTuple):
    """A batch, and its copy on the devices."""

    batch: Batch
    on_devices: DeviceBatch


class _Flight(NamedTuple):
    """A step that was dispatched, and the capacities it was compiled for."""

    batch: Batch
    labels: jax.Array
    report: StepReport
    capacities: Mapping[str, int]


def _overflows(needed: Mapping[str, jax.Array], capacities: Mapping[str, int]) -> bool:
    return any(int(needed[name]) > have for name, have in capacities.items())


def _own_part(batch: Batch, size: int) -> Batch:
    """This process's part of a batch, which empty samples fill up to ``size``."""
    missing = size - len(batch)
    part = size // jax.process_count()
    first = part * jax.process_index()

    def cut(array, fill):
        if missing:
            rows = ((0, missing),) + ((0, 0),) * (array.ndim - 1)
            array = np.pad(array, rows, constant_values=fill)
        return array[first : first + part]

    return dataclasses.replace(
        batch,
        dense=cut(batch.dense, 0),
        ids={name: cut(ids, PADDING_ID) for name, ids in batch.ids.items()},
        labels=cut(batch.labels, 0),
        weights={name: cut(value, 0) for name, value in batch.weights.items()},
    )
