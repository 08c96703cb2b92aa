"""The third stage: values become ids, and samples batches. Raw rows that are scored
later go through the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax._base.files import replacing
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import LABEL, SPLITS, VALUES, Manifest, SampleFile
from embark_jax.data.pipeline import Progress
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.numbers import FittedNumber
from embark_jax.data.prepare.recipe import IN_FILE, SPLIT, WEIGHT, WINDOW
from embark_jax.data.prepare.vocabulary import (
    FIRST_ID,
    MISSING_ID,
    RARE_ID,
    hash_of,
    is_text,
)
from embark_jax.data.table_values import TableValues
from embark_jax.plans.tables import HASHED_KEYS, PADDING_ID

CHUNK_ROWS = 2**18
"""How many samples are encoded together, and are in a file at most."""


def values_of(column: str, type_: str) -> str:
    """Returns SQL of the single values of a column, which may have lists."""
    return f"unnest({column})" if type_.endswith("]") else column


def vocabulary_table(table: str) -> str:
    """Returns the table of a database that has the values of a table, and their ids."""
    return sql.name(f"values of {table.encode().hex()}")  # DuckDB takes A for a


def add_vocabularies(database: sql.Database, values: TableValues) -> None:
    """Makes tables of the vocabularies of an encoding.

    Raises:
      DataError: if one is not as it was written, or its values are texts where those of
        features are whole numbers, or the other way round.
    """
    manifest = values.manifest
    texts = {manifest.features[name].table for name in manifest.text_features}
    for table in manifest.tables_with_values:
        keys = values.keys(table)
        if len(keys) and is_text(keys.type) != (table in texts):
            raise DataError(
                f"{values.folder / manifests.vocabulary_file(table)}: column 'key' has "
                f"{keys.type}, must have {'text' if table in texts else 'integers'}, "
                f"as the features of table {table!r}"
            )
        known = pa.table({"key": keys, "id": np.arange(FIRST_ID, FIRST_ID + len(keys))})
        database.run(
            f"CREATE TABLE {vocabulary_table(table)} AS FROM known", known=known
        )


class SampleEncoder:
    """Turns samples into batches.

    Args:
      database: for the queries; it has the vocabularies.
      values: describes the batches, and has the rows of hashes and numbers that are
        numbered by frequency.

    Attributes:
      cut: for each feature, how many values of too long lists were left out.
    """

    def __init__(self, database: sql.Database, values: TableValues):
        self._database, self._manifest = database, values.manifest
        self._layout = self._manifest.layout()
        self._categories = {
            name: feature
            for name, feature in self._manifest.features.items()
            if name not in self._manifest.numbers
        }
        self.cut = dict.fromkeys(self._manifest.features, 0)
        self._rows_of = {
            table: values.row_numbers(table) for table in self._manifest.by_frequency
        }

    def facts(
        self, samples: str, types: Mapping[str, str], are_few: bool = False
    ) -> pa.Table:
        """Returns all columns of samples but categories, in the order of the file.

        Args:
          samples: a query that gives neighbouring samples of a file.
          types: types of their columns.
          are_few: whether the query is planned once, as in ``batch``.
        """
        others = [name for name in types if name not in self._categories]
        ask = self._database.planned if are_few else self._database.table
        return ask(
            f"SELECT {', '.join(map(sql.name, others))} FROM ({samples}) "
            f"ORDER BY {sql.name(IN_FILE)}"
        ).combine_chunks()

    def batch(
        self,
        samples: str,
        types: Mapping[str, str],
        facts: pa.Table,
        are_few: bool = False,
    ) -> Batch:
        """Returns samples as a batch. A missing label is NaN, a missing weight 1.

        Args:
          samples, types: as in ``facts``.
          facts: its result.
          are_few: whether to ask for all features at once, by a query that is planned
            once. Of many samples the joins of all features take much memory.
        """
        manifest, count = self._manifest, len(facts)
        first = facts[IN_FILE][0].as_py() if count else 0
        batch = Batch.of(self._layout, self._layout.padding(count))
        if LABEL in types:
            label = facts[LABEL].combine_chunks()
            if pa.types.is_fixed_size_list(label.type):
                label = label.flatten()
            batch.labels[...] = label.to_numpy(zero_copy_only=False).reshape(
                batch.labels.shape
            )
        if batch.sample_weights is not None:
            batch.sample_weights[...] = 1
            if WEIGHT in types:
                weights = facts[WEIGHT].combine_chunks().fill_null(1)
                batch.sample_weights[...] = weights.to_numpy(zero_copy_only=False)
        as_it_is = FittedNumber()
        for column, name in enumerate(manifest.dense):
            number = manifest.numbers.get(name, as_it_is)
            batch.dense[:, column] = number.values(facts[name].combine_chunks())
        of_features: Mapping[str, Any] = batch.ids
        for name in manifest.features.keys() & manifest.numbers.keys():
            values = facts[name].combine_chunks()
            of_features[name][...] = manifest.numbers[name].ranges(values)[:, None]
        queries = [self._ids(samples, name, types[name]) for name in self._categories]
        at_once = None
        if are_few and queries:
            at_once = self._database.planned(" UNION ALL ".join(queries))
        for number, (name, feature) in enumerate(self._categories.items()):
            hotness = feature.stored_hotness
            ids = np.full((count, hotness), PADDING_ID, np.int64)
            found = at_once
            if found is None:
                found = self._database.table(queries[number])
            f, n, place, id_ = (column.to_numpy() for column in found.columns)
            mine = f == number
            kept = mine & (place >= 0) & (place < hotness)
            self.cut[name] += int(mine.sum() - kept.sum())
            ids[n[kept] - first, place[kept]] = id_[kept]
            if feature.table in self._rows_of:
                ids = np.where(ids < 0, ids, self._rows_of[feature.table][ids])
            of_features[name][...] = ids
        return batch

    def _ids(self, samples: str, name: str, type_: str) -> str:
        """Returns SQL of the number of a feature, and of the sample, place and id of
        each of its values."""
        feature, manifest = self._categories[name], self._manifest
        table, column = feature.table, sql.name(name)
        place, key, number = "0::BIGINT", column, [*self._categories].index(name)
        if type_.endswith("]"):
            key, place = f"unnest({column})", f"generate_subscripts({column}, 1) - 1"
            if feature.pooling == "none":  # the last event is at the end
                place += f" + {feature.stored_hotness} - len({column})"
        values = (
            f"(SELECT {sql.name(IN_FILE)} AS n, {key} AS key, {place} AS place FROM "
            f"({samples}))"
        )
        if table in manifest.numbered_tables:
            id_, values = "key", f"{values} WHERE key IS NOT NULL"
        elif table in manifest.hashed_tables:
            id_ = hash_of("key", manifest.table_rows[table])
        else:
            id_ = f"coalesce(id, {RARE_ID})"
            values += f" LEFT JOIN {vocabulary_table(table)} USING (key)"
        id_ = f"CASE WHEN key IS NULL THEN {MISSING_ID} ELSE {id_} END"
        return f"SELECT {number} AS f, n, place, {id_} AS id FROM {values}"

    def shared_values(
        self, samples: str, types: Mapping[str, str], batch: Batch, places: np.ndarray
    ) -> pa.Table:
        """Returns for each feature of one id a sample, whose table may have rows of
        several values, the values of the samples with such a row, and null of others.

        Args:
          samples, types: a query that gives samples of a file, and its types.
          batch: some of these samples.
          places: their places in the file, ascending.
        """
        manifest, columns = self._manifest, {}
        exact = {*manifest.numbers, *manifest.numbered_tables}
        shared = {}
        for name, feature in manifest.features.items():
            is_key = manifest.table_rows[feature.table] == HASHED_KEYS
            if feature.hotness > 1 or {name, feature.table} & exact or is_key:
                continue
            ids = batch.ids[name][:, 0]
            is_hashed = feature.table in manifest.hashed_tables
            column = f"shared.s{len(columns)}"
            shared[f"s{len(columns)}"] = ids >= RARE_ID if is_hashed else ids == RARE_ID
            value = f"samples.{sql.name(name)}" + "[1]" * types[name].endswith("]")
            columns[name] = f"if({column}, {value}, NULL) AS {sql.name(name)}"
        if not columns:
            return pa.table({})
        return self._database.table(
            f"SELECT {', '.join(columns.values())} FROM ({samples}) AS samples JOIN "
            f"shared USING ({sql.name(IN_FILE)}) ORDER BY {sql.name(IN_FILE)}",
            shared=pa.table({**shared, IN_FILE: places}),
        )


def encode(
    database: sql.Database,
    rows: Sequence[int],
    types: Mapping[str, str],
    out: Path,
    manifest: Manifest,
    held_out: Collection[str],
    progress: Progress,
) -> Iterator[tuple[str, SampleFile]]:
    """Writes files of samples, and yields each with its split.

    Args:
      database: has samples and vocabularies.
      rows: number of samples of each raw file.
      types: types of the columns of samples.
      out: folder for the files.
      manifest: the manifest, complete but for the files.
      held_out: splits whose shared values are kept, for metrics by groups.
      progress: is told how many samples are done.
    """
    encoder, done = SampleEncoder(database, TableValues(out, manifest)), 0
    chunks = [
        (file, first)
        for file, n in enumerate(rows)
        for first in range(0, n, CHUNK_ROWS)
    ]
    place = sql.name(IN_FILE)
    for file, first in chunks:
        samples = (
            f"SELECT * FROM {sql.name(f'samples {file}')} WHERE {place} >= {first} AND "
            f"{place} < {first + CHUNK_ROWS}"
        )
        facts = encoder.facts(samples, types)
        batch = encoder.batch(samples, types, facts)
        places, splits = facts[IN_FILE].to_numpy(), facts[SPLIT].to_numpy()
        windows = facts[WINDOW].to_numpy() if WINDOW in types else None
        for split, split_name in enumerate(SPLITS):
            chosen = np.flatnonzero(splits == split)
            for window, mine in _by_window(windows, chosen):
                folder = split_name if window is None else f"{split_name}/{window}"
                name = f"{folder}/{file:03}-{first // CHUNK_ROWS:06}"
                part = batch.take(mine)
                written = manifests.write_samples(
                    out, f"{name}.arrow", part, manifest, window
                )
                if split_name in held_out:
                    values = encoder.shared_values(samples, types, part, places[mine])
                    kept = f"{VALUES}/{name}.parquet"
                    with replacing(out / kept) as scratch:
                        pq.write_table(values, scratch)
                    values_file = HashedFile.of(out, kept)
                    written = written.model_copy(update={"values": values_file})
                yield split_name, written
        done += len(batch)
        progress("encode", done, sum(rows))


def _by_window(
    windows: np.ndarray | None, chosen: np.ndarray
) -> Iterator[tuple[int | None, np.ndarray]]:
    """Yields the samples of each time window among the chosen ones, if there are any;
    all together if there are no windows."""
    if windows is None:
        if len(chosen):
            yield None, chosen
        return
    for window in np.unique(windows[chosen]):
        yield int(window), chosen[windows[chosen] == window]
