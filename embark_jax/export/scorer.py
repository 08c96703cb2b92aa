"""Scores ids, and raw rows, with the trained model of a run or an export.

Rows are looked up and pooled in NumPy, for dense layers that are compiled. Tables are
in host memory. Neither mesh nor plan are needed; an export needs no JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.config import ConfigError
from embark_jax.data import Batch, BatchChecker, DataError, Jagged
from embark_jax.export.description import (
    DENSE,
    FILE_NAME,
    JAX,
    ONNX,
    read_description,
    table_file,
)
from embark_jax.export.lookup import LookupTable, pooled, read_arrays
from embark_jax.export.onnx_layers import BATCH, DenseLayers, onnx_layers
from embark_jax.plans.tables import PADDING_ID, FeatureSpec
from embark_jax.prepare.raw_rows import RowEncoder

if TYPE_CHECKING:
    from embark_jax.metrics.pointwise import Metrics


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
        labels = np.zeros(len(batch.dense), np.float32)
        batch = self._check(dataclasses.replace(batch, labels=labels))
        blocks = [
            self._block(batch, slice(start, start + BATCH))
            for start in range(0, len(batch), BATCH)
        ]
        logits = np.concatenate(blocks or [np.empty(0, np.float32)])
        _check_finite(batch, logits, columns)
        return logits

    def _block(self, batch: Batch, block: slice) -> np.ndarray:
        embeddings: dict[str, np.ndarray] = {}
        valid: dict[str, np.ndarray] = {}
        for f in self._features:
            ids, weights = batch.ids[f.name][block], batch.weights.get(f.name)
            weights = None if weights is None else weights[block]
            embeddings[f.name] = pooled(self.tables[f.table], f.pooling, ids, weights)
            if f.pooling == "none":
                valid[f.name] = ids != PADDING_ID
        return self._layers(batch.dense[block], embeddings, valid)


def _check_finite(batch: Batch, logits: np.ndarray, columns: Sequence[str]) -> None:
    """Raises ``DataError`` for the first sample whose score is not finite, and names
    its largest number, which is the likely cause."""
    bad = ~np.isfinite(logits).all(axis=tuple(range(1, logits.ndim)))
    if not bad.any():
        return
    sample, largest = int(bad.argmax()), ""
    if columns:
        numbers = batch.dense[sample]
        column = int(np.abs(numbers).argmax())
        largest = f"; its largest number is {numbers[column]:g}, of {columns[column]}"
    raise DataError(
        f"{batch.locate(sample)}: the score is {logits[sample]}, must be finite"
        f"{largest} ({int(bad.sum())} such samples)"
    )


def _probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))


class Scorer:
    """A trained model, with the encoder that makes its inputs from raw rows.

    Args:
      rows: makes batches from raw rows.
      model: scores batches.

    Attributes:
      tasks: names of the model's tasks, if it has several.
      step: step of the model.
    """

    def __init__(self, rows: RowEncoder, model: IdScorer):
        self.tasks, self.step = rows.labels, model.step
        self._rows, self._model = rows, model

    def predict(self, rows: Any) -> np.ndarray:
        """Returns probabilities of label 1, float64 ``[rows]`` in the order of the
        rows, or ``[rows, tasks]``.

        Args:
          rows: a path, columns, or a data frame, as in ``RowEncoder.batches``.

        Raises:
          DataError: if a column is missing, a value breaks a rule, or a probability is
            no number.
        """
        return _probabilities(self._scored(rows)[0])

    def evaluate(self, rows: Any) -> tuple[np.ndarray, Metrics | None]:
        """Returns what ``predict`` returns, and metrics if all rows have labels."""
        from embark_jax.metrics.pointwise import evaluate

        logits, batches = self._scored(rows)
        metrics = None
        if batches and all(has_labels for _, has_labels in batches):
            labels = np.concatenate([batch.labels for batch, _ in batches])
            weights = [batch.sample_weights for batch, _ in batches]
            given = [each for each in weights if each is not None]
            metrics = evaluate(labels, logits, np.concatenate(given) if given else None)
        return _probabilities(logits), metrics

    def _scored(self, rows: Any) -> tuple[np.ndarray, list[tuple[Batch, bool]]]:
        """Returns log odds in float64, batches, and whether these have labels."""
        logits, batches = [np.empty((0, len(self.tasks)) if self.tasks else 0)], []
        for batch, has_labels in self._rows.batches(rows):
            batches.append((batch, has_labels))
            if len(batch):
                logits.append(self._model.logits_of(batch, self._rows.dense))
        return np.concatenate(logits), batches

    def kept(self, rows: str | Path, names: Sequence[str]) -> pa.Table:
        """Returns columns of files, one row for each that ``predict`` scores.

        Raises:
          DataError: if there is no such column.
        """
        return self._rows.kept(Path(rows), names)

    @property
    def cut(self) -> Mapping[str, int]:
        """For each feature, how many values of too long lists were left out so far."""
        return self._rows.cut


def load_id_scorer(
    folder: str | PathLike[str], step: int | None = None, *, trust_code: bool = False
) -> IdScorer:
    """Loads the model of a run or an export, to score ids.

    JAX is needed for a run, and for an export that was made with ``--no-onnx``.

    Args:
      folder: the run folder or the export; it may be in a bucket.
      step: step of a run's checkpoint; None takes the best of a run that stopped
        early, or the newest.
      trust_code: whether a model of the user's own may run, from where Python
        finds it. An export has none.

    Raises:
      ConfigError, CheckpointError, DataError: if the folder is not there, holds no
        model, or is damaged, or its code is not trusted.
      ExportError: if onnxruntime is not installed.
    """
    files = _files(folder)
    if not (files / FILE_NAME).exists():
        from embark_jax.export.jax_layers import jax_layers
        from embark_jax.export.trained import TrainedModel

        model = TrainedModel(folder, step, trust_code)
        return IdScorer(
            model.features,
            model.dense_features,
            {table.name: model.table(table) for table in model.tables},
            jax_layers(model.dense, model.params),
            model.step,
        )
    if step is not None:
        raise ConfigError(
            f"{folder}: is an export, which has one step: leave out --step"
        )
    description = read_description(files)
    if ONNX in {file.file for file in description.files}:
        layers = onnx_layers(files / ONNX)
    else:
        from embark_jax.export.jax_layers import jax_layers, read_serialized

        layers = jax_layers(read_serialized(files / JAX), read_arrays(files / DENSE))
    return IdScorer(
        description.feature_specs(),
        description.dense_features,
        {
            name: LookupTable.read(files / table_file(name), table)
            for name, table in description.tables.items()
        },
        layers,
        description.step,
    )


def load_scorer(
    folder: str | PathLike[str], step: int | None = None, *, trust_code: bool = False
) -> Scorer:
    """Loads the model of a run or an export, to score raw rows.

    Arguments and errors are those of ``load_id_scorer``.

    Raises:
      DataError: also if the model was not trained on a user's own files.
    """
    model = load_id_scorer(folder, step, trust_code=trust_code)
    return Scorer(RowEncoder(_files(folder)), model)


def _files(folder: str | PathLike[str]) -> Path:
    """Returns a folder of this machine with the files of a run or an export."""
    files = local_copy(folder, without=["checkpoints"])
    if not files.is_dir():
        raise DataError(f"{folder}: no such folder, must be that of a run or an export")
    return files
