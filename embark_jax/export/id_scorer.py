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

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.config import ConfigError, nearest
from embark_jax.config import items_of
from embark_jax.data import Batch, BatchChecker, DataError, Jagged
from embark_jax.export.description import (
    DENSE,
    FILE_NAME,
    JAX,
    ONNX,
    TOWERS,
    read_description,
    table_file,
)
from embark_jax.export.lookup import LookupTable, pooled, read_arrays
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
      tables, step, towers, ranks_items: as given.
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
        self.step, self.tables = step, tables
        self.towers, self.ranks_items = towers, ranks_items
        self._features, self._layers = tuple(features), layers
        self._table_names = {f.name: f.table for f in features}
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
        return self._computed(batch, self._layers, columns)

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
        columns = [f"column {number}" for number in range(self._dense_features)]
        batch = Batch(dense, ids, np.empty(0), weights or {})
        return self.user_vectors_of(batch, columns)

    def user_vectors_of(self, batch: Batch, columns: Sequence[str]) -> np.ndarray:
        """Returns the same of a batch; see ``logits_of``."""
        return self._computed(batch, self._ranks().users, columns)

    def item_vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all rows of the item's table, or its keys, int64
        ``[items]``; and their vectors, float32 ``[items, dim]``, as the model compares
        them with those of users.

        Raises:
          ConfigError: if the model does not rank items.
        """
        towers = self._ranks()
        table = self.table_of(towers.item)
        rows, keys = table.rows, table.keys
        blocks = [
            towers.items(
                np.zeros((len(block), self._dense_features), np.float32),
                {towers.item: block},
                {},
            )
            for block in (rows[i : i + BATCH] for i in range(0, len(rows), BATCH))
        ]
        return np.arange(len(rows)) if keys is None else keys, np.concatenate(blocks)

    def table_of(self, feature: str) -> LookupTable:
        """Returns the table that a feature reads."""
        return self.tables[self._table_names[feature]]

    @property
    def item(self) -> str:
        """The item's feature; raises as ``item_vectors``."""
        return self._ranks().item

    def ids_of_items(self, batch: Batch, feature: str) -> np.ndarray:
        """Returns the ids of a feature of items, ``[samples, hotness]``.

        Raises:
          DataError: if it is none.
        """
        table = self._table_names[self.item]
        of_items = [name for name, t in self._table_names.items() if t == table]
        of_items = [name for name in of_items if name in batch.ids]
        if feature not in of_items:
            raise DataError(
                f"{feature}: is no feature of items; {nearest(feature, of_items)}"
            )
        return np.asarray(batch.ids[feature])

    def _ranks(self) -> Towers:
        """Returns the towers of a model that ranks items, by the item's id alone."""
        if self.towers is None:
            raise ConfigError(
                "the model makes no vector of an item's id alone, as two_tower (of one "
                "feature of the item) and next_item do: `embark predict` scores rows"
            )
        return self.towers

    def _computed(
        self, batch: Batch, layers: DenseLayers, columns: Sequence[str]
    ) -> np.ndarray:
        """Returns what layers compute of a batch."""
        count = len(batch.dense)
        optional = {UNIFORM_NEGATIVES} | ({self.towers.item} if self.towers else set())
        absent = {
            f.name: np.full((count, f.hotness), PADDING_ID)
            for f in self._features
            if f.name in optional - batch.ids.keys()
        }
        batch = dataclasses.replace(
            batch, ids={**batch.ids, **absent}, labels=np.zeros(count, np.float32)
        )
        batch = self._check(batch)
        blocks = [
            self._block(batch, layers, slice(start, start + BATCH))
            for start in range(0, max(1, count), BATCH)
        ]
        results = np.concatenate(blocks)
        _check_finite(batch, results, columns)
        return results

    def _block(self, batch: Batch, layers: DenseLayers, block: slice) -> np.ndarray:
        embeddings: dict[str, np.ndarray] = {}
        valid: dict[str, np.ndarray] = {}
        for f in self._features:
            ids, weights = batch.ids[f.name][block], batch.weights.get(f.name)
            weights = None if weights is None else weights[block]
            embeddings[f.name] = pooled(self.tables[f.table], f.pooling, ids, weights)
            if f.pooling == "none":
                valid[f.name] = ids != PADDING_ID
        return layers(batch.dense[block], embeddings, valid)


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
    if not (files / FILE_NAME).exists():
        from embark_jax.export.jax_layers import jax_layers
        from embark_jax.export.trained import TrainedModel

        model = TrainedModel(folder, step, trust_code)
        towers, items = None, items_of(model.run.config.model.model_dump())
        if len(items) == 1:
            users, of_items = (
                jax_layers(functools.partial(model.dense, method=tower), model.params)
                for tower in TOWERS
            )
            towers = Towers(items[0], users, of_items)
        return IdScorer(
            model.features,
            model.dense_features,
            {table.name: model.table(table) for table in model.tables},
            jax_layers(model.dense, model.params),
            model.step,
            towers,
            ranks_items=bool(items),
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
    towers, paths = None, [files / f"{tower}.onnx" for tower in TOWERS]
    items = items_of(description.model)
    if len(items) == 1 and all(path.exists() for path in paths):
        towers = Towers(items[0], *map(onnx_layers, paths))
    return IdScorer(
        description.feature_specs(),
        description.dense_features,
        {
            name: LookupTable.read(files / table_file(name), table)
            for name, table in description.tables.items()
        },
        layers,
        description.step,
        towers,
        ranks_items=bool(items),
    )


def files_of(folder: str | PathLike[str]) -> Path:
    """Returns a folder of this machine with the files of a run or an export."""
    files = local_copy(folder, without=["checkpoints"])
    if not files.is_dir():
        raise DataError(f"{folder}: no such folder, must be that of a run or an export")
    return files
