"""The trainer: applies batches in order, and never loses one."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from embark_kernels import RowOptimizer

from embark_jax.cache.stored_rows import KEY, NO_ROW, USED
from embark_jax.data import Batch, BatchChecker, Dataset, prefetch
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.logical import TableRows, export_table
from embark_jax.embedding.rules import AnyRule, RowRules, check_planned
from embark_jax.metrics.pointwise import Metrics, evaluate, to_host
from embark_jax.models.function import Model
from embark_jax.plans.options import DenseParallelism, OnBadId, WireFormat
from embark_jax.report.display import step_progress
from embark_jax.train.gradients import StepOptions
from embark_jax.train.loop import STEPS_IN_FLIGHT, Loop, StepResult
from embark_jax.train.losses import LOG_LOSS, Loss
from embark_jax.train.state import Checkpoints, Optimizers, StateLostError
from embark_jax.train.step_model import CALL, step_model


class Trainer(Loop):
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
      on_bad_id: rule for ids that are no row of a table; as in ``data.BatchChecker``.
      scratch: folder for rows of tier "disk"; None takes the one for temporary files.

    Attributes, besides those of ``Loop``:
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
        super().__init__(
            step_model(model),
            embeddings,
            Optimizers(dense_optimizer, embedding_optimizer),
            StepOptions(micro_batches, dense, loss, dense_wire),
            jax.random.key(seed),
            scratch,
        )
        self.batch_size = embeddings.plan.batch_size
        self.check = self.checker(on_bad_id)
        self._on_bad_id: OnBadId = on_bad_id

    def use_optimizers(self, optimizers: Optimizers) -> None:
        """Changes to optimizers of the same state, such as with other rates."""
        self.use(self.embeddings, optimizers)

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
        processes, process = jax.process_count(), jax.process_index()
        size = self.batch_size // processes

        def make_batch(step):
            return self.check(dataset.train_batch(step * processes + process, size))

        ahead = range(self.step, steps)
        wanted = itertools.takewhile(lambda step: not stop(step), ahead)
        batches = prefetch(make_batch, wanted, self.batches_ahead(size))
        return self.run(self.place_ahead(batches))

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
        return self.run(map(self.place, map(self.check, batches)))

    @property
    def model(self) -> Any:
        """A copy of the given model, with its trained variables and in evaluation mode;
        further training leaves it as it is."""
        return self._model.module(self.state.params, self.state.model_state)

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
        held = np.flatnonzero(used != NO_ROW)
        held = held[np.argsort(keys[held])]
        return TableRows(keys[held], rows[held])

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
        placed = (self.place(batch, True) for batch in map(check, batches))
        for batch, logits in self.score(placed, method=method):
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
            self.batches_ahead(self.batch_size),
        )
        to_the_end = iter(lambda: next(taken), None)
        placed = self.place_ahead(to_the_end, to_score=True)
        labels, scores, weights = [], [], []
        for batch, logits in self.score(placed, STEPS_IN_FLIGHT):
            labels.append(batch.labels.copy())  # a view would keep a whole batch
            if batch.sample_weights is not None:
                weights.append(batch.sample_weights.copy())
            scores.append(logits)  # no device is waited for before the end
        if not labels:
            return np.empty(0), np.empty(0), None
        logits = [to_host(x)[: len(y)] for x, y in zip(scores, labels, strict=True)]
        given = np.concatenate(weights) if weights else None
        return np.concatenate(labels), np.concatenate(logits), given

    def load(self, checkpoints: Checkpoints, step: int | None = None) -> dict[str, int]:
        """Takes over the state of a checkpoint; arguments, errors and result are those
        of ``checkpoint.Checkpointer.restore``. After a ``StateLostError`` all that
        needs the state raises one; after any other error it is as before."""
        blank = self.blank_state()
        try:
            state, bad_ids = checkpoints.restore(blank, self.embeddings, step)
        except StateLostError as error:
            self.lose_state(str(error))
            raise
        self.restore(state)
        return bad_ids
