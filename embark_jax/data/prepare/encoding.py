"""Second and third stage: values are counted into vocabularies, and become ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax.data import manifest as manifests
from embark_jax.data.files import read_arrow, write_arrow, write_json
from embark_jax.data.manifest import LABEL, SPLITS, Manifest, Part
from embark_jax.data.pipeline import in_order
from embark_jax.data.prepare.parsing import SamplePart
from embark_jax.data.prepare.recipe import TRAIN
from embark_jax.data.prepare.vocabulary import (
    FIRST_ID,
    ValueCounter,
    Vocabulary,
    count_values,
    flat,
    padded,
)
from embark_jax.tables import FeatureSpec


class PlacedPart(NamedTuple):
    """A part, and the split of each of its samples when called with them."""

    part: SamplePart
    splits: Callable[[pa.Table], np.ndarray]


class Counted(NamedTuple):
    """Rows of each table, and the longest bag of each feature."""

    table_rows: dict[str, int]
    hotness: dict[str, int]


def count(
    features: Sequence[FeatureSpec],
    parts: Sequence[PlacedPart],
    folder: Path,
    *,
    min_count: int,
    max_rows: int,
    hashed: bool,
    workers: int,
    progress: Callable[[int], None],
) -> Counted:
    """Counts the values of the training samples; writes the vocabularies.

    Args:
      features: of the data set.
      parts: of the data set.
      folder: gets a vocabulary for each table that is not hashed.
      min_count: samples that a value must have for a row of its own.
      max_rows: a table with more values is hashed to so many rows.
      hashed: whether every table is.
      workers: parts at once.
      progress: is told the parts that are done.
    """
    counters = {f.table: ValueCounter(0 if hashed else max_rows) for f in features}
    hotness = {f.name: f.hotness for f in features}

    def count_part(placed: PlacedPart) -> dict[str, tuple[int, pa.Table | None]]:
        samples = placed.part.read()
        train = samples.filter(pa.array(placed.splits(samples) == TRAIN))
        found = {}
        for feature in features:
            longest = _longest_bag(samples[feature.name].combine_chunks())
            table = None
            # What a sequence repeats was counted where it was met.
            counts = not hashed and feature.pooling != "none"
            if counts and not counters[feature.table].too_many:
                table = count_values(train[feature.name].combine_chunks())
            found[feature.name] = longest, table
        return found

    counting = in_order(count_part, parts, workers=workers, depth=workers)
    for number, found in enumerate(counting, 1):
        for feature in features:
            longest, values = found[feature.name]
            hotness[feature.name] = max(hotness[feature.name], longest)
            if values is not None:
                counters[feature.table].add(values)
        progress(number)

    rows = {}
    for table, counter in counters.items():
        if hashed or counter.too_many:
            rows[table] = max_rows
        else:
            values = counter.frequent(min_count)
            write_arrow(folder / f"{table}.arrow", values)
            rows[table] = FIRST_ID + len(values)
    return Counted(rows, hotness)


def encode(
    parts: Sequence[PlacedPart],
    out: Path,
    work: Path,
    vocabularies: Path,
    manifest: Manifest,
    workers: int,
    progress: Callable[[int], None],
) -> Iterator[dict[str, Part]]:
    """For each part the files that it becomes, by split.

    Args:
      parts: of the data set.
      out: gets the files.
      work: keeps what is known of files that are finished.
      vocabularies: folder that ``count`` filled.
      manifest: complete but for the files.
      workers: parts at once.
      progress: is told the parts that are done.
    """
    ids_of = {}
    for table, rows in manifest.table_rows.items():
        path = vocabularies / f"{table}.arrow"
        keys = read_arrow(path)["key"].combine_chunks() if path.exists() else None
        ids_of[table] = Vocabulary(keys, rows).ids

    def encode_part(placed: PlacedPart) -> dict[str, Part]:
        name = placed.part.path
        done = work / f"{name.stem}.json"
        if done.exists():
            known = json.loads(done.read_text())
            return {split: Part(**part) for split, part in known.items()}
        samples = placed.part.read()
        records = np.empty(len(samples), manifest.layout())
        records["label"] = samples[LABEL].to_numpy()
        for place, column in enumerate(manifest.dense):
            records["dense"][:, place] = samples[column].to_numpy()
        for feature, spec in manifest.features.items():
            values = samples[feature].combine_chunks()
            ids = ids_of[spec.table](flat(values))
            if pa.types.is_list(values.type):
                at_end = spec.pooling == "none"
                ids = padded(values, ids, spec.stored_hotness, at_end)
            records["ids"][feature] = ids.reshape(len(records), spec.stored_hotness)
        found, splits = {}, placed.splits(samples)
        for number, split in enumerate(SPLITS):
            chosen = records[np.flatnonzero(splits == number)]
            if len(chosen):
                file = f"{split}/{name.stem}.npy"
                found[split] = manifests.write_part(out, file, chosen, manifest)
        write_json(done, {split: part.model_dump() for split, part in found.items()})
        return found

    encoding = in_order(encode_part, parts, workers=workers, depth=workers)
    for number, found in enumerate(encoding, 1):
        progress(number)
        yield found


def _longest_bag(values: pa.Array) -> int:
    if not pa.types.is_list(values.type):
        return 1
    lengths = values.value_lengths().fill_null(0).to_numpy()
    return int(lengths.max(initial=1))
