"""Third stage: turns values into ids, transforms numbers, and writes records."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embark_jax._base.files import read_arrow, replacing
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import LABEL, SPLITS, VALUES, Manifest, RecordFile
from embark_jax.data.pipeline import Workers
from embark_jax.data.prepare.counting import SplitChunk
from embark_jax.data.prepare.numbers import FittedNumber
from embark_jax.data.prepare.recipe import WEIGHT, labels_of
from embark_jax.data.prepare.vocabulary import (
    FIRST_ID,
    RARE_ID,
    Vocabulary,
    as_row_numbers,
    flat,
    padded,
    read_row_numbers,
)
from embark_jax.plans.tables import HASHED_KEYS


class SampleEncoder:
    """Turns samples into records.

    Args:
      manifest: describes the records.
      folder: holds ``vocabulary/``, whose files were verified.

    Raises:
      DataError: if a vocabulary is another table's.
    """

    def __init__(self, manifest: Manifest, folder: Path):
        self._manifest = manifest
        self._layout = manifest.layout()
        self._ids_of = {}
        for name, feature in manifest.features.items():
            if name in manifest.numbers or feature.table in self._ids_of:
                continue
            rows = manifest.table_rows[feature.table]
            if feature.table in manifest.numbered_tables:
                row_numbers = functools.partial(as_row_numbers, rows=rows, name=name)
                self._ids_of[feature.table] = row_numbers
            elif feature.table in manifest.hashed_tables:
                self._ids_of[feature.table] = Vocabulary(None, rows).ids
            else:
                keys = read_keys(folder, feature.table)
                if len(keys) - keys.null_count != rows - FIRST_ID:
                    path = folder / manifests.vocabulary_file(feature.table)
                    raise DataError(
                        f"{path}: must have a column 'key' with {rows - FIRST_ID:,} "
                        f"values, has {len(keys):,}"
                    )
                self._ids_of[feature.table] = Vocabulary(keys, rows).ids
        self._rows_of = {
            table: read_row_numbers(folder / manifests.vocabulary_file(table))
            for table in manifest.by_frequency
        }

    def __call__(self, samples: pa.Table) -> np.ndarray:
        """Returns ``[samples]`` records; labels are 0 and weights 1 if samples have
        none."""
        manifest = self._manifest
        records = np.empty(len(samples), self._layout)
        has_label = LABEL in samples.column_names
        records["label"] = labels_of(samples) if has_label else 0
        if manifest.sample_weights:
            weighed = WEIGHT in samples.column_names
            records["sample_weight"] = samples[WEIGHT].to_numpy() if weighed else 1
        as_it_is = FittedNumber()
        for column, name in enumerate(manifest.dense):
            number = manifest.numbers.get(name, as_it_is)
            values = number.values(samples[name].combine_chunks())
            records["dense"][:, column] = values
        for name, feature in manifest.features.items():
            values = samples[name].combine_chunks()
            if name in manifest.numbers:
                records["ids"][name] = manifest.numbers[name].ranges(values)[:, None]
                continue
            ids = self._ids_of[feature.table](flat(values))
            if feature.table in self._rows_of:
                rows_of = self._rows_of[feature.table]
                ids = np.where(ids < 0, ids, rows_of[ids])
            if pa.types.is_list(values.type):
                at_end = feature.pooling == "none"
                ids = padded(values, ids, feature.stored_hotness, at_end)
            records["ids"][name] = ids.reshape(len(records), feature.stored_hotness)
        return records

    def shared_values(self, samples: pa.Table, records: np.ndarray) -> pa.Table:
        """Returns for each feature of one id a sample, whose table may have rows of
        several values, the values of the samples with such a row, and null of others.

        Args:
          samples, records: samples, and their records.
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
            ids = records["ids"][name][:, 0]
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


def read_keys(folder: Path, table: str) -> pa.Array:
    """Returns the values of a table, in the order of their ids.

    Raises:
      DataError: if its vocabulary has no values.
    """
    vocabulary = read_arrow(path := folder / manifests.vocabulary_file(table))
    if "key" not in vocabulary.column_names:
        raise DataError(f"{path}: must have a column 'key'")
    return vocabulary["key"].combine_chunks()


def encode(
    chunks: Sequence[SplitChunk],
    out: Path,
    manifest: Manifest,
    held_out: Collection[str],
    workers: Workers,
) -> Iterator[dict[str, list[RecordFile]]]:
    """Writes the files of each chunk, and returns them by split.

    Args:
      chunks: the samples of the data set.
      out: folder for the files, with the vocabularies that ``count`` wrote.
      manifest: the manifest, complete but for the files.
      held_out: splits whose shared values are kept, for metrics by groups.
      workers: threads; progress is a number of chunks.
    """
    records_of = SampleEncoder(manifest, out)

    def encode_chunk(chunk: SplitChunk) -> dict[str, list[RecordFile]]:
        name = chunk.samples.path.stem
        samples = chunk.samples.read()
        records, splits = records_of(samples), chunk.splits(samples)
        windows = None if chunk.windows is None else chunk.windows(samples)
        written: dict[str, list[RecordFile]] = {}
        for number, split in enumerate(SPLITS):
            chosen = np.flatnonzero(splits == number)
            for window, rows in _by_window(windows, chosen):
                folder = split if window is None else f"{split}/{window}"
                file = manifests.write_records(
                    out, f"{folder}/{name}.npy", records[rows], manifest, window
                )
                if split in held_out:
                    values = records_of.shared_values(samples.take(rows), records[rows])
                    kept = f"{VALUES}/{folder}/{name}.parquet"
                    with replacing(out / kept) as scratch:
                        pq.write_table(values, scratch)
                    file = file.model_copy(update={"values": HashedFile.of(out, kept)})
                written.setdefault(split, []).append(file)
        return written

    return workers.map("encode", encode_chunk, chunks)


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
