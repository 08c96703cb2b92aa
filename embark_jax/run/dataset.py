"""Reads a config's dataset, the tables that it needs, and their statistics."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Iterable, Sequence

from embark_jax._base.config import ConfigError, config_error_at, nearest
from embark_jax.config import SOURCES, ExperimentConfig, negatives_of, tasks_of
from embark_jax.data import (
    BatchChecker,
    Dataset,
    Description,
    HotBatches,
    Source,
    WindowsData,
    WithUniformNegatives,
    uniform_negatives,
)
from embark_jax.plans.forced import SMALL_TABLE_BYTES
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec

ModelData = tuple[Dataset, Description, tuple[TableSpec, ...], tuple[FeatureSpec, ...]]


def source_of(config: ExperimentConfig) -> Source:
    """Returns the source that a config names."""
    source = pkgutil.resolve_name(SOURCES[type(config.data)])
    return source(config.data, config.embedding)


def read_dataset(config: ExperimentConfig) -> ModelData:
    """Returns the dataset and what is known of it, and its tables and features with the
    changes of the config.

    Raises:
      ConfigError: if the config does not fit the dataset.
      DataError: if the dataset is missing or damaged.
    """
    dataset, description = source_of(config).open(config.seed)
    description = with_negatives(config, description)
    if len(description.features) > len(dataset.features):
        if isinstance(dataset, WindowsData):
            raise ConfigError(
                "model.uniform_negatives: must be 0 with data.kind windows; in-batch "
                "negatives remain"
            )
        feature = description.features[-1]
        items = description.rows_of_values(feature.table)
        with config_error_at("model.uniform_negatives"):
            dataset = WithUniformNegatives(
                dataset, feature.table, feature.hotness, config.seed, items
            )
    tables, features = merged_model(config, description)
    return dataset, description, tables, features


def with_negatives(config: ExperimentConfig, description: Description) -> Description:
    """Returns the description with the feature of the uniform negatives that the model
    asks for.

    Raises:
      ConfigError: if the item's table grows, so that there is nothing to draw from.
    """
    if (negatives := negatives_of(config.model)) is None:
        return description
    item, count = negatives
    tables = [f.table for f in description.features if f.name == item]
    if not tables:
        return description  # the model says what is wrong
    changes = config.embedding.tables.get(tables[0])
    if changes is not None and changes.max_slots is not None:
        raise ConfigError(
            f"model.uniform_negatives: table {tables[0]!r} is dynamic, must be fixed, "
            "as its keys are not known before they come; set it to 0"
        )
    feature = uniform_negatives(tables[0], count)
    return dataclasses.replace(description, features=(*description.features, feature))


def _check_tasks(config: ExperimentConfig, labels: tuple[str, ...] | None) -> None:
    """Raises ``ConfigError`` if the model has other tasks than the data have labels, as
    far as they are known, or there are weights for others."""
    tasks = tasks_of(config.model)
    if labels is not None and tasks != labels:
        if not tasks:
            raise ConfigError(
                f"model.kind: {config.model.kind} is for one label, but the data have "
                f"{', '.join(labels)}; take mmoe, whose model.tasks are these"
            )
        raise ConfigError(
            f"model.tasks: are {', '.join(tasks)}, must be the labels of the data, in "
            f"their order: {', '.join(labels) or 'they have a single one'}"
        )
    for task in config.train.task_weights:
        if task not in tasks:
            raise ConfigError(f"train.task_weights.{task}: {nearest(task, tasks)}")


def check_groups(features: Iterable[FeatureSpec], name: str, key: str) -> None:
    """Raises ``ConfigError`` if a feature, which the key names, makes no groups."""
    singles = [feature.name for feature in features if feature.hotness == 1]
    if name not in singles:
        raise ConfigError(
            f"{key} {name}: must be a feature of one id a sample; "
            + nearest(name, singles)
        )


def check_batch_size(config: ExperimentConfig, dataset: Dataset) -> None:
    """Raises ``ConfigError`` if a batch is larger than an epoch of the data."""
    batch, samples = config.train.batch_size, dataset.train_samples
    if batch > samples:
        is_choice = "train_samples" in type(config.data).model_fields
        more = ", or raise data.train_samples" * is_choice
        raise ConfigError(
            f"train.batch_size is {batch:,}, more than the {samples:,} training "
            f"samples, some of which every batch would hold twice; lower it{more}"
        )


def check_windows(config: ExperimentConfig) -> None:
    """Raises ``ConfigError`` if a config does not suit data in time windows."""
    for key in ("eval_every", "hot_batches"):
        if getattr(config.train, key):
            raise ConfigError(
                f"train.{key}: must be left out with data.kind windows: a run "
                "evaluates on each window before it trains on it, and batches keep to "
                "windows"
            )


def hot_rows(plan: Plan) -> dict[str, int]:
    """Returns for each feature how many of its table's rows are on all devices."""
    rows = {p.table.name: p.replicated_rows for p in plan.placements}
    return {feature.name: rows[feature.table] for feature in plan.features}


def in_training_order(
    dataset: Dataset, config: ExperimentConfig, plan: Plan
) -> Dataset:
    """Returns the dataset, its training samples sorted if ``train.hot_batches`` is set.

    Raises:
      ConfigError: if they are to be sorted and a table has no hot rows.
    """
    if not config.train.hot_batches:
        return dataset
    if dynamic := [table.name for table in plan.tables if table.is_dynamic]:
        raise ConfigError(
            f"train.hot_batches: {', '.join(dynamic)} is dynamic and has no hot rows, "
            "so no batch is of hot rows alone; leave hot_batches out"
        )
    without = [p.table.name for p in plan.placements if not p.replicated_rows]
    if without:
        raise ConfigError(
            f"train.hot_batches: of {len(plan.placements)} tables {len(without)} have "
            f"no hot rows, so no batch is of hot rows alone: {', '.join(without)}; "
            "give them memory (embedding.hot_budget=64MB), or set "
            "embedding.tables.NAME.hot_rows for each. Tables of up to "
            f"{SMALL_TABLE_BYTES >> 20} MiB need no setting: they are replicated"
        )
    return HotBatches(dataset, hot_rows(plan), config.train.batch_size)


def batch_checker(
    config: ExperimentConfig,
    dataset: Dataset,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
) -> BatchChecker:
    """Returns the checker of the dataset's batches against the tables."""
    return BatchChecker(
        features,
        {table.name: table.keys for table in tables},
        dataset.dense_features,
        config.embedding.on_bad_id,
        len(tasks_of(config.model)),
    )


def merged_model(
    config: ExperimentConfig, dataset: Description
) -> tuple[tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Returns the dataset's tables and features, with the changes of the config.

    Raises:
      ConfigError: if the config does not fit the dataset.
    """
    embedding = config.embedding
    own = [feature.name for feature in dataset.features]
    problems = [
        *_unknown("tables", embedding.tables, list(dataset.table_rows)),
        *_unknown("features", embedding.features, own),
        *(
            f"embedding.features.{feature.name}.{key}: is {getattr(changes, key)!r}, "
            f"the dataset says {getattr(feature, key)!r}"
            for feature in dataset.features
            if (changes := embedding.features.get(feature.name))
            for key in ("table", "weighted")
            if getattr(changes, key) not in (None, getattr(feature, key))
        ),
    ]
    if embedding.on_bad_id == "error":  # a bad id would end the run at any step
        problems += [
            f"embedding.tables.{name}.rows: is {changes.rows}, the data need {rows}; "
            "leave it out, or set embedding.on_bad_id to drop or hash"
            for name, rows in dataset.table_rows.items()
            if (changes := embedding.tables.get(name)) and (changes.rows or rows) < rows
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    with config_error_at("embedding.tables"):
        tables = [
            embedding.table(name, rows) for name, rows in dataset.table_rows.items()
        ]
    features = []
    for feature in dataset.features:
        changes = embedding.features.get(feature.name)
        if changes is not None:
            feature = dataclasses.replace(feature, **changes.spec)
        features.append(feature)
    _check_tasks(config, dataset.labels)
    return tuple(tables), tuple(features)


def _unknown(section: str, names: Iterable[str], own: Sequence[str]) -> list[str]:
    return [
        f"embedding.{section}.{name}: the dataset has none of that name; "
        + nearest(name, own)
        for name in names
        if name not in own
    ]
