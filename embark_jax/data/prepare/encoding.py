"""Third stage: turns values into ids, transforms numbers, and writes records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax._base.files import confined, read_arrow, write_json
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.listed import verified
from embark_jax.data.manifest import LABEL, SPLITS, Manifest, Part
from embark_jax.data.pipeline import in_order
from embark_jax.data.prepare.counting import PlacedPart
from embark_jax.data.prepare.numbers import FittedNumber
from embark_jax.data.prepare.recipe import WEIGHT, labels_of
from embark_jax.data.prepare.vocabulary import FIRST_ID, Vocabulary, flat, padded


class SampleEncoder:
    """Turns samples into records.

    Args:
      manifest: describes the records.
      folder: holds ``vocabulary/``, with a file for each table that is not hashed.

    Raises:
      DataError: if a vocabulary is missing or damaged.
    """

    def __init__(self, manifest: Manifest, folder: Path):
        self._manifest = manifest
        self._layout = manifest.layout()
        self._ids_of = {}
        for name, feature in manifest.features.items():
            if name in manifest.numbers or feature.table in self._ids_of:
                continue
            rows, keys = manifest.table_rows[feature.table], None
            if feature.table not in manifest.hashed_tables:
                file = manifests.vocabulary_file(feature.table)
                keys = read_keys(confined(folder, file), rows)
            self._ids_of[feature.table] = Vocabulary(keys, rows).ids

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
        for place, name in enumerate(manifest.dense):
            number = manifest.numbers.get(name, as_it_is)
            values = number.values(samples[name].combine_chunks())
            records["dense"][:, place] = values
        for name, feature in manifest.features.items():
            values = samples[name].combine_chunks()
            if name in manifest.numbers:
                records["ids"][name] = manifest.numbers[name].ranges(values)[:, None]
                continue
            ids = self._ids_of[feature.table](flat(values))
            if pa.types.is_list(values.type):
                at_end = feature.pooling == "none"
                ids = padded(values, ids, feature.stored_hotness, at_end)
            records["ids"][name] = ids.reshape(len(records), feature.stored_hotness)
        return records


def read_keys(path: Path, rows: int) -> pa.Array:
    """Reads the values of a vocabulary, in the order of their ids.

    Args:
      path: the file.
      rows: number of rows of the table.

    Raises:
      DataError: if the file is missing, damaged, or another table's.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; the table is not hashed, so it needs it"
        )
    table = read_arrow(path)
    if "key" not in table.column_names or table["key"].null_count:
        raise DataError(f"{path}: must have a column 'key' with a value in every row")
    if FIRST_ID + len(table) != rows:
        raise DataError(
            f"{path}: has {len(table):,} values, must have {rows - FIRST_ID:,}, since "
            f"the table has {rows:,} rows"
        )
    return table["key"].combine_chunks()


def encode(
    parts: Sequence[PlacedPart],
    out: Path,
    work: Path,
    manifest: Manifest,
    workers: int,
    progress: Callable[[int], None],
) -> Iterator[dict[str, Part]]:
    """Writes the files of each part, and returns them by split.

    Args:
      parts: the parts of the data set.
      out: folder for the files, with the vocabularies that ``count`` wrote.
      work: folder that keeps what is known of finished files.
      manifest: the manifest, complete but for the files.
      workers: number of parts processed at once.
      progress: called with the number of finished parts.
    """
    for file in manifest.vocabularies:  # an earlier command may have written them
        verified(out, file)
    records_of = SampleEncoder(manifest, out)

    def encode_part(placed: PlacedPart) -> dict[str, Part]:
        name = placed.part.path
        done = work / f"{name.stem}.json"
        if done.exists():
            known = json.loads(done.read_text())
            return {split: Part(**part) for split, part in known.items()}
        samples = placed.part.read()
        records, splits = records_of(samples), placed.splits(samples)
        found = {}
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
