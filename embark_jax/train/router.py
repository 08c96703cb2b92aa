"""Who makes the routes of a batch, and when.

A route depends on ids alone. So it may be made in the step that applies the batch; or,
with look-ahead, in the step before, where its sorts and exchanges run beside the dense
layers. Rows of cached tables come by routes of their own: ``cache.CachedRows`` is a
router, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax

from embark_jax.embedding.arrays import Routes, TableState
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.device_batch import DeviceBatch, route_batch

GiveBack = Callable[[TableState], TableState]


class Router(Protocol):
    """The way in which the routes of batches are made.

    ``prepare`` and ``keep`` are called before and after each step, ``lend`` before a
    batch is scored.
    """

    def use(self, collection: EmbeddingCollection) -> None:
        """Changes to a plan of other capacities; routes made ahead are forgotten."""
        ...

    def prepare(
        self, tables: TableState, batch: DeviceBatch, following: DeviceBatch | None
    ) -> tuple[TableState, Routes | None, DeviceBatch | None]:
        """Returns what the step of a batch takes: the tables, the routes of the batch,
        None where the step makes them, and the batch whose routes the step makes
        beside, if any.

        Args:
          tables: tables before the batch; consumed.
          batch: batch whose step comes next.
          following: batch after it, if that is known.
        """
        ...

    def keep(self, following: DeviceBatch | None, routes: Routes | None) -> None:
        """Keeps the routes that a step has made for the batch after it."""
        ...

    def lend(
        self, tables: TableState, batch: DeviceBatch
    ) -> tuple[TableState, Routes | None, GiveBack]:
        """Returns what the scoring of a batch takes: tables and routes, as in
        ``prepare``; and a function that makes of the tables what they were before.

        Args:
          tables: tables before the batch; consumed.
          batch: batch to score.
        """
        ...


class StepRouter:
    """Routes that steps make: each its own or, with look-ahead, those of the next.

    Args:
      collection: the embedding tables.
      look_ahead: whether a step makes the routes of the batch after it.
    """

    def __init__(self, collection: EmbeddingCollection, look_ahead: bool):
        self._look_ahead = look_ahead
        self.use(collection)

    def use(self, collection: EmbeddingCollection) -> None:
        self._ahead: tuple[DeviceBatch, Routes] | None = None
        self._route = jax.jit(route_batch, static_argnums=0)
        self._collection = collection

    def prepare(
        self, tables: TableState, batch: DeviceBatch, following: DeviceBatch | None
    ) -> tuple[TableState, Routes | None, DeviceBatch | None]:
        if not self._look_ahead:
            return tables, None, None
        if self._ahead is not None and self._ahead[0] is batch:
            routes = self._ahead[1]
        else:
            routes = self._route(self._collection.for_batch(batch.hot), batch)
        # Where nothing follows, the step makes this route again, for nobody: another
        # program would have to be compiled.
        return tables, routes, following or batch

    def keep(self, following: DeviceBatch | None, routes: Routes | None) -> None:
        self._ahead = None
        if following is not None and routes is not None:
            self._ahead = following, routes

    def lend(
        self, tables: TableState, batch: DeviceBatch
    ) -> tuple[TableState, Routes | None, GiveBack]:
        return tables, None, lambda tables: tables
