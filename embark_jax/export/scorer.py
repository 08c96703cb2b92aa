"""Scores raw rows with the trained model of a run or an export.

Tables are in host memory: rows are looked up and pooled there, and the dense layers are
compiled for one device. Neither mesh nor plan are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pydantic

from embark_jax._base.config import Config, ConfigError
from embark_jax._base.storage import local
from embark_jax.config import AnyModelConfig, ModelConfig, code_of, copy_path, trusted
from embark_jax.data import Batch
from embark_jax.data.prepare.raw_rows import RowEncoder
from embark_jax.export.errors import ExportError
from embark_jax.export.lookup import (
    KeyedRows,
    apply_delta,
    embed,
    read_table,
)
from embark_jax.export.reading import (
    DESCRIPTION,
    inside,
    read_description,
    read_safetensors,
)
from embark_jax.export.scoring import dense_function, initial, random_key
from embark_jax.metrics.pointwise import Metrics, evaluate
from embark_jax.plans.tables import PADDING_ID, FeatureSpec, TableSpec
from embark_jax.run.saved import SavedModel, best_step, read_config
from embark_jax.train.step import MATMUL_PRECISION

BATCH = 4096
"""Number of samples that are scored at once."""


class Scorer:
    """A trained model, with the encoder that makes its inputs from raw rows.

    Args:
      rows: makes batches from raw rows.
      model: the model's config.
      tables, features: the model's tables and features.
      dense_features: number of columns of its dense input.
      params: parameters of the dense layers, by dotted path.
      arrays: the rows of each table: ``[rows, dim]``, or ``KeyedRows``.
      step: step of the model.

    Attributes:
      tasks: names of the model's tasks, if it has several.
    """

    def __init__(
        self,
        rows: RowEncoder,
        model: AnyModelConfig,
        tables: tuple[TableSpec, ...],
        features: tuple[FeatureSpec, ...],
        dense_features: int,
        params: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray | KeyedRows],
        step: int,
    ):
        self.tasks = rows.labels
        forward, _ = dense_function(model, tables, features, dense_features)
        self._forward = jax.jit(forward)
        self._params = jax.tree.map(jax.numpy.asarray, dict(params))
        self._features, self._arrays, self._rows = features, dict(arrays), rows
        self._step, self._lock = step, threading.Lock()

    def predict(self, rows: Any) -> np.ndarray:
        """Probabilities of label 1, float64 ``[rows]`` in the order of the rows, or
        ``[rows, tasks]``.

        Args:
          rows: a path, columns, or a data frame, as in ``RowEncoder.batches``.

        Raises:
          DataError: if a column is missing or a value breaks a rule.
        """
        return self.evaluate(rows)[0]

    def evaluate(self, rows: Any) -> tuple[np.ndarray, Metrics | None]:
        """Returns what ``predict`` returns, and metrics if all rows have labels."""
        scored = list(self._scored(rows))
        logits = self._joined([each for _, each, _ in scored])
        metrics = None
        if scored and all(labelled for _, _, labelled in scored):
            labels = np.concatenate([batch.labels for batch, _, _ in scored])
            weights = [batch.sample_weights for batch, _, _ in scored]
            known = [each for each in weights if each is not None]
            metrics = evaluate(labels, logits, np.concatenate(known) if known else None)
        return _probabilities(logits), metrics

    def kept(self, rows: str | Path, names: Sequence[str]) -> pa.Table:
        """Columns of files, one row for each that ``predict`` scores.

        Raises:
          DataError: if there is no such column.
        """
        return self._rows.kept(Path(rows), names)

    def update(self, folder: str | Path) -> None:
        """Takes over what has changed since the model's step; threads that predict
        meanwhile use all of it or nothing for each 4,096 samples.

        Args:
          folder: what ``embark export --since`` wrote.

        Raises:
          ExportError: if its changes do not begin at the model's step, or a file is not
            as it was written; nothing changes.
        """
        with self._lock:
            found = apply_delta(Path(folder), self._step, self._arrays, self._params)
            params, self._step = found
            self._params = jax.tree.map(jax.numpy.asarray, params)

    @property
    def step(self) -> int:
        """Step of the model."""
        return self._step

    @property
    def cut(self) -> Mapping[str, int]:
        """For each feature, how many values of too long lists were left out so far."""
        return self._rows.cut

    def _scored(self, rows: Any) -> Iterator[tuple[Batch, np.ndarray, bool]]:
        for batch, labelled in self._rows.batches(rows):
            parts = [
                self._logits(batch, start, min(start + BATCH, len(batch)))
                for start in range(0, len(batch), BATCH)
            ]
            yield batch, self._joined(parts), labelled

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        none = np.empty((0, len(self.tasks)) if self.tasks else 0)
        return np.concatenate([none, *parts])

    def _logits(self, batch: Batch, start: int, stop: int) -> np.ndarray:
        """Logits of some samples. Empty ones fill up the batch: one program does."""
        with self._lock:
            return self._unlocked_logits(batch, start, stop)

    def _unlocked_logits(self, batch: Batch, start: int, stop: int) -> np.ndarray:
        filling = ((0, BATCH - (stop - start)), (0, 0))
        embeddings = {
            f.name: embed(
                f.name,
                self._arrays[f.table],
                f.pooling,
                np.pad(
                    batch.ids[f.name][start:stop], filling, constant_values=PADDING_ID
                ),
            )
            for f in self._features
        }
        dense = np.pad(batch.dense[start:stop], filling)
        with jax.default_matmul_precision(MATMUL_PRECISION):
            logits = self._forward(self._params, dense, embeddings)
        return np.asarray(logits, np.float64)[: stop - start]


def load_scorer(
    folder: str | Path, step: int | None = None, *, trust_code: bool = False
) -> Scorer:
    """Loads the model of a run or an export, to score raw rows.

    Args:
      folder: the run folder, or the export.
      step: step of a run's checkpoint; None takes the newest, or the best of a run that
        stopped early.
      trust_code: whether a model of the user's own may run: the code in the folder's
        ``code/`` does whatever it says.

    Raises:
      ConfigError, CheckpointError, DataError, ExportError: if the folder does not hold
        a model that was trained on a user's own files, or is damaged, or its code is
        not trusted.
    """
    folder = local(folder)
    if not (folder / DESCRIPTION).exists():
        rows = RowEncoder(folder)
        config = read_config(folder)
        trusted(folder, config.model.kind, trust_code)
        if step is None:
            step = best_step(folder)
        with SavedModel(folder / "checkpoints", step) as saved, code_of(folder):
            return Scorer(
                rows,
                config.model,
                saved.tables,
                saved.features,
                saved.dense_features,
                saved.dense(),
                {table.name: _rows(saved, table) for table in saved.tables},
                saved.step,
            )
    if step is not None:
        raise ConfigError(
            f"{folder}: is an export, which has one step: leave out --step"
        )
    known = read_description(folder)
    if "since" in known:
        raise ConfigError(
            f"{folder}: has changes since step {known['since']} alone; load a whole "
            "export, and update it with this"
        )
    model = _model(folder, known)
    trusted(folder, model.kind, trust_code)
    rows = RowEncoder(folder)
    tables = known["tables"]
    arrays = {n: read_table(folder, n, each) for n, each in tables.items()}
    with code_of(folder):
        return Scorer(
            rows,
            model,
            tuple(_table(name, each) for name, each in tables.items()),
            tuple(FeatureSpec(name, **f) for name, f in known["features"].items()),
            known["dense_features"],
            read_safetensors(inside(folder, known["dense"])),
            arrays,
            known["step"],
        )


class _Model(Config):
    """The description of a model in an export."""

    model: ModelConfig


def _model(folder: Path, description: Mapping[str, Any]) -> AnyModelConfig:
    """Returns the model of an export.

    Raises:
      ExportError: if this version has no such model, or its code is not in the export.
    """
    try:
        model = _Model.model_validate({"model": description["model"]}).model
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise ExportError(
            f"{folder / DESCRIPTION}: {'.'.join(map(str, first['loc']))}: "
            f"{first['msg']}; export the run again"
        ) from None
    if ":" in model.kind:
        path = copy_path(model.kind)
        if (folder / path).exists() and path not in description["files"]:
            raise ExportError(
                f"{folder / path}: is not a file of the export; delete it"
            )
    return model


def _rows(saved: SavedModel, table: TableSpec) -> np.ndarray | KeyedRows:
    rows = saved.table(table)
    if not table.is_dynamic:
        return rows
    found = KeyedRows(
        np.empty(0, np.int64), rows[:0], initial(table, random_key(saved.seed))
    )
    found.update(saved.keys(table), rows)
    return found


def _table(name: str, table: Mapping[str, Any]) -> TableSpec:
    """Returns a table of an export; how large a dynamic one may become, it does not
    say."""
    if table["rows"] is None:
        return TableSpec.dynamic(name, table["dim"], 1, 1)
    return TableSpec(name, table["rows"], table["dim"])


def _probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))
