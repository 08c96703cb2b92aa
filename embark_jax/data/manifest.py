"""The manifest of prepared data: what is in a folder that `embark data prepare` made.

Such a folder holds ``manifest.json`` and, for each split, Arrow IPC files that are read
by memory mapping: a column for the label, each dense feature and each feature's ids, in
record batches of ``block_rows`` samples. ``vocabulary/`` says which value each id is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pydantic
from pydantic import NonNegativeInt, PositiveInt

from embark_jax.config import Config
from embark_jax.data.batch import DataError, id_dtype
from embark_jax.data.files import sha256_of, write_arrow, write_json
from embark_jax.tables import FeatureSpec, Pooling

FILE_NAME = "manifest.json"
LABEL = "label"
SPLITS = ("train", "validation", "test")
BLOCK_BYTES = 2**20
"""Of samples that are read and shuffled as one; a disk reads so much at full speed."""


class Part(Config):
    """One file: its place below the folder, and what must be in it."""

    file: str
    rows: PositiveInt
    bytes: PositiveInt
    sha256: str


class PreparedFeature(Config):
    """A feature, as ``FeatureSpec``.

    With ``bags_of_one_id`` the files hold one id a sample, and the bag is made of it
    when it is read (``data/multi_hot.py``).
    """

    table: str
    hotness: PositiveInt
    pooling: Pooling
    bags_of_one_id: bool = False

    def spec(self, name: str) -> FeatureSpec:
        return FeatureSpec(name, self.table, self.hotness, self.pooling)

    @property
    def stored_hotness(self) -> int:
        return 1 if self.bags_of_one_id else self.hotness


class Manifest(Config):
    """All that is known of a folder of prepared data.

    Attributes:
      made_from: data set, options and raw files, as given.
      dense: names of the dense features.
      features: by name, in order.
      table_rows: rows of each table.
      block_rows: samples of each record batch but the last of a file.
      parts: files of each split, in order.
      skipped_lines: bad lines of the raw files that are not in the samples.
    """

    version: Literal[1] = 1
    made_from: Mapping[str, Any]
    dense: tuple[str, ...]
    features: Mapping[str, PreparedFeature]
    table_rows: Mapping[str, PositiveInt]
    block_rows: PositiveInt
    parts: Mapping[str, tuple[Part, ...]]
    skipped_lines: NonNegativeInt = 0
    bayes_auc: float | None = None

    @classmethod
    def of(cls, **known: Any) -> Manifest:
        """A manifest without files, whose blocks fill BLOCK_BYTES."""
        manifest = cls(**known, block_rows=1, parts=dict.fromkeys(SPLITS, ()))
        row_bytes = 4 * (1 + len(manifest.dense)) + sum(
            feature.stored_hotness
            * id_dtype(manifest.table_rows[feature.table]).itemsize
            for feature in manifest.features.values()
        )
        rows = 2 ** max(0, int(math.log2(BLOCK_BYTES / row_bytes)))
        return manifest.model_copy(update={"block_rows": rows})

    def rows(self, split: str) -> int:
        """Samples of a split."""
        return sum(part.rows for part in self.parts[split])

    def schema(self) -> pa.Schema:
        """Columns of every file."""
        columns = [(name, pa.float32()) for name in (LABEL, *self.dense)]
        for name, feature in self.features.items():
            ids = pa.from_numpy_dtype(id_dtype(self.table_rows[feature.table]))
            if feature.stored_hotness > 1:
                ids = pa.list_(ids, feature.stored_hotness)
            columns.append((name, ids))
        return pa.schema(columns)

    def save(self, folder: Path) -> None:
        """Writes the manifest: from then on the folder is complete."""
        write_json(folder / FILE_NAME, self.model_dump(mode="json"))


def load(folder: Path) -> Manifest:
    """Reads the manifest of a folder, and looks whether its files are whole by size.

    Raises:
      DataError: if the folder is not, or not wholly, prepared, or a file is not whole.
    """
    path = folder / FILE_NAME
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; `embark data prepare` makes such a folder, and "
            "writes this file last: run it again to go on"
        ) from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path}: {where}: {first['msg']}; prepare the data again"
        ) from None
    for part in all_parts(manifest):
        file = folder / part.file
        size = file.stat().st_size if file.is_file() else None
        if size != part.bytes:
            found = "is missing" if size is None else f"has {size:,} bytes"
            raise DataError(
                f"{file}: {found}, must have {part.bytes:,}; prepare the data again"
            )
    return manifest


def all_parts(manifest: Manifest) -> list[Part]:
    """The parts of all splits."""
    return [part for parts in manifest.parts.values() for part in parts]


def write_part(folder: Path, file: str, table: pa.Table, block_rows: int) -> Part:
    """Writes a part, whole or not at all."""
    path = folder / file
    write_arrow(path, table, block_rows)
    size = path.stat().st_size
    return Part(file=file, rows=len(table), bytes=size, sha256=sha256_of(path))
