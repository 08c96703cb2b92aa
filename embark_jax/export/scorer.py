"""Scores raw rows, and finds items for them, with the trained model of a run or an
export."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embark_jax._base.config import ConfigError
from embark_jax.data import Batch
from embark_jax.export.id_scorer import IdScorer, files_of, load_id_scorer
from embark_jax.plans.plan import MESH_AXES
from embark_jax.plans.tables import PADDING_ID
from embark_jax.prepare.raw_rows import RowEncoder

if TYPE_CHECKING:
    from embark_jax.metrics.pointwise import Metrics
    from embark_jax.metrics.retrieval import ItemIndex


SEARCHED_AT_ONCE = 4096
"""Users whose items are searched between two reports of progress."""
Progress = Callable[[int], object]
"""Is told how many rows more are done."""


def _silent(rows: int) -> None:
    """Shows no progress."""


def _probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits))


class Scorer:
    """A trained model, with the encoder that makes its inputs from raw rows.

    Args:
      rows: makes batches from raw rows.
      model: scores batches.

    Attributes:
      rows: as given.
      tasks: names of the model's tasks, if it has several.
      ranks_items: whether scores order items, and are no probabilities.
      step: step of the model.
    """

    def __init__(self, rows: RowEncoder, model: IdScorer):
        self.tasks, self.step = rows.labels, model.step
        self.ranks_items = model.ranks_items
        self.rows, self._model = rows, model
        model.dense_names = rows.dense

    @property
    def item(self) -> str:
        """The item's feature; raises as ``item_vectors``."""
        return self._model.towers.item

    def read_log(self, log: str | PathLike[str]) -> None:
        """Reads a log, such as the data were prepared of. From now on rows give their
        user, and have the history of an event after all of the log.

        Raises:
          DataError: if the data had no history, or one with pools or ages, or the log
            lacks a column or has a bad line.
        """
        self.rows.read_log(Path(log))

    def predict(self, rows: Any) -> np.ndarray:
        """Returns probabilities of label 1, float64 ``[rows]`` in the order of the
        rows, or ``[rows, tasks]``; of a model that ranks items its scores, which are
        none.

        Args:
          rows: a path, columns, rows by column, or a data frame, as in
            ``RowEncoder.batches``.

        Raises:
          DataError: if a column is missing, a value breaks a rule, or a probability is
            no number.
        """
        return self._shown(self._scored(rows)[0])

    def evaluate(
        self, rows: Any, progress: Progress = _silent
    ) -> tuple[np.ndarray, Metrics | None]:
        """Returns what ``predict`` returns, and metrics if all rows have labels."""
        from embark_jax.metrics.pointwise import evaluate

        logits, known = self._scored(rows, progress)
        metrics = None
        if known and all(has_labels for *_, has_labels in known):
            labels, weights, _ = zip(*known, strict=True)
            given = [each for each in weights if each is not None]
            metrics = evaluate(
                np.concatenate(labels), logits, np.concatenate(given) if given else None
            )
        return self._shown(logits), metrics

    def _shown(self, logits: np.ndarray) -> np.ndarray:
        return logits if self.ranks_items else _probabilities(logits)

    def user_vectors(self, rows: Any) -> np.ndarray:
        """Returns the vectors of users, float32 ``[rows, dim]``, as the model compares
        them with those of items.

        Args:
          rows: as for ``predict``; columns of the item may be missing.

        Raises:
          ConfigError: if the model does not rank items.
          DataError: as ``predict``.
        """
        return np.concatenate([vectors for vectors, _ in self._users(rows)])

    def item_vectors(self) -> tuple[list[Any], np.ndarray]:
        """Returns the items that training knew, by value, and their vectors, float32
        ``[items, dim]``, as the model compares them with those of users.

        Raises:
          ConfigError: if the model does not rank items.
          DataError: if items are hashed, so that nobody knows which ones they are.
        """
        values, _, vectors = self._items
        return [*values.values()], vectors

    @functools.cached_property
    def _items(self) -> tuple[dict[int, Any], np.ndarray, np.ndarray]:
        """The values of items by id, and the ids and vectors in the same order."""
        ids, vectors = self._model.item_vectors()
        known_ids, values = self.rows.values(self.item)
        known = np.isin(ids, known_ids)
        value_of = dict(zip(known_ids.tolist(), values, strict=True))
        by_id = {i: value_of[i] for i in ids[known].tolist()}
        return by_id, ids[known], vectors[known]

    @functools.cached_property
    def _index(self) -> ItemIndex:
        import jax

        from embark_jax.metrics.retrieval import ItemIndex

        mesh = jax.make_mesh((1, jax.local_device_count()), MESH_AXES)
        _, ids, vectors = self._items
        return ItemIndex(ids, vectors, mesh)

    def recommend(
        self,
        rows: Any,
        k: int,
        exclude: str | Sequence[Sequence[Any]] | None = None,
        progress: Progress = _silent,
    ) -> tuple[list[list[Any]], np.ndarray]:
        """Finds the K best of all items that training knew, for each row. Needs JAX.

        Args:
          rows: as for ``predict``; columns of the item may be missing.
          k: number of items.
          exclude: items that a user does not get: a feature of the rows that has them,
            such as the history, or the values of the items for each row.
          progress: told how many rows are done.

        Returns:
          for each row the values of its items, the best first, of which fewer than K
          may be left; and their scores, float32 ``[rows, k]``, -inf where none is.

        Raises:
          ConfigError: if the model does not rank items, or K is none.
          DataError: as ``predict``; also if items are hashed, or ``exclude`` is no
            feature of items.
        """
        values, _, _ = self._items
        if not 0 < k <= len(values):
            raise ConfigError(f"k is {k}, must be from 1 to the {len(values):,} items")
        found, scores, count = [], [], 0
        for vectors, batch in self._users(rows):
            if isinstance(exclude, str):
                seen = self._model.ids_of_items(batch, exclude)
            else:
                lists = exclude[count : count + len(batch)] if exclude else []
                seen = self._ids_of_lists(lists, len(batch))
            count += len(batch)
            for first in range(0, max(1, len(batch)), SEARCHED_AT_ONCE):
                some = slice(first, first + SEARCHED_AT_ONCE)
                ids, products = self._index.search(vectors[some], k, seen[some])
                found += [[values[i] for i in x if i in values] for x in ids.tolist()]
                scores.append(products)
                progress(len(ids))
        return found, np.concatenate(scores)

    def _ids_of_lists(self, lists: Sequence[Sequence[Any]], count: int) -> np.ndarray:
        """Returns ids of items, ``[count, longest]``, padded."""
        lengths = [*map(len, lists), *[0] * (count - len(lists))]
        ids = np.full((count, max(lengths, default=0)), PADDING_ID, np.int64)
        flat = [value for values in lists for value in values]
        if flat:
            mask = np.arange(ids.shape[1]) < np.array(lengths)[:, None]
            ids[mask] = self.rows.ids(self.item, flat)
        return ids

    def _users(self, rows: Any) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yields vectors of users, and their batch."""
        for batch, _ in self.rows.batches(rows, [self.item]):
            yield self._model.score(batch, self._model.towers.users), batch

    def vectors(
        self, feature: str, values: Sequence[Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of a feature's values.

        Args:
          feature: a feature of categories.
          values: its values, as raw rows have them.

        Returns:
          rows, float32 ``[values, dim]``, and which of the values training knew, bool
          ``[values]``: others share a row, or, of a dynamic table, are zeros. Of a
          hashed table nobody knows, and all but missing values count as known.

        Raises:
          DataError: if there is no such feature, or a value breaks a rule.
        """
        ids = self.rows.ids(feature, values)
        table = self._model.table_of(feature)
        known = ids >= self.rows.first(feature)
        if table.keys is not None:
            known &= np.isin(ids, table.keys)
        return table[np.maximum(ids, 0)], known

    def _scored(
        self, rows: Any, progress: Progress = _silent
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray | None, bool]]]:
        """Returns log odds in float64, and of each batch its labels, their weights and
        whether it has labels."""
        logits = [np.empty((0, len(self.tasks)) if self.tasks else 0)]
        known = []  # not the batches: there may be more rows than memory has room for
        for batch, has_labels in self.rows.batches(rows):
            known.append((batch.labels, batch.sample_weights, has_labels))
            if len(batch):
                logits.append(self._model.score(batch))
            progress(len(batch))
        return np.concatenate(logits), known


def load_scorer(
    folder: str | PathLike[str], step: int | None = None, *, trust_code: bool = False
) -> Scorer:
    """Loads the model of a run or an export, to score raw rows.

    Arguments and errors are those of ``load_id_scorer``.

    Raises:
      DataError: also if the model was not trained on a user's own files.
    """
    model = load_id_scorer(folder, step, trust_code=trust_code)
    return Scorer(RowEncoder(files_of(folder)), model)
