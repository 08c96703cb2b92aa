"""From a config to a dataset, the tables that it needs, and their statistics."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from embark_jax.config import (
    ConfigError,
    ExperimentConfig,
    MovieLens100KConfig,
    PreparedConfig,
    SyntheticConfig,
    nearest,
)
from embark_jax.data import (
    BatchChecker,
    Dataset,
    MovieLens100K,
    PreparedData,
    SyntheticClicks,
    accesses,
)
from embark_jax.planner.request.histogram import Histogram
from embark_jax.planner.request.statistics import FeatureAccess, Statistics, TableAccess
from embark_jax.tables import FeatureSpec, TableSpec


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turns a ``ValueError`` into a ``ConfigError`` that names what is wrong."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error


def read_dataset(
    config: ExperimentConfig,
) -> tuple[Dataset, tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """The dataset, and the model's tables and features.

    Raises:
      ConfigError: if the config does not fit the dataset.
      DataError: if the dataset is missing or damaged.
    """
    match config.data:
        case SyntheticConfig():
            options = config.data.model_dump(exclude={"kind"})
            with blaming("embedding"):
                tables, features = _declared_model(config)
                dataset = SyntheticClicks(tables, features, **options, seed=config.seed)
        case MovieLens100KConfig():
            dataset = MovieLens100K(
                config.data.path,
                seed=config.seed,
                earlier_items=config.data.earlier_items,
            )
            tables, features = _merged_model(config, dataset)
        case PreparedConfig():
            dataset = PreparedData(config.data.path, seed=config.seed)
            tables, features = _merged_model(config, dataset)
    return dataset, tables, features


def batch_checker(
    config: ExperimentConfig,
    dataset: Dataset,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
) -> BatchChecker:
    """Checks the dataset's batches against the tables."""
    return BatchChecker(
        features,
        {table.name: table.rows for table in tables},
        dataset.dense_features,
        config.embedding.on_bad_id,
    )


def sample_accesses(
    config: ExperimentConfig,
    samples: int,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Statistics:
    """Statistics of the first training samples, as the model would see them.

    Args:
      config: of the experiment.
      samples: to read, rounded to whole batches; at most an epoch.
      progress: goes through the steps, and may show how far it is.

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
    bags = accesses.count(batches, features)
    histograms = {
        table.name: Histogram.from_counts(
            *accesses.merge(
                bags[feature.name].counts()
                for feature in features
                if feature.table == table.name
            )
        )
        for table in tables
    }
    return Statistics(
        len(steps) * size,
        {
            name: FeatureAccess(
                counter.accesses / counter.samples,
                counter.max_hotness,
                len(counter.counts()[0]),
            )
            for name, counter in bags.items()
        },
        {t.name: TableAccess(t.rows, histograms[t.name]) for t in tables},
    )


def _declared_model(
    config: ExperimentConfig,
) -> tuple[tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """Tables and features that the config itself declares.

    A config without features has one for each table.
    """
    embedding = config.embedding
    missing = [
        f"embedding.tables.{name}.rows: synthetic data needs it"
        for name, table in embedding.tables.items()
        if table.rows is None
    ]
    if not embedding.tables:
        missing = ["embedding.tables: synthetic data needs at least one table"]
    if missing:
        raise ConfigError("\n".join(missing))
    tables = tuple(
        TableSpec(name, table.rows or 0, table.dim or embedding.dim, table.init_scale)
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


def _merged_model(
    config: ExperimentConfig, dataset: Dataset
) -> tuple[tuple[TableSpec, ...], tuple[FeatureSpec, ...]]:
    """The dataset's tables and features, with what the config changes of them."""
    embedding = config.embedding
    own = [feature.name for feature in dataset.features]
    problems = [
        *_unknown("tables", embedding.tables, list(dataset.table_rows)),
        *_unknown("features", embedding.features, own),
        *(
            f"embedding.features.{feature.name}.{key}: is {getattr(mine, key)!r}, the "
            f"dataset says {getattr(feature, key)!r}"
            for feature in dataset.features
            if (mine := embedding.features.get(feature.name))
            for key in ("table", "weighted")
            if getattr(mine, key) and getattr(mine, key) != getattr(feature, key)
        ),
    ]
    if embedding.on_bad_id == "error":  # which would end the run at any step
        problems += [
            f"embedding.tables.{name}.rows: is {mine.rows}, the data need {rows}; "
            "leave it out, or set embedding.on_bad_id to drop or hash"
            for name, rows in dataset.table_rows.items()
            if (mine := embedding.tables.get(name)) and (mine.rows or rows) < rows
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    tables = []
    for name, rows in dataset.table_rows.items():
        mine = embedding.tables.get(name)
        if mine is None:
            tables.append(TableSpec(name, rows, embedding.dim))
        else:
            tables.append(
                TableSpec(
                    name, mine.rows or rows, mine.dim or embedding.dim, mine.init_scale
                )
            )
    features = []
    for feature in dataset.features:
        mine = embedding.features.get(feature.name)
        if mine is not None:
            feature = dataclasses.replace(
                feature,
                hotness=mine.hotness or feature.hotness,
                pooling=mine.pooling or feature.pooling,
            )
        features.append(feature)
    return tuple(tables), tuple(features)


def _unknown(section: str, given: Any, known: Sequence[str]) -> list[str]:
    return [
        f"embedding.{section}.{name}: the dataset has none of that name; "
        + nearest(name, known)
        for name in given
        if name not in known
    ]
