"""Metrics of a model over a split of its data: during a run, at its end, or later."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embark_jax._base.config import ConfigError, nearest
from embark_jax.config import tasks_of
from embark_jax.data import Batch
from embark_jax.metrics.pointwise import to_host
from embark_jax.metrics.ranking import Ranks, at_k, rank
from embark_jax.metrics.retrieval import ItemIndex, shard_rows
from embark_jax.models.retrieval import RetrievalModel
from embark_jax.plans.tables import PADDING_ID
from embark_jax.report.display import TEST_STEP
from embark_jax.run.experiment import Experiment
from embark_jax.train.trainer import Trainer


def ranked(
    setup: Experiment, trainer: Trainer, group_by: str, k: int
) -> dict[str, float | None]:
    """Returns how well the test samples of each group are ranked.

    Args:
      setup, trainer: a run.
      group_by: feature, such as the user. Samples of a group have the same id; those
        of missing and of rare values are left out.
      k: number of first samples of each group that count.

    Raises:
      ConfigError: if there is no such feature, it is a bag, or samples have weights.
    """
    features = {feature.name: feature for feature in setup.features}
    if group_by not in features or features[group_by].hotness != 1:
        singles = [name for name, feature in features.items() if feature.hotness == 1]
        raise ConfigError(
            f"--group-by {group_by}: must be a feature of one id a sample; "
            + nearest(group_by, singles)
        )
    batches = _unweighted(setup.dataset.test_batches(setup.plan.batch_size), group_by)
    given, scored = itertools.tee(batches)
    scores = trainer.predict(scored, setup.checker())
    parts = [
        (batch.ids[group_by][:, 0], batch.labels, np.asarray(logits))
        for batch, (_, logits) in zip(given, scores, strict=True)
    ]
    ids, labels, logits = map(np.concatenate, zip(*parts, strict=True))
    first = setup.description.rows_of_values(features[group_by].table).start
    has_value = ~np.isin(ids, [PADDING_ID, *range(first)])
    groups, labels, logits = (x[has_value] for x in (ids, labels, logits))
    tasks = tasks_of(setup.config.model)
    if not tasks:
        found = rank(groups, labels, logits, k)
        return {f"test_{name}": value for name, value in found.items()}
    metrics = {}
    for task, label, logit in zip(tasks, labels.T, logits.T, strict=True):
        known = ~np.isnan(label)
        found = rank(groups[known], label[known], logit[known], k)
        metrics |= {f"test_{name}/{task}": value for name, value in found.items()}
    return metrics


def _unweighted(batches: Iterator[Batch], group_by: str) -> Iterator[Batch]:
    """Yields batches; raises ``ConfigError`` if their samples have weights."""
    for batch in batches:
        if batch.sample_weights is not None:
            raise ConfigError(
                f"--group-by {group_by}: samples have weights, which metrics of groups "
                "do not take; prepare the data without the column weight"
            )
        yield batch


def on_test_set(
    setup: Experiment,
    trainer: Trainer,
    during: Callable[[Iterator[Batch]], Iterator[Batch]] = iter,
) -> dict[str, Any]:
    """Returns the test metrics, the step of the model, and the best AUC that any model
    could reach; without values if the data have no test set."""
    batches = during(setup.dataset.test_batches(setup.plan.batch_size))
    if (first := next(batches, None)) is None:
        return {"test_samples": 0, "test_auc": None, "test_log_loss": None}
    batches = itertools.chain([first], batches)
    record = {TEST_STEP: trainer.step}
    record |= on_split(setup, trainer, "test", batches)
    best_auc = setup.description.best_auc
    return record if best_auc is None else record | {"bayes_auc": best_auc()}


def of_last_window(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the metrics of the last time window, which was evaluated before it was
    trained on, as test metrics."""
    return {TEST_STEP: evaluations[-1]["step"]} | {
        f"test_{name.removeprefix('validation_')}": value
        for name, value in evaluations[-1].items()
        if name.startswith("validation_")
    }


def held_out(setup: Experiment, step: int) -> tuple[str, Iterator[Batch]]:
    """Returns name and batches of the set that is evaluated during training, at a step:
    the time window that comes next, the validation set, or the test set if there is
    neither."""
    size = setup.plan.batch_size
    if setup.windows is not None:
        return "validation", setup.windows.data_at(step).in_file_order("train", size)
    if (batches := setup.dataset.validation_batches(size)) is not None:
        return "validation", batches
    return "test", setup.dataset.test_batches(size)


def on_split(
    setup: Experiment, trainer: Trainer, split: str, batches: Iterator[Batch]
) -> dict[str, Any]:
    """Returns metrics over a whole split, whose name is part of their names."""
    check = setup.checker()
    retrieval = setup.config.train.retrieval
    if retrieval is not None:
        batches = iter(kept := list(batches))
    metrics = dataclasses.asdict(trainer.evaluate(batches, check))
    tasks = zip(tasks_of(setup.config.model), metrics.pop("tasks"), strict=True)
    record = {f"{split}_{name}": value for name, value in metrics.items()}
    for task, values in tasks:
        names = [name for name in metrics if name != "samples"]
        record |= {f"{split}_{name}/{task}": values[name] for name in names}
    if retrieval is not None:
        for name, value in _retrieved(setup, trainer, kept).items():
            record[f"{split}_{name}"] = value
    return record | counts(f"{split}_bad_ids", check.bad_ids)


def _retrieved(
    setup: Experiment, trainer: Trainer, batches: Sequence[Batch]
) -> dict[str, float]:
    """Returns HR@K and NDCG@K of the items of positive samples among all items that
    have a row, in all processes alike.

    Rows of missing and of rare values are no items. An item that has no row of its own,
    as it is new, rare, missing or outside the table, is never found.
    """
    config, model = setup.config.train.retrieval, trainer.model
    assert config is not None
    assert isinstance(model, RetrievalModel)
    plan, mesh = trainer.embeddings.plan, trainer.embeddings.mesh
    item_table = next(f.table for f in plan.features if f.name == model.item)
    keys, rows = trainer.table(item_table)
    is_item = _are_items(setup, item_table, keys)
    queries = []
    for batch, (_, vectors) in zip(
        batches, trainer.predict(batches, method="users"), strict=True
    ):
        positive = batch.labels > 0
        item, seen = (  # not as checked: bad ids may have become others by a hash
            np.asarray(batch.ids[name])
            for name in (model.item, config.exclude or model.item)
        )
        of_batch = to_host(vectors), item[:, 0], seen
        queries.append(tuple(array[positive] for array in of_batch))
    users, items, seen = map(np.concatenate, zip(*queries, strict=True))
    ranks = Ranks(np.full(len(items), np.iinfo(np.int32).max), np.zeros(len(items)))
    has_row = np.isin(items, keys[is_item])
    if has_row.any():
        vectors = to_host(_vectors_of(model, shard_rows(rows, mesh)))
        index = ItemIndex(keys[is_item], vectors[: len(keys)][is_item], mesh)
        found = index.ranks(users[has_row], items[has_row], seen[has_row])
        ranks.before[has_row], ranks.equal[has_row] = found
    return at_k(ranks, config.at)


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
