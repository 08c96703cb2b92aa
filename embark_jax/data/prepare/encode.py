"""The third stage: values become ids, and samples batches. Raw rows that are scored
later go through the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embark_jax._base.files import replacing
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import LABEL, SPLITS, VALUES, Manifest, SampleFile
from embark_jax.data.pipeline import Workers
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.numbers import FittedNumber
from embark_jax.data.prepare.recipe import WEIGHT, labels_of
from embark_jax.data.prepare.samples import SampleChunk
from embark_jax.data.prepare.vocabulary import (
    FIRST_ID,
    MISSING_ID,
    RARE_ID,
    hash_of,
    read_keys,
    read_row_numbers,
)
from embark_jax.plans.tables import HASHED_KEYS, PADDING_ID


def values_of(column: str, kind: pa.DataType) -> str:
    """Returns SQL of the single values of a column, which may have lists."""
    return f"unnest({column})" if pa.types.is_list(kind) else column


class SampleEncoder:
    """Turns samples into batches.

    Args:
      database: for the queries; vocabularies become tables of it.
      manifest: describes the batches.
      folder: holds ``vocabulary/``, whose files were verified.

    Raises:
      DataError: if a vocabulary is another table's.
    """

    def __init__(self, database: sql.Database, manifest: Manifest, folder: Path):
        self._database, self._manifest = database, manifest
        self._layout = manifest.layout()
        self._categories = {
            name: feature
            for name, feature in manifest.features.items()
            if name not in manifest.numbers
        }
        self._ids = {}
        for table in {f.table: None for f in self._categories.values()}:
            rows = manifest.table_rows[table]
            if table in manifest.numbered_tables:
                self._ids[table] = "key"
            elif table in manifest.hashed_tables:
                self._ids[table] = hash_of("key", rows)
            else:
                self._ids[table] = f"coalesce(id, {RARE_ID})"
                self._add_vocabulary(table, read_keys(folder, table), folder)
        self._rows_of = {
            table: read_row_numbers(folder, table, manifest.table_rows[table])
            for table in manifest.by_frequency
        }

    def _add_vocabulary(self, table: str, keys: pa.Array, folder: Path) -> None:
        wanted = self._manifest.table_rows[table] - FIRST_ID
        if len(keys) - keys.null_count != wanted:
            path = folder / manifests.vocabulary_file(table)
            raise DataError(
                f"{path}: must have a column 'key' with {wanted:,} values, has "
                f"{len(keys):,}"
            )
        ids = np.arange(FIRST_ID, FIRST_ID + len(keys))
        values = pa.table({"key": keys, "id": ids})
        query = f"CREATE OR REPLACE TABLE {_vocabulary(table)} AS FROM known"
        self._database.run(query, known=values)

    def __call__(self, samples: pa.Table) -> Batch:
        """Returns the samples as a batch; labels are 0 and weights 1 if samples have
        none."""
        manifest = self._manifest
        batch = Batch.of(self._layout, self._layout.padding(len(samples)))
        if LABEL in samples.column_names:
            batch.labels[...] = labels_of(samples)
        if batch.sample_weights is not None:
            weighed = WEIGHT in samples.column_names
            batch.sample_weights[...] = samples[WEIGHT].to_numpy() if weighed else 1
        as_it_is = FittedNumber()
        for column, name in enumerate(manifest.dense):
            number = manifest.numbers.get(name, as_it_is)
            values = number.values(samples[name].combine_chunks())
            batch.dense[:, column] = values
        for name in self._manifest.features.keys() & manifest.numbers.keys():
            values = samples[name].combine_chunks()
            ids: Any = batch.ids[name]
            ids[...] = manifest.numbers[name].ranges(values)[:, None]
        if self._categories:
            self._encode(samples, batch.ids)
        return batch

    def _encode(self, samples: pa.Table, of_features: Mapping[str, Any]) -> None:
        """Fills the ids of categories: one query gives each value's sample, place among
        all ids of a sample, and id."""
        queries = []
        ends = np.cumsum([f.stored_hotness for f in self._categories.values()])
        ids = np.full((len(samples), ends[-1]), PADDING_ID, np.int64)
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        starts = np.append(0, ends[:-1])
        for (name, feature), first in zip(
            self._categories.items(), starts, strict=True
        ):
            column, hotness = f"c{len(columns)}", feature.stored_hotness
            columns[column] = samples[name]
            kind = samples.schema.field(name).type
            has_missing = feature.table not in self._manifest.numbered_tables
            if pa.types.is_list(kind):
                # The padding of a sequence is in front, and its last events are kept.
                at_end = feature.pooling == "none"
                kept = f"{column}[{f'-{hotness}:' if at_end else f':{hotness}'}]"
                pad = f"{hotness} - len({kept})" if at_end else "0"
                place = f"{first} + {pad} + generate_subscripts({kept}, 1) - 1"
                values = (
                    f"SELECT n, unnest({kept}) AS key, {place} AS place FROM samples"
                )
            else:
                values = f"SELECT n, {column} AS key, {first} AS place FROM samples"
                if has_missing:
                    ids[:, first] = MISSING_ID
            id_ = self._ids[feature.table]
            if has_missing and pa.types.is_list(kind):
                id_ = f"CASE WHEN key IS NULL THEN {MISSING_ID} ELSE {id_} END"
            else:
                values += f" WHERE {column} IS NOT NULL"
            if feature.table not in self._vocabularies:
                queries.append(f"SELECT n, place, {id_} AS id FROM ({values})")
            else:
                queries.append(
                    f"SELECT n, place, {id_} AS id FROM ({values}) LEFT JOIN "
                    f"{_vocabulary(feature.table)} USING (key)"
                )
        columns["n"] = pa.array(np.arange(len(samples)))
        query = " UNION ALL ".join(queries)
        found = self._database.table(query, samples=pa.table(columns))
        ids[found["n"].to_numpy(), found["place"].to_numpy()] = found["id"].to_numpy()
        for (name, feature), first, end in zip(
            self._categories.items(), starts, ends, strict=True
        ):
            mine = ids[:, first:end]
            if feature.table in self._rows_of:
                mine = np.where(mine < 0, mine, self._rows_of[feature.table][mine])
            of_features[name][...] = mine

    @property
    def _vocabularies(self) -> set[str]:
        exact = {*self._manifest.hashed_tables, *self._manifest.numbered_tables}
        return self._ids.keys() - exact

    def shared_values(self, samples: pa.Table, batch: Batch) -> pa.Table:
        """Returns for each feature of one id a sample, whose table may have rows of
        several values, the values of the samples with such a row, and null of others.

        Args:
          samples, batch: the samples, before and after.
        """
        manifest, columns = self._manifest, {}
        exact = {*manifest.numbers, *manifest.numbered_tables}
        for name, feature in manifest.features.items():
            rows = manifest.table_rows[feature.table]
            if (
                feature.hotness > 1
                or {name, feature.table} & exact
                or rows == HASHED_KEYS
            ):
                continue
            ids = batch.ids[name][:, 0]
            is_hashed = feature.table in manifest.hashed_tables
            is_shared = ids >= RARE_ID if is_hashed else ids == RARE_ID
            values = samples[name].combine_chunks()
            if pa.types.is_list(values.type):  # of one value at most
                is_there = pc.call_function("equal", [values.value_lengths(), 1])
                starts = pc.call_function(
                    "if_else", [is_there, values.offsets[:-1], None]
                )
                values = values.values.take(starts)
            nothing = pa.scalar(None, values.type)
            columns[name] = pc.call_function(
                "if_else", [pa.array(is_shared), values, nothing]
            )
        return pa.table(columns)


def _vocabulary(table: str) -> str:
    return sql.name(f"values of {table.encode().hex()}")  # DuckDB takes A for a


def encode(
    database: sql.Database,
    chunks: Sequence[SampleChunk],
    splits: Sequence[np.ndarray],
    windows: Sequence[np.ndarray] | None,
    out: Path,
    manifest: Manifest,
    held_out: Collection[str],
    workers: Workers,
) -> Iterator[tuple[str, SampleFile]]:
    """Writes the files of each chunk, and yields each with its split.

    Args:
      database: for the queries.
      chunks: the samples of the data set.
      splits: the split of each sample of each chunk.
      windows: the begin of the time window of each, if data are cut into windows.
      out: folder for the files, with the vocabularies that ``count`` wrote.
      manifest: the manifest, complete but for the files.
      held_out: splits whose shared values are kept, for metrics by groups.
      workers: progress is a number of chunks.
    """
    encoder = SampleEncoder(database, manifest, out)
    for number, chunk in enumerate(chunks):
        name, samples = chunk.path.stem, chunk.read()
        batch = encoder(samples)
        for split, split_name in enumerate(SPLITS):
            chosen = np.flatnonzero(splits[number] == split)
            window_of = None if windows is None else windows[number]
            for window, rows in _by_window(window_of, chosen):
                folder = split_name if window is None else f"{split_name}/{window}"
                part = batch.take(rows)
                file = manifests.write_samples(
                    out, f"{folder}/{name}.arrow", part, manifest, window
                )
                if split_name in held_out:
                    values = encoder.shared_values(samples.take(rows), part)
                    kept = f"{VALUES}/{folder}/{name}.parquet"
                    with replacing(out / kept) as scratch:
                        pq.write_table(values, scratch)
                    file = file.model_copy(update={"values": HashedFile.of(out, kept)})
                yield split_name, file
        workers.progress("encode", number + 1, len(chunks))


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
