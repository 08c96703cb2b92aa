"""The third stage: values become ids, and samples batches. Raw rows that are scored
later go through the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch
from embark_jax.data.manifest import LABEL, SPLITS, Manifest, SampleFile, SplitFacts
from embark_jax.data.numbers import FittedNumber
from embark_jax.data.vocabulary import MISSING_ID, RARE_ID
from embark_jax.plans.tables import PADDING_ID
from embark_jax.prepare import sql
from embark_jax.prepare.recipe import (
    IN_FILE,
    ROW,
    SPLIT,
    TRAIN,
    WEIGHT,
    WINDOW,
    Work,
)
from embark_jax.prepare.samples import Samples

CHUNK_ROWS = 2**18
"""How many samples are encoded together, and are in a file at most."""


def vocabulary_table(table: str) -> str:
    """Returns the table of a database that has the values of a table, and their ids."""
    return sql.name(f"values of {table.encode().hex()}")  # DuckDB takes A for a


class Found(NamedTuple):
    """The values of a feature of some samples: the number of the sample, the place in
    its bag, and the id, or PADDING_ID of what is left out."""

    sample: np.ndarray
    place: np.ndarray
    id: np.ndarray


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

    def batch(self, facts: pa.Table, found: Callable[[str], Found]) -> Batch:
        """Returns samples as a batch. A missing label is NaN, a missing weight 1.

        Args:
          facts: all columns of the samples but categories.
          found: returns the values of a category.
        """
        manifest, count = self._manifest, len(facts)
        batch = Batch.of(self._layout, self._layout.padding(count))
        if LABEL in facts.column_names:
            label = facts[LABEL].combine_chunks()
            if pa.types.is_fixed_size_list(label.type):
                label = label.flatten()
            batch.labels[...] = label.to_numpy(zero_copy_only=False).reshape(
                batch.labels.shape
            )
        if batch.sample_weights is not None:
            batch.sample_weights[...] = 1
            if WEIGHT in facts.column_names:
                weights = facts[WEIGHT].combine_chunks().fill_null(1)
                batch.sample_weights[...] = weights.to_numpy(zero_copy_only=False)
        as_it_is = FittedNumber()
        for column, name in enumerate(manifest.dense):
            number = manifest.numbers.get(name, as_it_is)
            batch.dense[:, column] = number.values(facts[name].combine_chunks())
        ids_of: Any = batch.ids
        for name in manifest.features.keys() & manifest.numbers.keys():
            values = facts[name].combine_chunks()
            ids_of[name][...] = manifest.numbers[name].ranges(values)[:, None]
        for name, (feature, _) in self.categories.items():
            sample, place, id_ = found(name)
            kept = (place >= 0) & (place < feature.stored_hotness)
            self.cut[name] += len(kept) - int(kept.sum())
            ids = np.full((count, feature.stored_hotness), PADDING_ID, np.int64)
            ids[sample[kept], place[kept]] = id_[kept]
            ids_of[name][...] = ids
        return batch


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
    encoder, done = SampleEncoder(manifest), 0
    files: dict[str, list[SampleFile]] = {split: [] for split in SPLITS}
    values, unknown = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    of_categories = ", ".join(map(sql.name, encoder.categories))
    exclude = f"EXCLUDE ({of_categories})" if of_categories else ""
    chunks = [
        (file, first)
        for file, n in enumerate(samples.rows)
        for first in range(0, n, CHUNK_ROWS)
    ]
    place = sql.name(IN_FILE)
    for file, first in chunks:
        chunk = (
            f"SELECT * FROM {sql.name(f'samples {file}')} WHERE {place} >= {first} AND "
            f"{place} < {first + CHUNK_ROWS}"
        )
        facts = work.database.table(
            f"SELECT * {exclude} FROM ({chunk}) ORDER BY {place}"
        )

        def found(name: str, chunk: str = chunk, first: int = first) -> Found:
            feature, table = encoder.categories[name]
            query = _ids(
                chunk, name, feature, table, samples.types[name], work.options.unseen
            )
            columns = work.database.table(query).columns
            sample, places, ids = (column.to_numpy() for column in columns)
            return Found(sample - first, places, ids)

        batch, rows = encoder.batch(facts, found), facts[ROW].to_numpy()
        for split, window, places in _parts(facts):
            folder = SPLITS[split] if window is None else f"{SPLITS[split]}/{window}"
            name = f"{folder}/{file:03}-{first // CHUNK_ROWS:06}.arrow"
            part = batch.take(places)
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
    return manifest.model_copy(update={"files": in_order, "splits": splits})


def _ids(
    samples: str,
    name: str,
    feature: manifests.PreparedFeature,
    table: manifests.Table,
    type_: str,
    unseen: float,
) -> str:
    """Returns SQL of what is found of a feature; of a vocabulary's values in training
    samples a share ``unseen`` is taken for unknown."""
    column, place, key = sql.name(name), "0::BIGINT", sql.name(name)
    if type_.endswith("]"):
        key, place = f"unnest({column})", f"generate_subscripts({column}, 1) - 1"
        if feature.pooling == "none":  # the last event is at the end
            place += f" + {feature.stored_hotness} - len({column})"
    row = f", {sql.name(ROW)} AS row, {SPLIT} = {TRAIN} AS trains" if unseen else ""
    values = (
        f"(SELECT {sql.name(IN_FILE)} AS n, {key} AS key, {place} AS place{row} FROM "
        f"({samples}))"
    )
    id_ = id_of(table, "key")
    if table.kind == "values":
        values += f" LEFT JOIN {vocabulary_table(feature.table)} USING (key)"
        id_ = f"coalesce(id, {RARE_ID})"
        if unseen:
            drawn = f"md5_number_lower(concat(row, ' ', place, ' ', {sql.text(name)}))"
            is_drawn = f"trains AND {drawn} < {int(unseen * 2.0**64)}"
            id_ = f"if({is_drawn}, {RARE_ID}, {id_})"
        id_ = f"CASE WHEN key IS NULL THEN {MISSING_ID} ELSE {id_} END"
    return f"SELECT n, place, {id_} AS id FROM {values}"


def id_of(table: manifests.Table, key: str) -> str:
    """Returns SQL of the id of a value; of a vocabulary's, the value."""
    if table.kind == "hashes":
        return f"coalesce({hash_of(key, table.rows)}, {MISSING_ID})"
    if table.kind == "numbers":
        return f"coalesce({key}, {PADDING_ID})"
    return key


def hash_of(key: str, rows: int) -> str:
    """Returns SQL of the id of a value in a hashed table: the same on every machine and
    in every engine, from the last 64 bits of MD5 of its text."""
    return f"(1 + md5_number_lower(({key})::VARCHAR) % {rows - 1})::BIGINT"


def _parts(facts: pa.Table) -> list[tuple[int, int | None, np.ndarray]]:
    """Returns the samples of each split and time window: split, window, and places."""
    numbered = facts.select([SPLIT, WINDOW])
    numbered = numbered.append_column("place", pa.array(np.arange(len(facts))))
    parts = numbered.group_by([SPLIT, WINDOW], use_threads=False)
    parts = parts.aggregate([("place", "list")]).sort_by([(SPLIT, "ascending")])
    return [
        (split.as_py(), window.as_py(), places.values.to_numpy())
        for split, window, places in zip(
            parts[SPLIT], parts[WINDOW], parts["place_list"], strict=True
        )
    ]
