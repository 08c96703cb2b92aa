"""Makes batches from raw rows, as training made them from a user's own files.

The folder ``encoding/`` of a run or an export holds what this needs: the manifest of
the data and their vocabularies.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.manifest import SPLITS, VOCABULARY, Manifest
from embark_jax.data.prepare import tables
from embark_jax.data.prepare.encoding import SampleEncoder
from embark_jax.data.prepare.recipe import Position
from embark_jax.data.prepare.report import bags_seen

FOLDER = "encoding"


def save_encoding(prepared: Path, manifest: Manifest, out: Path) -> None:
    """Writes what encodes raw rows to a folder. Vocabularies are hard links where
    possible, since they never change in place.

    Args:
      prepared: folder of the data.
      manifest: manifest of the data.
      out: the folder to fill.
    """
    (out / VOCABULARY).mkdir(parents=True, exist_ok=True)
    for file in manifest.vocabularies:
        target = out / file.file
        target.unlink(missing_ok=True)
        try:
            os.link(prepared / file.file, target)
        except OSError:
            shutil.copyfile(prepared / file.file, target)
    manifest.model_copy(update={"parts": dict.fromkeys(SPLITS, ())}).save(out)


def copy_encoding(run: Path, out: Path) -> None:
    """Copies a run's encoding, if it has one."""
    if (run / FOLDER / manifests.FILE_NAME).exists():
        save_encoding(run / FOLDER, manifests.read(run / FOLDER), out / FOLDER)


class RowEncoder:
    """Makes batches from raw rows.

    Values that no training sample had share a row of their table, like rare ones.
    Lists that are longer than those in training are cut as in training.

    Args:
      folder: folder of a run or an export.

    Attributes:
      cut: for each feature, how many values of too long lists were left out.
      labels: names of the labels, if samples have several.

    Raises:
      DataError: if the folder has no encoding: its data were not a user's own files.
    """

    def __init__(self, folder: Path):
        encoding = Path(folder) / FOLDER
        if not (encoding / manifests.FILE_NAME).exists():
            raise DataError(
                f"{folder}: has no {FOLDER}/, so raw rows cannot be read; runs have it "
                "whose data `embark data prepare csv` or parquet prepared"
            )
        self._manifest = manifests.read(encoding)
        if self._manifest.columns is None:
            raise DataError(f"{encoding}: does not describe the columns of raw rows")
        self._columns = self._manifest.columns
        self._records_of = SampleEncoder(self._manifest, encoding / VOCABULARY)
        self.cut = dict.fromkeys(self._manifest.features, 0)
        self.labels = self._manifest.labels

    def batches(self, rows: Any) -> Iterator[tuple[Batch, bool]]:
        """Returns batches of any size, in the order of the rows, and whether they have
        labels.

        Args:
          rows: the path of a CSV or Parquet file, or of a folder of them; or a mapping
            of columns, an Arrow table or a data frame.

        Raises:
          DataError: if a column is missing or a value breaks a rule.
        """
        if not isinstance(rows, str | Path):
            try:
                table = pa.table(rows)
            except pa.ArrowInvalid as error:
                raise DataError(f"rows: are no table ({error})") from None
            tables.check_there(self._columns.inputs, table.column_names, "rows")
            for name in self._columns.dense:
                place = table.column_names.index(name)
                found = _missing_as_null(table[name])
                table = table.set_column(place, name, found)
            yield self._batch(table, Path("rows"))
            return
        for file in tables.raw_rows(Path(rows), self._columns):
            for piece in file.pieces(Position()):
                yield self._batch(piece.read("error")[0], file.path)

    def _batch(self, table: pa.Table, path: Path) -> tuple[Batch, bool]:
        samples = tables.inputs(table, self._columns, path)
        for name, feature in self._manifest.features.items():
            if name in self._manifest.numbers:
                continue
            is_text = name in self._manifest.text_features
            values = _as_trained(samples[name].combine_chunks(), is_text, path, name)
            self.cut[name] += bags_seen(values, feature.hotness)[1]
            place = samples.column_names.index(name)
            samples = samples.set_column(place, name, values)
        records, targets = self._records_of(samples), self._columns.targets
        has_label = all(
            name in table.column_names and not table[name].null_count
            for name in targets
        )
        if has_label:
            records["label"] = tables.labels(table, self._columns, path)
        if (weight := self._columns.weight) in table.column_names:
            records["sample_weight"] = tables.weights(table, str(weight), path)
        return Batch.of(records, f"{path}, row {{}}".format), has_label


def _missing_as_null(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    """What stands for a missing number in files stands for it in Python, too."""
    if pa.types.is_floating(numbers.type):
        missing = pc.call_function("is_nan", [numbers])
    elif pa.types.is_string(numbers.type):
        known = pc.SetLookupOptions(value_set=pa.array(tables.MISSING))
        missing = pc.call_function("is_in", [numbers], known)
    else:
        return numbers
    return pc.call_function("if_else", [missing, pa.scalar(None), numbers])


def _as_trained(values: pa.Array, is_text: bool, path: Path, name: str) -> pa.Array:
    """Converts values to the type that they had in training: text, or whole numbers."""
    kind = pa.string() if is_text else pa.int64()
    if pa.types.is_list(values.type):
        kind = pa.list_(kind)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path}: column {name}: must be whole numbers, as in training ({error})"
        ) from None
