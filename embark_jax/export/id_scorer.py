"""Scores ids: rows are looked up and pooled in NumPy, for dense layers that are
compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np

from embark_jax.data import Batch, BatchChecker, DataError, Jagged
from embark_jax.data.checks import as_arrays
from embark_jax.export.arrays import read_arrays
from embark_jax.export.dense_layers import BATCH, Arrays, DenseLayers, onnx_layers
from embark_jax.export.description import DENSE, JAX, ONNX
from embark_jax.export.lookup import LookupTable, pooled
from embark_jax.export.reading import ExportedModel
from embark_jax.plans.tables import PADDING_ID, FeatureSpec


class IdScorer:
    """A trained model, which scores ids.

    Args:
      features: the model's features.
      dense_features: number of columns of its dense input.
      tables: the rows of each table.
      layers: the dense layers.
      step: step of the model.

    Attributes:
      tables, step: as given.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        dense_features: int,
        tables: Mapping[str, LookupTable],
        layers: DenseLayers,
        step: int,
    ):
        self.step, self.tables = step, tables
        self._features, self._layers = tuple(features), layers
        self._dense_features = dense_features
        ids = {name: table.ids for name, table in tables.items()}
        self._check = BatchChecker(self._features, ids, dense_features, tasks=0)

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
            shorter; keys, if its table is dynamic, of which those without a row are
            zeros; as in ``data.Batch``.
          weights: for each weighted feature ``[samples, hotness]``.

        Raises:
          DataError: if arrays are missing, unknown, or break these rules, or log odds
            are not finite.
        """
        columns = [f"column {number}" for number in range(self._dense_features)]
        return self.logits_of(Batch(dense, ids, np.empty(0), weights or {}), columns)

    def logits_of(self, batch: Batch, columns: Sequence[str]) -> np.ndarray:
        """Returns the same of a batch, whose labels do not count; ``columns`` are names
        of its dense columns, for messages."""
        batch = as_arrays(batch)
        labels = np.zeros(np.shape(batch.dense)[:1] or 0, np.float32)
        batch = self._check(dataclasses.replace(batch, labels=labels))
        blocks = [
            self._block(
                batch.dense[start : start + BATCH],
                {n: array[start : start + BATCH] for n, array in batch.ids.items()},
                {n: array[start : start + BATCH] for n, array in batch.weights.items()},
            )
            for start in range(0, len(batch), BATCH)
        ]
        logits = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
        _check_finite(batch, logits, columns)
        return logits

    def _block(self, dense: np.ndarray, ids: Arrays, weights: Arrays) -> np.ndarray:
        embeddings = {
            f.name: pooled(
                self.tables[f.table], f.pooling, ids[f.name], weights.get(f.name)
            )
            for f in self._features
        }
        valid = {
            f.name: ids[f.name] != PADDING_ID
            for f in self._features
            if f.pooling == "none"
        }
        return self._layers(dense, embeddings, valid)


def _check_finite(batch: Batch, logits: np.ndarray, columns: Sequence[str]) -> None:
    """Raises ``DataError`` for the first sample whose score is not finite, and names
    its largest number, which is the likely cause."""
    bad = ~np.isfinite(logits).all(axis=tuple(range(1, logits.ndim)))
    if not bad.any():
        return
    sample, largest = int(bad.argmax()), ""
    if columns:
        numbers = np.abs(batch.dense[sample])
        value = batch.dense[sample, numbers.argmax()]
        largest = f"; its largest number is {value:g}, of {columns[numbers.argmax()]}"
    raise DataError(
        f"{batch.locate(sample)}: the score is {logits[sample]}, must be finite"
        f"{largest} ({int(bad.sum())} such samples)"
    )


def load_id_scorer(
    folder: str | PathLike[str], deltas: Sequence[str | PathLike[str]] = ()
) -> IdScorer:
    """Loads an export, to score ids. JAX is not needed, unless it was made with
    ``--no-onnx``.

    Args:
      folder: what ``embark export`` wrote.
      deltas: what ``embark export --since`` wrote since, in the order in which they
        follow each other.

    Raises:
      DataError: if a folder is no export, or is damaged.
      ExportError: if a delta does not follow what is before it, or onnxruntime is not
        installed.
    """
    return scorer_of(ExportedModel.read(folder, deltas))


def scorer_of(model: ExportedModel) -> IdScorer:
    """Returns the scorer of an exported model; see ``load_id_scorer``."""
    folder, description = model.last
    if ONNX in {file.file for file in description.files}:
        layers = onnx_layers(folder / ONNX)
    else:
        from embark_jax.export.jax_layers import jax_layers, read_serialized

        params = read_arrays(folder / DENSE)
        layers = jax_layers(read_serialized(folder / JAX), params)
    return IdScorer(
        description.feature_specs(),
        description.dense_features,
        {name: model.table(name) for name in description.tables},
        layers,
        description.step,
    )
