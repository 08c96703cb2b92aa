"""``model.json``, which describes an export and lists its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from embark_jax._base.config import Config
from embark_jax._base.errors import DataError
from embark_jax.data.hashed_file import ChecksummedFile, HashedFile
from embark_jax.data.manifest import Feature
from embark_jax.plans.tables import FeatureSpec

FILE_NAME = "model.json"
VERSION = 6
DENSE = "dense.safetensors"
CALL = "__call__"
TOWERS = ("users", "items")
"""Methods of a model of two towers: ``(dense, embeddings) -> vectors [batch, width]``.
"""
REMEDY = "copy the export anew, or export the run again"


class ExportError(DataError):
    """A run that cannot be exported, or an export that cannot be used so."""


class ExportedTable(Config):
    """A table; a dynamic one, whose rows have keys, has no number of rows."""

    rows: PositiveInt | None = None
    dim: PositiveInt


class ExportedModel(ChecksummedFile):
    """All that is known of an export.

    Attributes:
      name, step: of the run, and of its checkpoint.
      model: the ``model`` section of the run's config.
      item: the item's feature, if the model compares vectors of users with vectors that
        are made of an item's id alone.
      ranks_items: whether scores order items, and are no log odds.
      dense_features: number of columns of the dense input.
      files: all other files.
    """

    version: Literal[6] = VERSION
    name: str
    step: NonNegativeInt
    model: Mapping[str, Any]
    item: str | None = None
    ranks_items: bool = False
    dense_features: NonNegativeInt
    features: Mapping[str, Feature]
    tables: Mapping[str, ExportedTable]
    files: tuple[HashedFile, ...]

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """Returns the features in their order."""
        return tuple(feature.spec(name) for name, feature in self.features.items())


def onnx_file(method: str) -> str:
    """Returns the path of a method's graph in an export."""
    return f"{'model' if method == CALL else method}.onnx"


def jax_file(method: str) -> str:
    """Returns the path of a method as ``jax.export`` keeps it, in an export."""
    return f"{'dense' if method == CALL else method}.jax"


def table_file(name: str) -> str:
    """Returns the path of a table's rows in an export."""
    return f"tables/{name}.safetensors"


def read_exported(folder: Path) -> ExportedModel:
    """Reads ``model.json``, and every file that it lists, to compare their checksums.

    Raises:
      DataError: if one is missing, damaged, or outside the folder.
    """
    exported = ExportedModel.of_file(folder / FILE_NAME, REMEDY)
    for file in exported.files:
        file.verified(folder, REMEDY)
    return exported
