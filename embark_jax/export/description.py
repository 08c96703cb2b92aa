"""``model.json``, which describes an export and lists its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.errors import DataError
from embark_jax.data.hashed_file import ChecksummedFile, HashedFile
from embark_jax.plans.options import Dtype, Pooling, RowFormat
from embark_jax.plans.tables import FeatureSpec

FILE_NAME = "model.json"
VERSION = 3
DENSE = "dense.safetensors"
ONNX = "model.onnx"
JAX = "dense.jax"
MEND = "copy the export anew, or export the run again"


class ExportError(DataError):
    """A run that cannot be exported, or an export that cannot be used so."""


class InitialRows(Config):
    """The rows that keys of a dynamic table begin with.

    Attributes:
      key: the two words of the random key of all tables.
      table: number of the table.
      scale: largest absolute value.
      dtype: number format in which training holds the rows.
    """

    key: tuple[NonNegativeInt, NonNegativeInt]
    table: NonNegativeInt
    scale: float
    dtype: Dtype = "float32"


class ExportedTable(Config):
    """A table; a dynamic one has no number of rows, but initial rows."""

    rows: PositiveInt | None = None
    dim: PositiveInt
    initial: InitialRows | None = None


class ExportedFeature(Config):
    """A feature, like ``FeatureSpec``."""

    table: str
    hotness: PositiveInt
    pooling: Pooling
    weighted: bool


class Description(ChecksummedFile):
    """All that is known of an export.

    Attributes:
      name, step: of the run, and of its checkpoint.
      since: step of an earlier export; this one has only the rows that have changed.
      parent: SHA-256 of the ``model.json`` of that export, in a chain of exports.
      model: the ``model`` section of the run's config.
      dense_features: number of columns of the dense input.
      row_format: format of the rows in the files of tables.
      files: all other files.
    """

    version: Literal[3] = VERSION
    name: str
    step: NonNegativeInt
    since: NonNegativeInt | None = None
    parent: str | None = None
    model: Mapping[str, Any]
    dense_features: NonNegativeInt
    row_format: RowFormat
    features: Mapping[str, ExportedFeature]
    tables: Mapping[str, ExportedTable]
    files: tuple[HashedFile, ...]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Description:
        """Raises ``ValueError`` if what it says does not fit together."""
        for name, feature in self.features.items():
            if feature.table not in self.tables:
                raise ValueError(f"features.{name}: has no table {feature.table!r}")
        for name, table in self.tables.items():
            if (table.rows is None) != (table.initial is not None):
                raise ValueError(f"tables.{name}: must have either rows or initial")
        listed = {file.file for file in self.files}
        needed = {DENSE, *map(table_file, self.tables)}
        if self.since is None:
            needed.add(JAX)
        if missing := sorted(needed - listed):
            raise ValueError(f"files: lack {', '.join(missing)}")
        return self

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """Returns the features in their order."""
        return tuple(
            FeatureSpec(name, **feature.model_dump())
            for name, feature in self.features.items()
        )

    def save(self, folder: Path) -> None:
        """Writes ``model.json``: from then on the export is complete."""
        self.write(folder / FILE_NAME)


def table_file(name: str) -> str:
    """Returns the path of a table's rows in an export."""
    return f"tables/{name}.safetensors"


def read_description(folder: Path) -> Description:
    """Reads ``model.json``, and every file that it lists, to compare their SHA-256.

    Raises:
      DataError: if one is missing, damaged, or outside the folder.
    """
    description = parse_description(folder)
    for file in description.files:
        file.verified(folder, MEND)
    return description


def parse_description(folder: Path) -> Description:
    """Reads ``model.json``, but no other file.

    Raises:
      DataError: if it is damaged.
    """
    return Description.of_file(folder / FILE_NAME, MEND)
