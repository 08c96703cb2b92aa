"""Scores raw rows with the trained model of a run or an export.

Tables are in host memory. Neither mesh nor plan are needed; an export needs no JAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.config import ConfigError
from embark_jax.data import Batch
from embark_jax.data.prepare.raw_rows import RowEncoder
from embark_jax.export.description import FILE_NAME
from embark_jax.export.id_scorer import IdScorer, scorer_of
from embark_jax.export.reading import ExportedModel

if TYPE_CHECKING:
    from embark_jax.metrics.pointwise import Metrics


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
        return self.evaluate(rows)[0]

    def evaluate(self, rows: Any) -> tuple[np.ndarray, Metrics | None]:
        """Returns what ``predict`` returns, and metrics if all rows have labels."""
        from embark_jax.metrics.pointwise import evaluate

        scored = list(self._scored(rows))
        logits = self._joined([logits for _, logits, _ in scored])
        metrics = None
        if scored and all(has_labels for _, _, has_labels in scored):
            labels = np.concatenate([batch.labels for batch, _, _ in scored])
            weights = [
                batch.sample_weights
                for batch, _, _ in scored
                if batch.sample_weights is not None
            ]
            metrics = evaluate(
                labels, logits, np.concatenate(weights) if weights else None
            )
        return np.exp(-np.logaddexp(0, -logits)), metrics

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

    def _scored(self, rows: Any) -> Iterator[tuple[Batch, np.ndarray, bool]]:
        for batch, has_labels in self._rows.batches(rows):
            logits = self._model.logits_of(batch, self._rows.dense)
            yield batch, logits, has_labels

    def _joined(self, logits: Sequence[np.ndarray]) -> np.ndarray:
        none = np.empty((0, len(self.tasks)) if self.tasks else 0)
        return np.concatenate([none, *filter(len, logits)])


def load_scorer(
    folder: str | PathLike[str],
    step: int | None = None,
    *,
    deltas: Sequence[str | PathLike[str]] = (),
    trust_code: bool = False,
) -> Scorer:
    """Loads the model of a run or an export, to score raw rows.

    Args:
      folder: the run folder or the export; it may be in a bucket.
      step: step of a run's checkpoint; None takes the best of a run that stopped
        early, or the newest.
      deltas: what ``embark export --since`` wrote since the export, in the order in
        which they follow each other.
      trust_code: whether a model of the user's own may run, from where Python
        finds it. An export has none.

    Raises:
      ConfigError, CheckpointError, DataError: if the folder does not hold a model that
        was trained on a user's own files, or is damaged, or its code is not trusted.
      ExportError: if a delta does not follow what is before it.
    """
    files = local_copy(folder, without=["checkpoints"])
    if (files / FILE_NAME).exists() or deltas:
        if step is not None:
            raise ConfigError(
                f"{folder}: is an export, which has one step: leave out --step"
            )
        model = ExportedModel.read(folder, deltas)
        return Scorer(RowEncoder(model.last.folder), scorer_of(model))
    rows = RowEncoder(files)
    from embark_jax.export.run_scorer import load_run_scorer

    return Scorer(rows, load_run_scorer(Path(folder), step, trust_code))
