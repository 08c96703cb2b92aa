"""Negatives of logs: for each positive sample, samples of label 0 with items that were
drawn in place of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embark_jax._base.errors import DataError
from embark_jax.data.batch import Batch
from embark_jax.data.columns import NegativeColumns
from embark_jax.data.manifest import LABEL, Manifest
from embark_jax.data.negatives import random_bits
from embark_jax.prepare import sql
from embark_jax.prepare.recipe import ROW, SPLIT, TRAIN, USER, Work

if TYPE_CHECKING:
    from embark_jax.prepare.encode import Lookup, SampleEncoder

_ITEMS, _EXCLUDED = sql.name("items that are drawn"), sql.name("items left out")
_SEEN = sql.name("items that users have seen")


class Negatives:
    """Draws items of the positive training samples.

    Args:
      work: what is prepared; the database has samples.
      columns: what is drawn.
      manifest: describes the samples.
      encoder: makes the samples.
      selected: SQL of the columns of samples that it takes.
      lookup: returns ids of values.

    Raises:
      DataError: if there are fewer than two items.
    """

    def __init__(
        self,
        work: Work,
        columns: NegativeColumns,
        manifest: Manifest,
        encoder: SampleEncoder,
        selected: str,
        lookup: Lookup,
    ):
        self._database, self._columns = work.database, columns
        item, row = sql.name(columns.item), sql.name(ROW)
        # An item has the columns of its last training sample.
        work.database.run(
            f"CREATE TABLE {_ITEMS} AS SELECT *, row_number() OVER (ORDER BY key) - 1 "
            f"AS number FROM (SELECT {item} AS key, max({row}) AS row, count(*) AS "
            f"count FROM samples WHERE {SPLIT} = {TRAIN} AND {LABEL} = 1 AND {item} IS "
            "NOT NULL GROUP BY 1)"
        )
        counts = work.database.table(f"SELECT count FROM {_ITEMS} ORDER BY number")
        counts = counts["count"].to_numpy()
        if len(counts) < 2:
            raise DataError(
                f"negatives.item: training samples have {len(counts)} values of "
                f"{columns.item!r}, must have two at least"
            )
        self._weights = counts if columns.by == "popularity" else np.ones_like(counts)
        self._ends = np.cumsum(self._weights)
        items = work.database.table(
            f"SELECT {selected} FROM samples WHERE {row} IN (SELECT row FROM {_ITEMS}) "
            f"ORDER BY samples.{item}"
        )
        self._items = encoder.batch(items, lookup)
        # What a sample may not draw: its own item, or what its user has seen.
        key, seen, user = "items.number", "", f"samples.{sql.name(USER)}"
        if columns.unseen:
            work.database.run(
                f"CREATE TABLE {_SEEN} AS SELECT {len(counts)} + row_number() OVER () "
                f"AS key, {user} AS user, list(DISTINCT items.number ORDER BY "
                f"items.number) AS seen FROM samples JOIN {_ITEMS} AS items ON "
                f"samples.{item} = items.key WHERE {user} IS NOT NULL GROUP BY {user}"
            )
            seen = f" LEFT JOIN {_SEEN} AS of_user ON {user} = of_user.user"
            key = f"coalesce(of_user.key, {key})"
        work.database.run(
            f"CREATE TABLE {_EXCLUDED} AS SELECT samples.{row} AS row, coalesce({key}, "
            f"-1) AS key FROM samples LEFT JOIN {_ITEMS} AS items ON samples.{item} = "
            f"items.key{seen}"
        )
        names = (columns.item, *columns.columns)
        self._features = [name for name in names if name in encoder.categories]
        self._dense = [n for n, name in enumerate(manifest.dense) if name in names]

    def added(self, batch: Batch, rows: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Returns samples, each positive one before its negatives, and the place in
        ``batch`` of what each is made of.

        Args:
          batch: samples.
          rows: number of each one among all samples.
        """
        count = self._columns.count
        copies = np.where(batch.labels == 1, 1 + count, 1)
        places = np.repeat(np.arange(len(batch)), copies)
        first = np.cumsum(copies) - copies
        number = np.arange(len(places)) - first[places] - 1  # of the negative, from 0
        drawn = number >= 0
        made, sources = batch.take(places), places[drawn]
        items = self._draw(rows, sources, number[drawn])
        made.labels[drawn] = 0
        ids: Any = made.ids
        for name in self._features:
            ids[name][drawn] = np.asarray(self._items.ids[name])[items]
        weights: Any = made.weights
        for name in weights.keys() & self._features:
            weights[name][drawn] = np.asarray(self._items.weights[name])[items]
        for column in self._dense:
            made.dense[drawn, column] = self._items.dense[items, column]
        return made, places

    def _draw(
        self, rows: np.ndarray, sources: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray:
        """Returns an item for each negative, none of which its sample excludes."""
        groups, group_of = self._excluded(rows)
        draws = rows[sources].astype(np.uint64) * np.uint64(self._columns.count)
        bits = random_bits(self._columns.seed, draws + numbers.astype(np.uint64))
        items, weights = np.empty(len(sources), np.int64), self._weights
        order = np.argsort(group_of[sources], kind="stable")
        cuts = np.flatnonzero(np.diff(group_of[sources][order])) + 1
        for of_group in np.split(order, cuts) if len(order) else ():
            out = groups[group_of[sources[of_group[0]]]]
            left = self._ends[-1] - weights[out].sum()
            if not left:
                raise DataError(
                    "negatives.unseen: a user has seen all of the "
                    f"{len(weights):,} items; none is left to draw"
                )
            # Where each item that is left out begins once those before it are.
            before = np.cumsum(weights[out]) - weights[out]
            begins = self._ends[out] - weights[out] - before
            at = (bits[of_group] % np.uint64(left)).astype(np.int64)
            skipped = np.append(before, weights[out].sum())
            at += skipped[np.searchsorted(begins, at, side="right")]
            items[of_group] = np.searchsorted(self._ends, at, side="right")
        return items

    def _excluded(self, rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Returns sets of items in their order, and the set that each sample may not
        draw."""
        found = self._database.table(
            f"SELECT known.key FROM {_EXCLUDED} AS known JOIN chunk ON known.row = "
            "chunk.row ORDER BY chunk.row",
            chunk=pa.table({"row": rows}),
        )["key"].to_numpy()
        keys, of_sample = np.unique(found[np.argsort(np.argsort(rows))], False, True)
        seen = {-1: []}
        if keys[-1] >= len(self._weights):
            query = f"SELECT key, seen FROM {_SEEN} WHERE key IN (SELECT key FROM keys)"
            seen |= dict(self._database.rows(query, keys=pa.table({"key": keys})))
        groups = [seen.get(key, [key]) for key in keys.tolist()]
        return [np.array(group, np.int64) for group in groups], of_sample
