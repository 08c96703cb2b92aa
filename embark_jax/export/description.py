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
from embark_jax.data.manifest import Hotness
from embark_jax.plans.options import Pooling
from embark_jax.plans.tables import FeatureSpec

FILE_NAME = "model.json"
VERSION = 6
DENSE = "dense.safetensors"
ONNX = "model.onnx"
JAX = "dense.jax"
TOWERS = ("users", "items")
"""Methods of a model of two towers: ``(dense, embeddings) -> vectors [batch, width]``;
their graphs are files of these names."""
MEND = "copy the export anew, or export the run again"


class ExportError(DataError):
    """A run that cannot be exported, or an export that cannot be used so."""


class ExportedTable(Config):
    """A table; a dynamic one, whose rows have keys, has no number of rows."""

    rows: PositiveInt | None = None
    dim: PositiveInt


class ExportedFeature(Config):
    """A feature, like ``FeatureSpec``."""

    table: str
    hotness: Hotness
    pooling: Pooling
    weighted: bool


class Description(ChecksummedFile):
    """All that is known of an export.

    Attributes:
      name, step: of the run, and of its checkpoint.
      model: the ``model`` section of the run's config.
      dense_features: number of columns of the dense input.
      files: all other files.
    """

    version: Literal[6] = VERSION
    name: str
    step: NonNegativeInt
    model: Mapping[str, Any]
    dense_features: NonNegativeInt
    features: Mapping[str, ExportedFeature]
    tables: Mapping[str, ExportedTable]
    files: tuple[HashedFile, ...]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Description:
        """Raises ``ValueError`` if what it says does not fit together."""
        for name, feature in self.features.items():
            if feature.table not in self.tables:
                raise ValueError(f"features.{name}: has no table {feature.table!r}")
        listed = {file.file for file in self.files}
        needed = {DENSE, JAX, *map(table_file, self.tables)}
        if missing := sorted(needed - listed):
            raise ValueError(f"files: lack {', '.join(missing)}")
        return self

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """Returns the features in their order."""
        return tuple(
            FeatureSpec(name, **feature.model_dump())
            for name, feature in self.features.items()
        )


def table_file(name: str) -> str:
    """Returns the path of a table's rows in an export."""
    return f"tables/{name}.safetensors"


def read_description(folder: Path) -> Description:
    """Reads ``model.json``, and every file that it lists, to compare their checksums.

    Raises:
      DataError: if one is missing, damaged, or outside the folder.
    """
    description = Description.of_file(folder / FILE_NAME, MEND)
    for file in description.files:
        file.verified(folder, MEND)
    return description
