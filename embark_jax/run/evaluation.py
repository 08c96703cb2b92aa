"""Metrics of a model over a split of its data: during a run, at its end, or later."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embark_jax.config import tasks_of
from embark_jax.data import Batch
from embark_jax.metrics.pointwise import OF_PROBABILITIES, Metric, evaluate, to_host
from embark_jax.metrics.ranking import Ranks, at_k, rank
from embark_jax.metrics.retrieval import NEVER, ItemIndex, shard_rows
from embark_jax.models.retrieval import RetrievalModel
from embark_jax.plans.tables import PADDING_ID
from embark_jax.report.display import TEST_STEP
from embark_jax.run.dataset import check_groups
from embark_jax.run.experiment import Experiment
from embark_jax.run.own_metrics import own_metrics
from embark_jax.train.trainer import Trainer

AUC = "auc"
REPEATS = "repeats"
"""Name of the share of items that their users had seen before."""

Read = Callable[[], Iterator[Batch]]
During = Callable[[Iterator[Batch]], Iterator[Batch]]


class Groups(NamedTuple):
    """Asks for metrics within groups: of samples that have the same id of ``feature``,
    such as the user, the ``k`` with the largest scores count."""

    feature: str
    k: int


def on_test_set(
    setup: Experiment,
    trainer: Trainer,
    during: During = iter,
    groups: Groups | None = None,
) -> dict[str, Any]:
    """Returns the test metrics, the step of the model, and the best AUC that any model
    could reach; without values if the data have no test set.

    Raises:
      ConfigError: if there is no such feature of groups, or it is a bag.
    """
    if groups is not None:
        check_groups(setup.features, groups.feature, "--group-by")
    read = functools.partial(setup.dataset.test_batches, setup.plan.batch_size)
    if next(read(), None) is None:
        return {"test_samples": 0, "test_auc": None, "test_log_loss": None}
    record = {TEST_STEP: trainer.step}
    record |= on_split(setup, trainer, "test", read, during, groups)
    best_auc = setup.description.best_auc
    return record if best_auc is None else record | {"bayes_auc": best_auc()}


def last_window_metrics(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the metrics of the last time window, which was evaluated before it was
    trained on, as test metrics."""
    return {TEST_STEP: evaluations[-1]["step"]} | {
        f"test_{name.removeprefix('validation_')}": value
        for name, value in evaluations[-1].items()
        if name.startswith("validation_")
    }


def held_out(setup: Experiment, step: int) -> tuple[str, Read]:
    """Returns name and batches of the set that is evaluated during training, at a step:
    the time window that comes next, the validation set, or the test set if there is
    neither."""
    size, dataset = setup.plan.batch_size, setup.dataset
    if setup.windows is not None:
        window = setup.windows.data_at(step)
        return "validation", functools.partial(window.in_file_order, "train", size)
    if dataset.validation_batches(size) is None:
        return "test", functools.partial(dataset.test_batches, size)
    return "validation", cast(Read, functools.partial(dataset.validation_batches, size))


def on_split(
    setup: Experiment,
    trainer: Trainer,
    split: str,
    read: Read,
    during: During = iter,
    groups: Groups | None = None,
) -> dict[str, Any]:
    """Returns metrics over a whole split, whose name is part of their names. One that
    is undefined is None: ``report.undefined`` says why.

    Args:
      setup, trainer: the run.
      split: name of the split.
      read: reads its batches from the first on.
      during: passes them on as they are scored.
      groups: asks for metrics within groups, too.
    """
    check, options = setup.checker(), setup.config.train
    tasks = tasks_of(setup.config.model)
    grouping = [own.groups for own in options.metrics.values()]
    grouping += [groups.feature] if groups is not None else []
    ids: dict[str, list[np.ndarray]] = {name: [] for name in grouping if name}
    batches = _with_ids(during(read()), ids)
    labels, logits, weights = trainer.scores(batches, check)
    group_ids = {name: np.concatenate(parts) for name, parts in ids.items()}
    metrics = dataclasses.asdict(evaluate(labels, logits, weights))
    by_task = zip(tasks, metrics.pop("tasks"), strict=True)
    if isinstance(trainer.model, RetrievalModel):  # whose logits are no log odds
        metrics = {n: x for n, x in metrics.items() if n not in OF_PROBABILITIES}
        deciding = [s.metric for s in (options.early_stopping, options.plateau) if s]
        if (labels > 0).all() and AUC not in deciding:  # as in data of the next item
            del metrics[AUC]
    found: dict[str, Any] = dict(metrics)
    for task, values in by_task:
        found |= {f"{name}/{task}": values[name] for name in metrics}
    for name, metric in own_metrics(options).items():
        own_groups = group_ids.get(options.metrics[name].groups or "")
        found |= _own(metric, tasks, labels, logits, weights, own_groups)
    if options.retrieval is not None:
        found |= _retrieved(setup, trainer, read())
    if groups is not None:
        found |= _ranked(setup, groups, group_ids[groups.feature], labels, logits)
    record = {f"{split}_{name}": value for name, value in found.items()}
    return record | counts(f"{split}_bad_ids", check.bad_ids)


def _own(
    metric: Metric,
    tasks: Sequence[str],
    labels: np.ndarray,
    logits: np.ndarray,
    weights: np.ndarray | None,
    groups: np.ndarray | None,
) -> dict[str, float | None]:
    """Returns a metric of the user's own; of several labels also each one's, of which
    it is the mean."""
    if not tasks:
        return {metric.name: metric.function(labels, logits, weights, groups)}
    values = {}
    for task, label, logit in zip(tasks, labels.T, logits.T, strict=True):
        known = ~np.isnan(label)
        others = (None if x is None else x[known] for x in (weights, groups))
        value = metric.function(label[known], logit[known], *others)
        values[f"{metric.name}/{task}"] = value
    each = [*values.values()]
    mean = None if None in each else float(np.mean(each))
    return {metric.name: mean, **values}


def _with_ids(
    batches: Iterator[Batch], ids: Mapping[str, list[np.ndarray]]
) -> Iterator[Batch]:
    """Yields batches, and adds the ids of features to their lists."""
    for batch in batches:
        for name, parts in ids.items():
            # Not as checked, nor a view, which would keep the whole batch.
            parts.append(np.array(batch.ids[name])[:, 0])
        yield batch


def _ranked(
    setup: Experiment,
    groups: Groups,
    ids: np.ndarray,
    labels: np.ndarray,
    logits: np.ndarray,
) -> dict[str, float | None]:
    """Returns how well the samples of each group are ranked, of each task; those of
    missing and of rare values are left out. Weights do not count."""
    (table,) = (f.table for f in setup.features if f.name == groups.feature)
    first = setup.description.rows_of_values(table).start
    has_value = ~np.isin(ids, [PADDING_ID, *range(first)])
    ids, labels, logits = (x[has_value] for x in (ids, labels, logits))
    tasks = tasks_of(setup.config.model)
    if not tasks:
        return rank(ids, labels, logits, groups.k)
    metrics = {}
    for task, label, logit in zip(tasks, labels.T, logits.T, strict=True):
        known = ~np.isnan(label)
        found = rank(ids[known], label[known], logit[known], groups.k)
        metrics |= {f"{name}/{task}": value for name, value in found.items()}
    return metrics


def _retrieved(
    setup: Experiment, trainer: Trainer, batches: Iterator[Batch]
) -> dict[str, float | None]:
    """Returns HR@K and NDCG@K of the items of positive samples among all items that
    have a row, in all processes alike; and which share of them are *repeats*, items
    that the user has seen, where those are not searched.

    Rows of missing and of rare values are no items. An item that has no row of its own,
    as it is new, rare, missing or outside the table, is never found; nor is a repeat.
    """
    config, model = setup.config.train.retrieval, trainer.model
    assert config is not None
    assert isinstance(model, RetrievalModel)
    plan, mesh = trainer.embeddings.plan, trainer.embeddings.mesh
    item_table = next(f.table for f in plan.features if f.name == model.item)
    keys, rows = trainer.table(item_table)
    is_item = _are_items(setup, item_table, keys)
    vectors = to_host(_vectors_of(model, shard_rows(rows, mesh)))[: len(keys)]
    ids = keys[is_item]
    index = ItemIndex(ids, vectors[is_item], mesh) if len(ids) else None
    found, repeats = [], 0
    unchecked: deque[Batch] = deque()  # bad ids may become others by a hash

    def asked() -> Iterator[Batch]:
        for batch in batches:
            unchecked.append(batch)
            yield batch

    for _, users in trainer.predict(asked(), method="users"):
        batch = unchecked.popleft()
        items = np.asarray(batch.ids[model.item])[:, 0]
        seen = np.full((len(items), 1), PADDING_ID)
        if config.exclude is not None:
            seen = np.asarray(batch.ids[config.exclude])
        positive = batch.labels > 0
        users, items, seen = (x[positive] for x in (to_host(users), items, seen))
        found.append(_ranks(index, ids, users, items, seen))
        repeats += int((seen == items[:, None]).any(axis=1).sum())
    ranks = Ranks(*map(np.concatenate, zip(*found, strict=True)))
    values = at_k(ranks, config.at)
    if config.exclude is not None and len(ranks.before):
        values[REPEATS] = repeats / len(ranks.before)
    return values


def _ranks(
    index: ItemIndex | None,
    ids: np.ndarray,
    users: np.ndarray,
    items: np.ndarray,
    seen: np.ndarray,
) -> Ranks:
    """Returns the ranks of items, of which those that are not among ``ids`` are never
    found."""
    before, equal = np.full(len(items), NEVER), np.zeros(len(items), np.int32)
    has_row = np.isin(items, ids)
    if index is not None and has_row.any():
        found = index.ranks(users[has_row], items[has_row], seen[has_row])
        before[has_row], equal[has_row] = found
    return Ranks(before, equal)


def _are_items(setup: Experiment, name: str, keys: np.ndarray) -> np.ndarray:
    """Returns which rows of the item's table, by key, stand for an item of the data: a
    table may have room for more."""
    items = setup.description.rows_of_values(name)
    (table,) = (table for table in setup.tables if table.name == name)
    if table.is_dynamic:
        return ~np.isin(keys, range(items.start))
    return (keys >= items.start) & (keys < items.stop)


@nnx.jit
def _vectors_of(model: RetrievalModel, rows: jax.Array) -> jax.Array:
    """Returns the vectors of items that have these rows."""
    return model.items(jnp.zeros((len(rows), 0)), {model.item: rows})


def counts(prefix: str, bad_ids: Mapping[str, int]) -> dict[str, int]:
    return {f"{prefix}/{name}": n for name, n in bad_ids.items() if n}
