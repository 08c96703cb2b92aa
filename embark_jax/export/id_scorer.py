"""Scores ids with the trained model of a run or an export.

Rows are looked up and pooled in NumPy, for dense layers that are compiled. Tables are
in host memory. Neither mesh nor plan are needed; an export needs no JAX.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.config import ConfigError, nearest
from embark_jax.data import Batch, BatchChecker, DataError, Jagged
from embark_jax.export.exported import (
    CALL,
    DENSE,
    FILE_NAME,
    TOWERS,
    jax_file,
    onnx_file,
    read_exported,
    table_file,
)
from embark_jax.export.lookup import LookupTable, pooled
from embark_jax.export.onnx_layers import BATCH, DenseLayers, onnx_layers
from embark_jax.plans.tables import PADDING_ID, UNIFORM_NEGATIVES, FeatureSpec


class Towers(NamedTuple):
    """What makes the vectors that a model compares to rank items.

    Attributes:
      item: the item's feature, of whose id alone its vector is made.
      users, items: make vectors of users, and of rows of items.
    """

    item: str
    users: DenseLayers
    items: DenseLayers


class IdScorer:
    """A trained model, which scores ids.

    Args:
      features: the model's features.
      dense_features: number of columns of its dense input.
      tables: the rows of each table.
      layers: the dense layers.
      step: step of the model.
      towers: makes vectors of users and items, if the model compares such.
      ranks_items: whether scores order items, and are no log odds.

    Attributes:
      tables, step, ranks_items: as given.
      dense_names: names of the columns of its dense input, for messages.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        dense_features: int,
        tables: Mapping[str, LookupTable],
        layers: DenseLayers,
        step: int,
        towers: Towers | None = None,
        ranks_items: bool = False,
    ):
        self.step, self.tables, self.ranks_items = step, tables, ranks_items
        self._features, self._layers, self._towers = tuple(features), layers, towers
        self._table_names = {f.name: f.table for f in features}
        self.dense_names = [f"column {number}" for number in range(dense_features)]
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
        return self.score(Batch(dense, ids, np.empty(0), weights or {}))

    def user_vectors(
        self,
        dense: np.ndarray,
        ids: Mapping[str, np.ndarray | Jagged],
        weights: Mapping[str, np.ndarray | Jagged] | None = None,
    ) -> np.ndarray:
        """Returns the vectors of users, float32 ``[samples, dim]``, as the model
        compares them with those of items. Arguments are as for ``logits``; those of the
        item may be left out.

        Raises:
          ConfigError: if the model does not rank items.
          DataError: as ``logits``.
        """
        batch = Batch(dense, ids, np.empty(0), weights or {})
        return self.score(batch, self.towers.users)

    def item_vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all rows of the item's table, or its keys, int64
        ``[items]``; and their vectors, float32 ``[items, dim]``, as the model compares
        them with those of users.

        Raises:
          ConfigError: if the model does not rank items.
        """
        item, table = self.towers.item, self.table_of(self.towers.item)
        ids = np.arange(len(table.rows)) if table.keys is None else table.keys

        def vectors(some: np.ndarray) -> np.ndarray:
            absent = {
                f.name: np.full((len(some), f.hotness), PADDING_ID)
                for f in self._features
            }
            dense = np.zeros((len(some), len(self.dense_names)), np.float32)
            batch = Batch(dense, absent | {item: some[:, None]}, np.empty(0))
            return self._computed(batch, self.towers.items)

        starts = range(0, len(ids), BATCH)
        return ids, np.concatenate([vectors(ids[i : i + BATCH]) for i in starts])

    def table_of(self, feature: str) -> LookupTable:
        """Returns the table that a feature reads."""
        return self.tables[self._table_names[feature]]

    def ids_of_items(self, batch: Batch, feature: str) -> np.ndarray:
        """Returns the ids of a feature of items, ``[samples, hotness]``.

        Raises:
          DataError: if it is none.
        """
        table = self._table_names[self.towers.item]
        names = [n for n, t in self._table_names.items() if t == table]
        names = [name for name in names if name in batch.ids]
        if feature not in names:
            raise DataError(
                f"{feature}: is no feature of items; {nearest(feature, names)}"
            )
        return np.asarray(batch.ids[feature])

    @property
    def towers(self) -> Towers:
        """What makes the vectors of a model that ranks items, by the item's id alone.

        Raises:
          ConfigError: if the model does not.
        """
        if self._towers is None:
            raise ConfigError(
                "the model makes no vector of an item's id alone, as two_tower (of one "
                "feature of the item), next_item, and models of your own with an item "
                "do: `embark predict` scores rows"
            )
        return self._towers

    def score(self, batch: Batch, layers: DenseLayers | None = None) -> np.ndarray:
        """Returns what layers, such as ``towers.users``, compute of a batch, whose
        labels do not count; by default logits.

        Raises:
          DataError: as ``logits``.
        """
        count = len(batch.dense)
        optional = {UNIFORM_NEGATIVES, self._towers.item if self._towers else None}
        absent = {
            f.name: np.full((count, f.hotness), PADDING_ID)
            for f in self._features
            if f.name in optional - batch.ids.keys()
        }
        batch = dataclasses.replace(
            batch, ids={**batch.ids, **absent}, labels=np.zeros(count, np.float32)
        )
        batch, layers = self._check(batch), layers or self._layers
        starts = range(0, max(1, count), BATCH)
        results = np.concatenate(
            [self._computed(batch, layers, slice(i, i + BATCH)) for i in starts]
        )
        self._check_finite(batch, results)
        return results

    def _computed(
        self, batch: Batch, layers: DenseLayers, block: slice = slice(None)
    ) -> np.ndarray:
        """Returns what layers compute of a block of samples."""
        embeddings: dict[str, np.ndarray] = {}
        valid: dict[str, np.ndarray] = {}
        for f in self._features:
            ids, weights = batch.ids[f.name][block], batch.weights.get(f.name)
            weights = None if weights is None else weights[block]
            embeddings[f.name] = pooled(self.tables[f.table], f.pooling, ids, weights)
            if f.pooling == "none":
                valid[f.name] = ids != PADDING_ID
        return layers(batch.dense[block], embeddings, valid)

    def _check_finite(self, batch: Batch, scores: np.ndarray) -> None:
        """Raises ``DataError`` for the first sample whose score is not finite, and
        names its largest number, which is the likely cause."""
        bad = ~np.isfinite(scores).all(axis=tuple(range(1, scores.ndim)))
        if not bad.any():
            return
        sample, largest = int(bad.argmax()), ""
        if self.dense_names:
            numbers = batch.dense[sample]
            column = int(np.abs(numbers).argmax())
            name = self.dense_names[column]
            largest = f"; its largest number is {numbers[column]:g}, of {name}"
        raise DataError(
            f"{batch.locate(sample)}: the score is {scores[sample]}, must be finite"
            f"{largest} ({int(bad.sum())} such samples)"
        )


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
    files = files_of(folder)
    if (files / FILE_NAME).exists():
        if step is not None:
            raise ConfigError(
                f"{folder}: is an export, which has one step: leave out --step"
            )
        return _exported_scorer(files)
    from embark_jax.export.jax_layers import jax_layers
    from embark_jax.export.trained import TrainedModel

    model = TrainedModel(folder, step, trust_code)
    dense = model.dense

    def layers(method: str) -> DenseLayers:
        return jax_layers(functools.partial(dense, method=method), model.params)

    return IdScorer(
        model.features,
        model.dense_features,
        {table.name: model.table(table) for table in model.tables},
        layers(CALL),
        model.step,
        Towers(dense.item, *map(layers, TOWERS)) if dense.item else None,
        dense.ranks_items,
    )


def _exported_scorer(files: Path) -> IdScorer:
    """Loads the model of an export."""
    model = read_exported(files)
    listed = {file.file for file in model.files}

    def layers(method: str) -> DenseLayers:
        if onnx_file(method) in listed:
            return onnx_layers(files / onnx_file(method))
        from embark_jax.export.jax_layers import jax_layers, read_serialized

        call = read_serialized(files / jax_file(method))
        return jax_layers(call, load_file(files / DENSE))

    return IdScorer(
        model.feature_specs(),
        model.dense_features,
        {name: LookupTable.read(files / table_file(name)) for name in model.tables},
        layers(CALL),
        model.step,
        Towers(model.item, *map(layers, TOWERS)) if model.item else None,
        model.ranks_items,
    )


def files_of(folder: str | PathLike[str]) -> Path:
    """Returns a folder of this machine with the files of a run or an export."""
    files = local_copy(folder, without=["checkpoints"])
    if not files.is_dir():
        raise DataError(f"{folder}: no such folder, must be that of a run or an export")
    return files
