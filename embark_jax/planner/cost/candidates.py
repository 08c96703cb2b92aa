"""Candidates: shapes of any cluster, with what they add to the loads of devices.

A candidate with hot rows is the candidate of its cold rows. The time and memory of the
hot rows, which lie in DP, are added to what it costs everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.model import CostModel
from embark_jax.planner.cost.shapes import Shapes, uses_of
from embark_jax.planner.request.workload import TableUse, Workload
from embark_jax.plans.clusters import CLUSTERS, EXCHANGES
from embark_jax.plans.options import Cluster, Exchange
from embark_jax.plans.storage import RowRange, StorageKind
from embark_jax.plans.tables import FeatureSpec

CLUSTER_NAMES: tuple[Cluster, ...] = tuple(CLUSTERS)
EXCHANGE_NAMES: tuple[Exchange, ...] = tuple(EXCHANGES)
POOLS_AT_OWNER = np.array([cluster.pools_at_owner for cluster in CLUSTERS.values()])
"""``[clusters]`` whether tables of each make partial sums."""
KINDS = 9
(
    SUMS,
    CERTAIN,
    EXPECTED,
    ROWS,
    LOOKUP_MS,
    GRADIENTS_MS,
    UPDATE_MS,
    STORE_MS,
    STORED_BYTES,
) = range(KINDS)
"""Loads that a row shard adds to its owner: partial sums a sample; ids that a device
sends it, certain and expected; rows; time in ``OWNER_PHASES``; and bytes of rows in the
tier of its storage, if that is not the device."""


@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates of some tables, as arrays.

    Attributes:
      uses: the use of each table.
      table: ``[candidates]`` table of each, a number in ``uses``.
      cluster, exchange: ``[candidates]`` numbers in ``CLUSTER_NAMES`` and
        ``EXCHANGE_NAMES``.
      row_shards, column_shards: ``[candidates]``; both 1 for DP.
      hot_rows: ``[candidates]`` rows of the table that lie in DP.
      slots: ``[candidates]`` slots of its cold rows; 0 where they lie on devices.
      storages: all storages of the candidates.
      storage: ``[candidates]`` storage of each.
      hot_storage: ``[candidates]`` storage of its hot rows; -1 if it has none.
      everywhere_ms, everywhere_bytes: ``[candidates]`` time and memory that every
        device spends on it.
      loads: ``[KINDS, row shards]`` loads that each row shard adds to its owner,
        candidate by candidate; DP has no row shards here.
      first: ``[candidates + 1]`` number of each candidate's first row shard.
    """

    uses: Sequence[TableUse]
    table: np.ndarray
    cluster: np.ndarray
    exchange: np.ndarray
    row_shards: np.ndarray
    column_shards: np.ndarray
    hot_rows: np.ndarray
    slots: np.ndarray
    storages: tuple[StorageKind, ...]
    storage: np.ndarray
    hot_storage: np.ndarray
    everywhere_ms: np.ndarray
    everywhere_bytes: np.ndarray
    loads: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.table)

    def shard_loads(self, candidate: int) -> np.ndarray:
        """Returns ``[KINDS, row_shards]`` loads of one candidate."""
        return self.loads[:, self.first[candidate] : self.first[candidate + 1]]

    def shards(self, candidate: int) -> int:
        """Returns the number of shards that have owners: none in DP."""
        row_shards = self.first[candidate + 1] - self.first[candidate]
        return int(row_shards * self.column_shards[candidate])

    @functools.cached_property
    def pooled(self) -> np.ndarray:
        """``[candidates]`` whether owners pool."""
        return POOLS_AT_OWNER[self.cluster]

    @functools.cached_property
    def staged(self) -> np.ndarray:
        """``[candidates]`` whether partial sums are added up inside nodes."""
        staged = [storage.of_exchange.staged for storage in self.storages]
        return np.array(staged)[self.storage]

    def reduced(self, operation: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Reduces ``[..., row shards]`` to ``[..., candidates]`` by sum or maximum."""
        reduced = np.zeros((*values.shape[:-1], len(self)))
        sharded = np.flatnonzero(np.diff(self.first))
        if len(sharded):
            first = self.first[sharded]
            reduced[..., sharded] = operation.reduceat(values, first, axis=-1)
        return reduced


def weigh(
    uses: Sequence[TableUse],
    choices: np.ndarray,
    workload: Workload,
    model: CostModel,
    memory: Memory,
) -> Candidates:
    """Returns the candidates of all choices, priced at once.

    Args:
      uses: the use of each table.
      choices: ``[candidates, 5]`` table, cluster, exchange, row shards, column shards.
      workload, model, memory: circumstances of the plan, and prices of time and memory.
    """
    choices = np.asarray(choices, np.int64).reshape(-1, 5)
    table, cluster, exchange, row_shards, column_shards = choices.T
    replicated = np.array([cluster.replicated for cluster in CLUSTERS.values()])
    owned_shards = np.where(replicated[cluster], 0, row_shards)
    first = np.concatenate([[0], np.cumsum(owned_shards)])
    number = len(table)
    everywhere_ms, everywhere_bytes = np.zeros((2, number))
    loads = np.zeros((KINDS, first[-1]))
    kinds: dict[int, StorageKind] = {}
    pairs = zip(cluster.tolist(), exchange.tolist(), strict=True)
    for of_cluster, of_exchange in sorted(set(pairs)):
        alike = np.flatnonzero((cluster == of_cluster) & (exchange == of_exchange))
        shapes = Shapes(
            workload=workload,
            uses=uses,
            cluster=CLUSTER_NAMES[of_cluster],
            exchange=EXCHANGE_NAMES[of_exchange],
            table=table[alike],
            row_shards=row_shards[alike],
            column_shards=column_shards[alike],
        )
        everywhere_ms[alike] = model.everywhere_ms(shapes)
        everywhere_bytes[alike] = memory.everywhere_bytes(shapes)
        kinds.update(zip(alike.tolist(), shapes.storages, strict=True))
        if not shapes.of_cluster.replicated:
            flat = first[alike][shapes.shape] + shapes.row_shard
            loads[:, flat] = _shard_loads(shapes, model, memory)
    storages = tuple(sorted(set(kinds.values())))
    numbers = {kind: s for s, kind in enumerate(storages)}
    return Candidates(
        uses=uses,
        table=table,
        cluster=cluster,
        exchange=exchange,
        row_shards=row_shards,
        column_shards=column_shards,
        hot_rows=np.zeros(number, np.int64),
        slots=np.array([use.slots or 0 for use in uses], np.int64)[table],
        storages=storages,
        storage=np.array([numbers[kinds[i]] for i in range(number)], np.int64),
        hot_storage=np.full(number, -1),
        everywhere_ms=everywhere_ms,
        everywhere_bytes=everywhere_bytes,
        loads=loads,
        first=first,
    )


def with_hot_rows(
    cold: Candidates, hot: Candidates, table: np.ndarray, hot_rows: np.ndarray
) -> Candidates:
    """Joins candidates of cold rows and of hot rows to candidates of whole tables.

    Args:
      cold: candidates of cold rows; ``cold.table`` numbers the ways to cut a table in
        two.
      hot: candidates of hot rows in DP, one for each way, in their order.
      table: ``[ways]`` table of each way.
      hot_rows: ``[ways]`` number of hot rows; 0 where all rows are cold.
    """
    way = cold.table
    has_hot = hot_rows[way] > 0
    taken = {hot.storages[s] for s in hot.storage[hot_rows > 0]}
    storages = tuple(sorted({*cold.storages, *taken}))
    numbers = {kind: s for s, kind in enumerate(storages)}
    of_cold = np.array([numbers[kind] for kind in cold.storages], np.int64)
    of_hot = np.array([numbers.get(kind, -1) for kind in hot.storages], np.int64)
    return dataclasses.replace(
        cold,
        table=table[way],
        hot_rows=hot_rows[way],
        storages=storages,
        storage=of_cold[cold.storage],
        hot_storage=np.where(has_hot, of_hot[hot.storage[way]], -1),
        everywhere_ms=cold.everywhere_ms + has_hot * hot.everywhere_ms[way],
        everywhere_bytes=cold.everywhere_bytes + has_hot * hot.everywhere_bytes[way],
    )


def _shard_loads(shapes: Shapes, model: CostModel, memory: Memory) -> np.ndarray:
    """Returns ``[KINDS, row shards]`` loads."""
    certain, expected = shapes.sent_ids
    sums = shapes.bags * shapes.of_cluster.pools_at_owner
    return np.stack(
        [
            sums[shapes.shape],
            certain,
            expected,
            shapes.shard_slots,
            *model.owner_ms(shapes),
            memory.stored_bytes(shapes),
        ]
    )


def candidates_of(
    ranges: Sequence[RowRange],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: CostModel,
) -> Candidates:
    """Returns one candidate for each row range, in their order."""
    uses = uses_of(ranges, features, workload)
    choices = [
        (
            i,
            CLUSTER_NAMES.index(rows.cluster),
            EXCHANGE_NAMES.index(rows.exchange),
            rows.row_shards,
            rows.column_shards,
        )
        for i, rows in enumerate(ranges)
    ]
    return weigh(uses, np.array(choices), workload, model, Memory(workload))
