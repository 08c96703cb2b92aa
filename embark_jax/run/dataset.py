"""Reads a config's dataset, the tables that it needs, and their statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from embark_jax._base.config import ConfigError, config_error_at, nearest
from embark_jax._base.memory import host_memory_bytes
from embark_jax.config import (
    ExperimentConfig,
    MovieLens100KConfig,
    OwnDataConfig,
    PreparedConfig,
    SyntheticConfig,
    call_named,
    tasks_of,
)
from embark_jax.data import (
    BatchChecker,
    Dataset,
    Description,
    HotBatches,
    MovieLens100K,
    PreparedData,
    SyntheticClicks,
    accesses,
)
from embark_jax.data.synthetic import BYTES_AN_ID, CALIBRATION_SAMPLES
from embark_jax.plans.forced import SMALL_TABLE_BYTES
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.statistics.accesses import FeatureAccess, Statistics, TableAccess
from embark_jax.statistics.agreement import HalfAgreement
from embark_jax.statistics.histogram import Histogram


def read_dataset(
    config: ExperimentConfig,
) -> tuple[Dataset, tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Returns the dataset, and the model's tables and features.

    Raises:
      ConfigError: if the config does not fit the dataset.
      DataError: if the dataset is missing or damaged.
    """
    match config.data:
        case SyntheticConfig():
            options = config.data.model_dump(exclude={"kind"})
            with config_error_at("embedding"):
                tables, features = declared_model(config, "synthetic data needs it")
                check_drawing_memory(features)
                dataset = SyntheticClicks(_drawn(config, tables), features, **options)
        case MovieLens100KConfig():
            dataset = MovieLens100K(
                config.data.path,
                seed=config.seed,
                earlier_items=config.data.earlier_items,
                labels=config.data.labels,
            )
            tables, features = merged_model(config, dataset)
        case PreparedConfig():
            dataset = PreparedData(config.data.path, seed=config.seed)
            declared = config.data.dense_features
            if declared not in (None, dataset.dense_features):
                raise ConfigError(
                    f"data.dense_features: is {declared}, the data have "
                    f"{dataset.dense_features}; leave it out, or correct it"
                )
            tables, features = merged_model(config, dataset)
        case OwnDataConfig():
            dataset = _own_dataset(config.data, config.seed)
            tables, features = merged_model(config, dataset)
    check_tasks(config, dataset)
    return dataset, tables, features


def check_tasks(config: ExperimentConfig, dataset: Dataset | Description) -> None:
    """Raises ``ConfigError`` if the model has other tasks than the data have labels, as
    far as the data name them, or there are weights for others."""
    tasks, labels = tasks_of(config.model), ()
    if isinstance(config.data, MovieLens100KConfig):
        labels = tuple(config.data.labels)
    if isinstance(dataset, PreparedData):
        labels = dataset.manifest.labels
    if tasks != labels and not isinstance(config.data, OwnDataConfig):
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


def _own_dataset(config: OwnDataConfig, seed: int) -> Dataset:
    dataset = call_named(config.kind, **config.options, seed=seed)
    members = [name for name in vars(Dataset) if not name.startswith("_")]
    if missing := [name for name in members if not hasattr(dataset, name)]:
        raise ConfigError(
            f"{config.kind}: has no {', '.join(missing)}; data.Dataset says what a "
            "dataset must have"
        )
    return dataset


def check_batch_size(config: ExperimentConfig, dataset: Dataset) -> None:
    """Raises ``ConfigError`` if a batch is larger than an epoch of the data."""
    batch, samples = config.train.batch_size, dataset.train_samples
    if batch > samples:
        more = ", or raise data.train_samples" * (config.data.kind == "synthetic")
        raise ConfigError(
            f"train.batch_size is {batch:,}, more than the {samples:,} training "
            f"samples, some of which every batch would hold twice; lower it{more}"
        )


def check_batch_memory(
    samples: int, dense_features: int, features: Sequence[FeatureSpec]
) -> None:
    """Raises ``ConfigError`` if a batch is larger than the memory of this host.

    Args:
      samples: samples that this process holds at a time: those of a batch, or all that
        are sorted for ``train.hot_batches``.
      dense_features, features: inputs of the model.
    """
    ids = sum(f.hotness * (2 if f.weighted else 1) for f in features)
    needed = 4 * samples * (1 + dense_features + ids)
    if needed > (memory := host_memory_bytes()):
        raise ConfigError(
            f"train.batch_size: {samples:,} samples of {ids:,} ids and weights take "
            f"{needed / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f} GB of "
            "memory; lower it, or hotness"
        )


def hot_rows(plan: Plan) -> dict[str, int | tuple[int, ...]]:
    """Returns for each feature how many of its table's first rows are on all devices;
    or the ids of these rows, if they are not the first."""
    rows = {p.table.name: p.hot_ids or p.replicated_rows for p in plan.placements}
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
            f"no hot rows, so no batch is of hot rows alone: {', '.join(without)}; set "
            "embedding.tables.NAME.hot_rows for each. Tables of up to "
            f"{SMALL_TABLE_BYTES >> 20} MiB need no setting: they are replicated"
        )
    return HotBatches(dataset, hot_rows(plan), config.train.batch_size)


def check_drawing_memory(features: Sequence[FeatureSpec]) -> None:
    """Raises ``ConfigError`` if the hotness of a feature is too large for this host."""
    hottest = max(features, key=lambda feature: feature.hotness)
    needed = CALIBRATION_SAMPLES * BYTES_AN_ID * hottest.hotness
    if needed > (memory := host_memory_bytes()):
        raise ConfigError(
            f"feature {hottest.name!r}: hotness is {hottest.hotness:,}; the "
            f"{CALIBRATION_SAMPLES:,} samples that synthetic data begin with then take "
            f"{needed / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f} GB of memory"
        )


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


def sample_accesses(
    config: ExperimentConfig,
    samples: int,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Statistics:
    """Returns statistics of the first training samples, as the model would see them.

    Args:
      config: experiment config.
      samples: number of samples, rounded to whole batches; at most an epoch.
      progress: iterates over the steps, and may show progress.

    Raises:
      ConfigError: if the config does not fit the dataset.
      DataError: if the dataset is missing or damaged, or a sample is bad.
    """
    dataset, tables, features = read_dataset(config)
    check = batch_checker(config, dataset, tables, features)
    samples = min(samples, dataset.train_samples)
    size = min(samples, config.train.batch_size)
    steps = range(samples // size)
    batches = (check(dataset.train_batch(step, size)) for step in progress(steps))
    halves = accesses.count_halves(batches, features)
    return Statistics(
        len(steps) * size,
        {f.name: _feature_access([half[f.name] for half in halves]) for f in features},
        {
            table.name: _table_access(
                table.rows,
                [
                    accesses.merge(
                        half[feature.name].counts()
                        for feature in features
                        if feature.table == table.name
                    )
                    for half in halves
                ],
            )
            for table in tables
            if not table.is_dynamic
        },
    )


def _feature_access(halves: Sequence[accesses.BagCounter]) -> FeatureAccess:
    return FeatureAccess(
        sum(half.accesses for half in halves) / sum(half.samples for half in halves),
        max(half.max_hotness for half in halves),
        len(accesses.merge(half.counts() for half in halves)[0]),
    )


def _table_access(
    rows: int, halves: Sequence[tuple[np.ndarray, np.ndarray]]
) -> TableAccess:
    """Returns the accesses of a table's rows, as each half of a sample counted them."""
    histogram = Histogram.from_counts(*accesses.merge(halves))
    return TableAccess(rows, histogram, HalfAgreement.from_counts(*halves))


def declared_model(
    config: ExperimentConfig, need: str
) -> tuple[tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Returns the tables and features that the config itself declares; errors say with
    ``need`` why it must.

    A config without features gets one feature for each table.
    """
    embedding = config.embedding
    missing = [
        f"embedding.tables.{name}.rows: {need}"
        for name, table in embedding.tables.items()
        if table.rows is None
    ]
    if not embedding.tables:
        missing = [f"embedding.tables: has none; {need}"]
    if missing:
        raise ConfigError("\n".join(missing))
    tables = tuple(
        embedding.table(name, table.rows or 0)
        for name, table in embedding.tables.items()
    )
    if not embedding.features:
        return tables, tuple(FeatureSpec(table.name) for table in tables)
    features = tuple(
        FeatureSpec(
            name,
            feature.table or name,
            feature.hotness or 1,
            feature.pooling or "sum",
            feature.weighted,
        )
        for name, feature in embedding.features.items()
    )
    return tables, features


def _drawn(
    config: ExperimentConfig, tables: Sequence[TableSpec]
) -> tuple[TableSpec, ...]:
    """Returns the tables, dynamic ones with as many rows as unique ids are drawn."""
    rows = {name: table.rows for name, table in config.embedding.tables.items()}
    return tuple(
        TableSpec(table.name, rows[table.name] or 0, table.dim)
        if table.is_dynamic
        else table
        for table in tables
    )


def merged_model(
    config: ExperimentConfig, dataset: Dataset | Description
) -> tuple[tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Returns the dataset's tables and features, with the changes of the config."""
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
            if getattr(changes, key) and getattr(changes, key) != getattr(feature, key)
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
            feature = dataclasses.replace(
                feature,
                hotness=changes.hotness or feature.hotness,
                pooling=changes.pooling or feature.pooling,
            )
        features.append(feature)
    return tuple(tables), tuple(features)


def _unknown(section: str, names: Iterable[str], own: Sequence[str]) -> list[str]:
    return [
        f"embedding.{section}.{name}: the dataset has none of that name; "
        + nearest(name, own)
        for name in names
        if name not in own
    ]
