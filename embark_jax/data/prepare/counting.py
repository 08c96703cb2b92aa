"""Second stage: counts the values of the training samples, makes vocabularies, and fits
transforms of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.config import Config
from embark_jax._base.files import write_arrow
from embark_jax.data.listed import File, file_of
from embark_jax.data.manifest import vocabulary_file
from embark_jax.data.pipeline import in_order
from embark_jax.data.prepare.numbers import FittedNumber, NumberFit, in_sample
from embark_jax.data.prepare.parsing import SamplePart
from embark_jax.data.prepare.recipe import TRAIN, Recipe, labels_of
from embark_jax.data.prepare.report import FeatureSeen, Report, bags_seen, values_seen
from embark_jax.data.prepare.vocabulary import FIRST_ID, ValueCounter, count_values


class PlacedPart(NamedTuple):
    """A part, the position of its first sample among all, and a function that returns
    the split of each of its samples."""

    part: SamplePart
    start: int
    splits: Callable[[pa.Table], np.ndarray]


class Counted(Config):
    """What encoding needs.

    Attributes:
      table_rows: number of rows of each table.
      hashed_tables: tables whose values are hashed.
      hotness: hotness of each feature: its longest bag, as far as bags are kept.
      numbers: transforms by column.
      vocabularies: the files of the tables that are not hashed.
      report: the report that a user reads.
    """

    table_rows: Mapping[str, int]
    hashed_tables: tuple[str, ...]
    hotness: Mapping[str, int]
    numbers: Mapping[str, FittedNumber]
    vocabularies: tuple[File, ...]
    report: Report


class _CountedPart(NamedTuple):
    """The counts of a part: labels and numbers of its training samples, the values of
    each feature whose values are counted, and its bags."""

    labels: np.ndarray
    numbers: dict[str, pa.Array]
    values: dict[str, pa.Table]
    bags: dict[str, FeatureSeen]


def count(
    recipe: Recipe,
    parts: Sequence[PlacedPart],
    out: Path,
    *,
    min_count: int,
    max_rows: int,
    hashed: Mapping[str, int],
    workers: int,
    progress: Callable[[int], None],
) -> Counted:
    """Counts the values of the training samples; writes the vocabularies.

    Args:
      recipe: the recipe of the data set.
      parts: the parts of the data set.
      out: folder of the prepared data, for the vocabularies.
      min_count: number of samples that a value needs for a row of its own.
      max_rows: most rows of a table; a table with more values is hashed to them.
      hashed: tables that are hashed whatever their values, with their rows.
      workers: number of parts processed at once.
      progress: called with the number of finished parts.
    """
    ranges = {f.name for f in recipe.features if f.name in recipe.numbers}
    features = [f for f in recipe.features if f.name not in ranges]
    counters = {
        f.table: ValueCounter(0 if f.table in hashed else max_rows) for f in features
    }
    fits = {name: NumberFit(column) for name, column in recipe.all_numbers.items()}
    bags = {f.name: FeatureSeen(table=f.table, longest=f.hotness) for f in features}
    longest = {}
    if recipe.columns is not None:
        longest = {n: column.longest for n, column in recipe.columns.features.items()}
    total = sum(placed.part.rows for placed in parts)

    def count_part(placed: PlacedPart) -> tuple[np.ndarray, _CountedPart]:
        samples = placed.part.read()
        is_train = placed.splits(samples) == TRAIN
        train = samples.filter(pa.array(is_train))
        values, seen = {}, {}
        for feature in features:
            name = feature.name
            everywhere = bags_seen(samples[name].combine_chunks(), longest.get(name))
            ids = everywhere[0][is_train]
            seen[name] = FeatureSeen(
                table=feature.table,
                samples=len(ids),
                empty=int((ids == 0).sum()),
                ids=int(ids.sum()),
                longest=int(everywhere[0].max(initial=1)),
                cut=everywhere[1],
            )
            # Values that a history repeats were counted where they occurred.
            repeats = recipe.history and name in recipe.history.sequences
            is_hashed = feature.table in hashed
            if not (is_hashed or repeats or counters[feature.table].too_many):
                values[name] = count_values(train[name].combine_chunks())
        numbers = {name: train[name].combine_chunks() for name in fits}
        labels = labels_of(train)
        sampled = in_sample(placed.start, len(samples), total)[is_train]
        return sampled, _CountedPart(labels, numbers, values, seen)

    positive, samples = np.zeros(()), 0
    counting = in_order(count_part, parts, workers=workers, depth=workers)
    for number, (sampled, found) in enumerate(counting, 1):
        positive = positive + found.labels.sum(axis=0, dtype=np.float64)
        samples += len(found.labels)
        for name, fit in fits.items():
            fit.add(found.numbers[name], sampled)
        for feature in features:
            bags[feature.name] = _both(bags[feature.name], found.bags[feature.name])
            if (values := found.values.get(feature.name)) is not None:
                counters[feature.table].add(values)
        progress(number)

    rows, tables, hashed_tables, vocabularies = {}, {}, [], []
    for table, counter in counters.items():
        if table in hashed or counter.too_many:
            rows[table] = hashed.get(table, max_rows)
            hashed_tables.append(table)
            continue
        values = counter.values()
        tables[table] = values_seen(values)
        values = values.filter(pc.field("count") >= min_count)
        vocabularies.append(_write_vocabulary(out, table, values))
        rows[table] = FIRST_ID + len(values)
    fitted = {name: fit.fitted() for name, fit in fits.items()}
    hotness = {name: _hotness(each, longest.get(name)) for name, each in bags.items()}
    return Counted(
        table_rows=rows | {name: fitted[name].rows for name in ranges},
        hotness=hotness | dict.fromkeys(ranges, 1),
        hashed_tables=tuple(hashed_tables),
        numbers=fitted,
        vocabularies=tuple(vocabularies),
        report=Report(
            positive=float(np.mean(positive) / max(samples, 1)),
            labels={
                name: float(ones / max(samples, 1))
                for name, ones in zip(recipe.labels, np.ravel(positive), strict=False)
            },
            features=bags,
            tables=tables,
            numbers={name: fit.seen() for name, fit in fits.items()},
        ),
    )


def _hotness(seen: FeatureSeen, longest: int | None) -> int:
    return seen.longest if longest is None else min(seen.longest, longest)


def _both(one: FeatureSeen, other: FeatureSeen) -> FeatureSeen:
    return FeatureSeen(
        table=one.table,
        samples=one.samples + other.samples,
        empty=one.empty + other.empty,
        ids=one.ids + other.ids,
        longest=max(one.longest, other.longest),
        cut=one.cut + other.cut,
    )


def _write_vocabulary(folder: Path, table: str, values: pa.Table) -> File:
    """Writes the values of a table's ids, and returns the file."""
    file = vocabulary_file(table)
    write_arrow(folder / file, values)
    return file_of(folder, file)
