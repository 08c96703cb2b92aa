"""Scores ids: rows are looked up and pooled in NumPy, for dense layers that are
compiled."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.files import sha256_of
from embark_jax.data import Batch, BatchChecker, Jagged
from embark_jax.export.arrays import checked_array, read_arrays
from embark_jax.export.dense_layers import BATCH, Arrays, DenseLayers, OnnxLayers
from embark_jax.export.description import (
    DENSE,
    FILE_NAME,
    JAX,
    ONNX,
    Description,
    ExportError,
    read_description,
)
from embark_jax.export.lookup import LookupTable, pooled, read_table
from embark_jax.plans.tables import FeatureSpec


class IdScorer:
    """A trained model, which scores ids.

    Args:
      features: the model's features.
      dense_features: number of columns of its dense input.
      tables: the rows of each table.
      layers: the dense layers.
      params: their parameters, by dotted path.
      step: step of the model.
      digest: SHA-256 of the ``model.json`` that it was loaded from, if it was.

    Attributes:
      tables, params, step, digest: as given, with all updates.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        dense_features: int,
        tables: Mapping[str, LookupTable],
        layers: DenseLayers,
        params: Arrays,
        step: int,
        digest: str | None = None,
    ):
        self.step, self.digest = step, digest
        self._dense_features = dense_features
        self._features, self.tables = tuple(features), dict(tables)
        self._check = self._checker()
        self._layers, self.params = layers, params
        self._lock = threading.Lock()  # of what a batch is scored with
        self._updating = threading.Lock()

    def logits(
        self,
        dense: np.ndarray,
        ids: Mapping[str, np.ndarray | Jagged],
        weights: Mapping[str, np.ndarray | Jagged] | None = None,
    ) -> np.ndarray:
        """Returns log odds, float32 ``[samples]`` or ``[samples, tasks]``.

        Args:
          dense: ``[samples, dense_features]``.
          ids: for each feature ``[samples, hotness]`` integers, -1 where a bag is
            shorter; keys, if its table is dynamic; as in ``data.Batch``.
          weights: for each weighted feature ``[samples, hotness]``.

        Raises:
          DataError: if arrays are missing, unknown, or break these rules.
        """
        labels = np.zeros(np.shape(dense)[:1], np.float32)  # which nothing reads
        batch = self._check(Batch(dense, ids, labels, weights or {}))
        blocks = [
            self._block(
                batch.dense[start : start + BATCH],
                {n: array[start : start + BATCH] for n, array in batch.ids.items()},
                {n: array[start : start + BATCH] for n, array in batch.weights.items()},
            )
            for start in range(0, len(batch), BATCH)
        ]
        return np.concatenate(blocks) if blocks else np.empty(0, np.float32)

    def update(self, folder: str | Path) -> None:
        """Takes over what has changed since the model's step; threads that score
        meanwhile use all of it or nothing for each 4,096 samples.

        Args:
          folder: what ``embark export --since`` wrote.

        Raises:
          ExportError: if its changes do not begin at the model's step, or have rows in
            another format; nothing changes.
          DataError: if a file is not as it was written; nothing changes.
        """
        folder = local_copy(folder)
        with self._updating:
            description = read_description(folder)
            self._check_fits(folder, description)
            changes = {
                name: read_table(folder, description, name) for name in self.tables
            }
            arrays = read_arrays(folder / DENSE)
            params = {
                name: checked_array(folder / DENSE, arrays, name, a.shape, a.dtype)
                for name, a in self.params.items()
            }
            layers = self._layers.with_params(params)
            digest = sha256_of(folder / FILE_NAME)
            with self._lock:
                self._layers, self.params = layers, params
                self.step, self.digest = description.step, digest
                for name, table in self.tables.items():
                    table.update(changes[name], description.tables[name].rows)
                self._check = self._checker()

    def _checker(self) -> BatchChecker:
        ids = {name: table.ids for name, table in self.tables.items()}
        return BatchChecker(self._features, ids, self._dense_features, tasks=0)

    def _check_fits(self, folder: Path, description: Description) -> None:
        """Raises ``ExportError`` unless an export has changes of this model."""
        if description.since is None:
            raise ExportError(
                f"{folder}: is a whole export, must be one made with --since"
            )
        if description.parent is not None and self.digest is not None:
            if description.parent != self.digest:
                raise ExportError(
                    f"{folder}: follows the export with the SHA-256 "
                    f"{description.parent}, but the model is of {self.digest}; apply "
                    "all changes in their order"
                )
        elif description.since != self.step:
            raise ExportError(
                f"{folder}: has what changed since step {description.since}, but the "
                f"model is of step {self.step}; apply all changes in their order"
            )
        shapes = {name: table.dim for name, table in description.tables.items()}
        own = {name: table.values.shape[1] for name, table in self.tables.items()}
        if shapes != own:
            raise ExportError(
                f"{folder}: has tables of the dims {shapes}, but the model has {own}"
            )
        for name, table in self.tables.items():
            if (rows := description.tables[name].rows) is not None and rows < table.ids:
                raise ExportError(
                    f"{folder}: has {rows:,} rows of table {name!r}, but the model has "
                    f"{table.ids:,}; rows never become fewer"
                )
        for table in self.tables.values():
            if table.row_format != description.row_format:
                raise ExportError(
                    f"{folder}: has rows in {description.row_format}, but the model "
                    f"has them in {table.row_format}; export the changes with "
                    f"--rows {table.row_format}"
                )

    def _block(self, dense: np.ndarray, ids: Arrays, weights: Arrays) -> np.ndarray:
        with self._lock:
            embeddings = {
                f.name: pooled(
                    self.tables[f.table], f.pooling, ids[f.name], weights.get(f.name)
                )
                for f in self._features
            }
            return self._layers(dense, embeddings)


def load_id_scorer(folder: str | Path) -> IdScorer:
    """Loads an export, to score ids. JAX is not needed, unless it was made with
    ``--no-onnx``.

    Raises:
      DataError: if the folder is no export, or is damaged.
      ExportError: if it has changes alone, or onnxruntime is not installed.
    """
    folder = local_copy(folder)
    description = read_description(folder)
    if description.since is not None:
        raise ExportError(
            f"{folder}: has changes since step {description.since} alone; load a whole "
            "export, and update it with this"
        )
    params = read_arrays(folder / DENSE)
    if ONNX in {file.file for file in description.files}:
        layers = OnnxLayers(folder / ONNX)
    else:
        from embark_jax.export.jax_layers import JaxLayers, read_serialized

        layers = JaxLayers(read_serialized(folder / JAX), params)
    return IdScorer(
        description.feature_specs(),
        description.dense_features,
        {name: read_table(folder, description, name) for name in description.tables},
        layers,
        params,
        description.step,
        sha256_of(folder / FILE_NAME),
    )
