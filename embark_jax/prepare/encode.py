"""The third stage: values become ids, and samples batches. Raw rows that are scored
later go through the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch
from embark_jax.data.manifest import (
    LABEL,
    SPLITS,
    Manifest,
    PreparedFeature,
    SampleFile,
    SplitFacts,
)
from embark_jax.data.numbers import FittedNumber
from embark_jax.data.vocabulary import MISSING_ID, RARE_ID
from embark_jax.plans.tables import PADDING_ID
from embark_jax.prepare import sql
from embark_jax.prepare.negatives import Negatives
from embark_jax.prepare.recipe import (
    ALONE,
    IN_FILE,
    IS_SAMPLE,
    ROW,
    SPLIT,
    TRAIN,
    WEIGHT,
    WINDOW,
    Work,
    weights_column,
)
from embark_jax.prepare.samples import Samples

CHUNK_ROWS = 2**18
"""How many samples are encoded together, and are in a file at most."""
Lookup = Callable[[str, pa.Array, np.ndarray, np.ndarray], np.ndarray]
"""Returns the ids of a feature's values, which a vocabulary has, given the number of
the sample of each, and its place in the bag."""


def vocabulary_table(table: str) -> str:
    """Returns the table of a database that has the values of a table, and their ids."""
    return sql.name(f"values of {table.encode().hex()}")  # DuckDB takes A for a


class SampleEncoder:
    """Turns samples into batches.

    Args:
      manifest: describes the batches.

    Attributes:
      categories: the features that have values, not ranges of numbers.
      cut: for each feature, how many values of too long lists were left out.
    """

    def __init__(self, manifest: Manifest):
        self._manifest, self._layout = manifest, manifest.layout()
        self.categories = {
            name: (feature, manifest.tables[feature.table])
            for name, feature in manifest.stored_features.items()
            if name not in manifest.numbers
        }
        self.cut = dict.fromkeys(manifest.features, 0)

    def columns(self, types: Mapping[str, str]) -> list[str]:
        """Returns SQL of the columns of samples that a batch is made of: of categories
        ids, or the values that a vocabulary has.

        Args:
          types: the types of columns of samples, in DuckDB's words.
        """
        manifest = self._manifest
        numbers = [*manifest.dense, *manifest.numbers.keys() & manifest.features]
        weights = map(weights_column, self._layout.weight_columns)
        facts = (*numbers, *weights, LABEL, WEIGHT)
        made = [sql.name(name) for name in facts if name in types]
        for name, (_, table) in self.categories.items():
            id_ = column = sql.name(name)
            if table.kind != "values":
                id_ = id_of(table, column)
                if types[name].endswith("]"):
                    each = f"lambda key: {id_of(table, 'key')}"
                    id_ = f"list_transform({column}, {each})"
            made.append(f"{id_} AS {column}")
        return made

    def batch(self, samples: pa.Table, lookup: Lookup) -> Batch:
        """Returns samples as a batch. A missing label is NaN, a missing weight 1.

        Args:
          samples: what ``columns`` gives.
          lookup: returns ids of values.
        """
        manifest, count = self._manifest, len(samples)
        batch = Batch.of(self._layout, self._layout.padding(count))
        if LABEL in samples.column_names:
            label = samples[LABEL].combine_chunks()
            if pa.types.is_fixed_size_list(label.type):
                label = label.flatten()
            batch.labels[...] = label.to_numpy(zero_copy_only=False).reshape(
                batch.labels.shape
            )
        if batch.sample_weights is not None:
            weights = samples[WEIGHT].combine_chunks().fill_null(1)
            batch.sample_weights[...] = weights.to_numpy(zero_copy_only=False)
        as_it_is = FittedNumber()
        for column, name in enumerate(manifest.dense):
            number = manifest.numbers.get(name, as_it_is)
            batch.dense[:, column] = number.values(samples[name].combine_chunks())
        ids_of: Any = batch.ids
        for name in manifest.features.keys() & manifest.numbers.keys():
            values = samples[name].combine_chunks()
            ids_of[name][...] = manifest.numbers[name].ranges(values)[:, None]
        for name, (feature, table) in self.categories.items():
            values, sample, place = _placed(samples[name].combine_chunks(), feature)
            if table.kind == "values":
                found = lookup(name, values, sample, place)
            else:
                found = values.to_numpy(zero_copy_only=False)
            kept = (place >= 0) & (place < feature.stored_hotness)
            self.cut[name] += len(kept) - int(kept.sum())
            ids = np.full((count, feature.stored_hotness), PADDING_ID, np.int64)
            ids[sample[kept], place[kept]] = found[kept]
            ids_of[name][...] = ids
            if feature.weighted:
                weights = samples[weights_column(name)].combine_chunks().flatten()
                into: Any = batch.weights[name]
                into[sample[kept], place[kept]] = weights.to_numpy()[kept]
        return batch


def _placed(
    values: pa.Array, feature: PreparedFeature
) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Returns single values, the sample of each, and its place in the bag."""
    sample, place = np.arange(len(values)), np.zeros(len(values), np.int64)
    if pa.types.is_list(values.type):
        lengths = values.value_lengths().fill_null(0).to_numpy()
        values, sample = values.flatten(), np.repeat(sample, lengths)
        first = lengths.cumsum() - lengths
        place = np.arange(len(values)) - np.repeat(first, lengths)
        if feature.pooling == "none":  # the last event is at the end
            place += feature.stored_hotness - np.repeat(lengths, lengths)
    return values, sample, place


def joined_ids(
    database: sql.Database,
    table: str,
    values: pa.Array | pa.ChunkedArray,
    drawn: str = "false",
    **columns: np.ndarray,
) -> np.ndarray:
    """Returns the ids of values of a table with a vocabulary in the database; ``drawn``
    is SQL, of further columns, of which of them are taken for unknown ones."""
    keys = pa.table({"key": values, "n": np.arange(len(values)), **columns})
    id_ = known_id("key", f"if({drawn}, NULL, id)")
    found = database.table(
        f"SELECT n, {id_} AS id FROM keys LEFT JOIN {vocabulary_table(table)} "
        "USING (key)",
        keys=keys,
    )
    ids = np.empty(len(values), np.int64)
    ids[found["n"].to_numpy()] = found["id"].to_numpy()
    return ids


def encode(
    work: Work,
    samples: Samples,
    manifest: Manifest,
    ranges: np.ndarray | None = None,
) -> Manifest:
    """Writes files of samples, and returns the manifest with them.

    Args:
      work: what is prepared; the database has samples and vocabularies.
      samples: the samples.
      manifest: the manifest, complete but for the files and the splits.
      ranges: ``[samples, 3]`` range of each sample's events, if it has a history.
    """
    encoder, done, database = SampleEncoder(manifest), 0, work.database
    files: dict[str, list[SampleFile]] = {split: [] for split in SPLITS}
    values, unknown = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    place, row, unseen = sql.name(IN_FILE), sql.name(ROW), work.options.unseen
    selected = ", ".join(encoder.columns(samples.types))
    facts = f"{row}, {SPLIT}, {sql.name(WINDOW)}"
    facts += f", {row} NOT IN (FROM {sql.name(ALONE)}) AS {sql.name(IS_SAMPLE)}"

    def known(name: str, keys: pa.Array, *_: np.ndarray) -> np.ndarray:
        return joined_ids(database, manifest.features[name].table, keys)

    described = work.recipe.columns.negatives if work.recipe.columns else None
    negatives = None
    if described is not None:
        negatives = Negatives(work, described, manifest, encoder, selected, known)
    chunks = [
        (file, first)
        for file, n in enumerate(samples.rows)
        for first in range(0, n, CHUNK_ROWS)
    ]
    drawn = 0
    for file, first in chunks:
        chunk = database.table(
            f"SELECT {selected}, {facts} FROM {sql.name(f'samples {file}')} WHERE "
            f"{place} >= {first} AND {place} < {first + CHUNK_ROWS} ORDER BY {place}"
        )
        rows = chunk[ROW].to_numpy()
        batch = encoder.batch(
            chunk, _with_unseen(work, manifest, chunk) if unseen else known
        )
        for split, window, places in _parts(chunk):
            folder = SPLITS[split] if window is None else f"{SPLITS[split]}/{window}"
            name = f"{folder}/{file:03}-{first // CHUNK_ROWS:06}.arrow"
            part = batch.take(places)
            if negatives is not None:
                part, sources = negatives.added(part, rows[places])
                drawn += len(part) - len(places)
                places = places[sources]
            files[SPLITS[split]].append(
                manifests.write_samples(
                    work.out,
                    name,
                    part,
                    manifest,
                    window,
                    None if ranges is None else ranges[rows[places]],
                )
            )
            for feature, (_, table) in encoder.categories.items():
                if split != TRAIN and table.kind == "values":
                    ids = np.asarray(part.ids[feature])
                    values[SPLITS[split], feature] += int((ids >= RARE_ID).sum())
                    unknown[SPLITS[split], feature] += int((ids == RARE_ID).sum())
        done += len(batch)
        work.progress("encode", done, sum(samples.rows))
    shares = {split: dict[str, float]() for split in SPLITS}
    for (split, feature), count in unknown.items():
        if count:
            shares[split][feature] = round(count / values[split, feature], 4)
    splits = {
        split: SplitFacts(times=samples.times.get(split), unknown=shares[split])
        for split in SPLITS
        if files[split]
    }
    # In the order of windows; a sort keeps that of files.
    in_order = {
        split: tuple(sorted(of_split, key=lambda file: file.window or 0))
        for split, of_split in files.items()
    }
    found = {"files": in_order, "splits": splits, "negatives": drawn}
    return manifest.model_copy(update=found)


def _with_unseen(work: Work, manifest: Manifest, chunk: pa.Table) -> Lookup:
    """Returns a lookup that takes a share of the values of training samples for unknown
    ones."""
    rows, trains = chunk[ROW].to_numpy(), chunk[SPLIT].to_numpy() == TRAIN
    most = int(work.options.unseen * 2.0**64)

    def lookup(
        name: str, keys: pa.Array, sample: np.ndarray, place: np.ndarray
    ) -> np.ndarray:
        drawn = f"md5_number_lower(concat(row, ' ', place, ' ', {sql.text(name)}))"
        return joined_ids(
            work.database,
            manifest.features[name].table,
            keys,
            f"trains AND {drawn} < {most}",
            row=rows[sample],
            place=place,
            trains=trains[sample],
        )

    return lookup


def id_of(table: manifests.Table, key: str) -> str:
    """Returns SQL of the id of a value; of a vocabulary's, the value."""
    if table.kind == "hashes":
        return f"coalesce({hash_of(key, table.rows)}, {MISSING_ID})"
    if table.kind == "numbers":
        return f"coalesce({key}, {PADDING_ID})"
    return key


def known_id(key: str, found: str) -> str:
    """Returns SQL of the id of a value of a vocabulary, given the id that was found."""
    known = f"coalesce({found}, {RARE_ID})"
    return f"CASE WHEN {key} IS NULL THEN {MISSING_ID} ELSE {known} END"


def hash_of(key: str, rows: int) -> str:
    """Returns SQL of the id of a value in a hashed table: the same on every machine and
    in every engine, from the last 64 bits of MD5 of its text."""
    return f"(1 + md5_number_lower(({key})::VARCHAR) % {rows - 1})::BIGINT"


def _parts(chunk: pa.Table) -> list[tuple[int, int | None, np.ndarray]]:
    """Returns the samples of each split and time window: split, window, and places."""
    numbered = chunk.select([SPLIT, WINDOW])
    numbered = numbered.append_column("place", pa.array(np.arange(len(chunk))))
    parts = numbered.filter(chunk[IS_SAMPLE]).group_by([SPLIT, WINDOW], False)
    parts = parts.aggregate([("place", "list")]).sort_by([(SPLIT, "ascending")])
    return [
        (split.as_py(), window.as_py(), places.values.to_numpy())
        for split, window, places in zip(
            parts[SPLIT], parts[WINDOW], parts["place_list"], strict=True
        )
    ]
