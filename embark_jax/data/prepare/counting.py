"""Second stage: counts the values of the training samples, makes vocabularies, and fits
transforms of numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.files import write_arrow
from embark_jax.data.batch import DataError
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import vocabulary_file
from embark_jax.data.pipeline import Workers
from embark_jax.data.prepare.column_report import (
    FeatureSeen,
    Report,
    bags_seen,
    values_seen,
)
from embark_jax.data.prepare.extension import Earlier
from embark_jax.data.prepare.numbers import FittedNumber, NumberFit, in_sample
from embark_jax.data.prepare.parsing import SampleChunk
from embark_jax.data.prepare.recipe import TRAIN, Recipe, labels_of
from embark_jax.data.prepare.vocabulary import (
    FIRST_ID,
    MISSING_ID,
    ValueCounter,
    Vocabulary,
    as_row_numbers,
    count_values,
    flat,
    read_row_numbers,
)
from embark_jax.data.row_order import rows_by_counts


class SplitChunk(NamedTuple):
    """A chunk of samples, the position of its first one among all, and a function that
    returns the split of each; and one that returns the time window of each, if data are
    cut into windows."""

    samples: SampleChunk
    start: int
    splits: Callable[[pa.Table], np.ndarray]
    windows: Callable[[pa.Table], np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Counted:
    """What encoding needs.

    Attributes:
      table_rows: number of rows of each table.
      hashed_tables: tables whose values are hashed.
      hotness: hotness of each feature: its longest bag, as far as bags are kept.
      numbers: transforms by column.
      vocabularies: the files of the tables that are not hashed, and of those whose rows
        are numbered by frequency.
      report: the report that a user reads.
    """

    table_rows: Mapping[str, int]
    hashed_tables: tuple[str, ...]
    hotness: Mapping[str, int]
    numbers: Mapping[str, FittedNumber]
    vocabularies: tuple[HashedFile, ...]
    report: Report


class _Counts(NamedTuple):
    """The counts of a chunk: labels and numbers of its training samples, the values of
    each feature whose values are counted, the ids of each whose rows are numbered by
    frequency, and its bags."""

    labels: np.ndarray
    numbers: dict[str, pa.Array]
    values: dict[str, pa.Table]
    ids: dict[str, tuple[np.ndarray, np.ndarray]]
    bags: dict[str, FeatureSeen]


def count(
    recipe: Recipe,
    chunks: Sequence[SplitChunk],
    out: Path,
    *,
    min_count: int,
    max_rows: int,
    hashed: Mapping[str, int],
    by_frequency: Collection[str],
    earlier: Earlier | None,
    vocabularies: Mapping[str, pa.Table],
    workers: Workers,
) -> Counted:
    """Counts the values of the training samples; writes the vocabularies.

    Args:
      recipe: the recipe of the data set.
      chunks: the samples of the data set.
      out: folder of the prepared data, for the vocabularies.
      min_count: number of samples that a value needs for a row of its own.
      max_rows: most rows of a table; a table with more values is hashed to them.
      hashed: tables that are hashed whatever their values, with their rows.
      by_frequency: tables that are hashed or have row numbers, whose rows are numbered
        by frequency.
      earlier: data whose rows and transforms are kept; None if there are none.
      vocabularies: values of tables that were counted elsewhere, in order.
      workers: threads; progress is a number of chunks.

    Raises:
      DataError: if a table of row numbers has several numbers of rows.
    """
    ranges = {f.name for f in recipe.features if f.name in recipe.numbers}
    features = [f for f in recipe.features if f.name not in ranges]
    numbered = numbered_tables(recipe)
    counters = {
        f.table: ValueCounter(0 if f.table in hashed else max_rows)
        for f in features
        if f.table not in numbered
    }
    fits = {name: NumberFit(column) for name, column in recipe.all_numbers.items()}
    bags = {f.name: FeatureSeen(table=f.table, longest=f.hotness) for f in features}
    ids_of = {
        f.table: functools.partial(as_row_numbers, rows=numbered[f.table], name=f.name)
        if f.table in numbered
        else Vocabulary(None, hashed[f.table]).ids
        for f in features
        if f.table in by_frequency
    }
    rows_of_ids = {**numbered, **hashed}
    frequencies = {t: np.zeros(rows_of_ids[t], np.int64) for t in by_frequency}
    longest = {}
    if recipe.columns is not None:
        longest = {n: column.longest for n, column in recipe.columns.features.items()}
    total = sum(chunk.samples.rows for chunk in chunks)

    def count_chunk(chunk: SplitChunk) -> tuple[np.ndarray, _Counts]:
        samples = chunk.samples.read()
        is_train = chunk.splits(samples) == TRAIN
        train = samples.filter(pa.array(is_train))
        values, ids_seen, bags = {}, {}, {}
        for feature in features:
            name = feature.name
            column = samples[name].combine_chunks()
            lengths, cut = bags_seen(column, longest.get(name))
            ids = lengths[is_train]
            bags[name] = FeatureSeen(
                table=feature.table,
                samples=len(ids),
                empty=int((ids == 0).sum()),
                ids=int(ids.sum()),
                longest=int(lengths.max(initial=1)),
                cut=cut,
            )
            # Values that a history repeats were counted where they occurred.
            repeats = recipe.history and name in recipe.history.sequences
            uncounted = feature.table in {*hashed, *numbered, *vocabularies}
            if not (uncounted or repeats or counters[feature.table].too_many):
                values[name] = count_values(train[name].combine_chunks())
            if feature.table in frequencies and not repeats:
                ids = ids_of[feature.table](flat(train[name].combine_chunks()))
                ids_seen[name] = np.unique(ids[ids >= 0], return_counts=True)
        numbers = {name: train[name].combine_chunks() for name in fits}
        labels = labels_of(train)
        sampled = in_sample(chunk.start, len(samples), total)[is_train]
        return sampled, _Counts(labels, numbers, values, ids_seen, bags)

    positive, samples = np.zeros(()), 0
    for sampled, counts in workers.map("count", count_chunk, chunks):
        positive = positive + counts.labels.sum(axis=0, dtype=np.float64)
        samples += len(counts.labels)
        for name, fit in fits.items():
            fit.add(counts.numbers[name], sampled)
        for feature in features:
            bags[feature.name] = _both(bags[feature.name], counts.bags[feature.name])
            if (values := counts.values.get(feature.name)) is not None:
                counters[feature.table].add(values)
            if feature.name in counts.ids:
                ids, times = counts.ids[feature.name]
                frequencies[feature.table][ids] += times

    rows, tables = dict(numbered), {}
    hashed_tables, files = [], []
    for table, counter in counters.items():
        if counter.too_many and earlier is not None and table not in hashed:
            earlier.refuse(table, max_rows)
        if table in hashed or counter.too_many:
            rows[table] = hashed.get(table, max_rows)
            hashed_tables.append(table)
            continue
        values = counter.values()
        if table in vocabularies:
            values = vocabularies[table]
        tables[table] = values_seen(values)
        values = values.filter(pc.field("count") >= min_count)
        if earlier is not None:
            values = earlier.extended(table, values, max_rows)
        files.append(_write_vocabulary(out, table, values))
        rows[table] = FIRST_ID + len(values)
    files += [
        _write_row_numbers(out, table, counts, table in hashed, earlier)
        for table, counts in frequencies.items()
    ]
    fitted = {name: fit.fitted() for name, fit in fits.items()}
    hotness = {name: _hotness(seen, longest.get(name)) for name, seen in bags.items()}
    if earlier is not None:
        fitted |= earlier.manifest.numbers
        before = earlier.manifest.features
        hotness = {n: max(ids, before[n].hotness) for n, ids in hotness.items()}
    return Counted(
        table_rows=rows | {name: fitted[name].rows for name in ranges},
        hotness=hotness | dict.fromkeys(ranges, 1),
        hashed_tables=tuple(hashed_tables),
        numbers=fitted,
        vocabularies=tuple(files),
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


def numbered_tables(recipe: Recipe) -> dict[str, int]:
    """Returns the rows of the tables whose row numbers the data have themselves."""
    rows_of: dict[str, int] = {}
    columns = {} if recipe.columns is None else recipe.columns.features
    for feature in recipe.features:
        column = columns.get(feature.name)
        rows = None if column is None else column.rows
        if rows_of.setdefault(feature.table, rows or 0) != (rows or 0):
            raise DataError(
                f"features.{feature.name}.rows: is {rows}, another column of table "
                f"{feature.table!r} says otherwise; columns of one table must agree"
            )
    return {table: rows for table, rows in rows_of.items() if rows}


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


def _write_vocabulary(folder: Path, table: str, values: pa.Table) -> HashedFile:
    """Writes the values of a table's ids, and returns the file."""
    file = vocabulary_file(table)
    write_arrow(folder / file, values)
    return HashedFile.of(folder, file)


def _write_row_numbers(
    folder: Path,
    table: str,
    counts: np.ndarray,
    has_missing: bool,
    earlier: Earlier | None,
) -> HashedFile:
    """Writes the row of each hash or number of a table, and returns the file: by how
    often they occur, or as in earlier data; missing values keep their row."""
    if earlier is not None:
        rows = read_row_numbers(earlier.folder / vocabulary_file(table))
    else:
        if has_missing:
            counts[MISSING_ID] = counts.max() + 1
        rows = rows_by_counts(counts)
    file = vocabulary_file(table)
    write_arrow(folder / file, pa.table({"row": rows}))
    return HashedFile.of(folder, file)
