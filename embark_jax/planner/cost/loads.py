"""Candidates of any cluster with what they cost, and the loads of devices.

A candidate with hot rows is the candidate of its cold rows. The time and memory of the
hot rows, which lie in DP, are added to what it costs everywhere.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.cost.candidates import Candidates
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.request.workload import TableUse, Workload
from embark_jax.plans.clusters import CLUSTERS, EXCHANGES, REPLICATED
from embark_jax.plans.options import Cluster, Exchange
from embark_jax.plans.storage import RowRange, StorageKind

CLUSTER_NAMES: tuple[Cluster, ...] = tuple(CLUSTERS)
EXCHANGE_NAMES: tuple[Exchange, ...] = tuple(EXCHANGES)
IS_REPLICATED = np.array([cluster.replicated for cluster in CLUSTERS.values()])
POOLS_AT_OWNER = np.array([cluster.pools_at_owner for cluster in CLUSTERS.values()])
"""``[clusters]`` whether devices all hold tables of each, or make partial sums."""


class Load(enum.IntEnum):
    """Loads that a row shard adds to its owner: partial sums a sample; ids that a
    device sends it, certain and expected; time in ``OWNER_PHASES``, with row stores
    last; rows; rows that a batch updates, certain and expected; and bytes of rows in
    the tier of its storage, if that is not the device."""

    SUMS = 0
    CERTAIN = 1
    EXPECTED = 2
    LOOKUP_MS = 3
    GRADIENTS_MS = 4
    UPDATE_MS = 5
    ROWS = 6
    CERTAIN_UPDATED = 7
    EXPECTED_UPDATED = 8
    STORE_MS = 9
    STORED_BYTES = 10


KINDS = len(Load)
TIMED = Load.ROWS
"""Number of the kinds that come first: all that have a price where memory has none, and
no rows are in stores."""


class Cut(NamedTuple):
    """A table's rows, cut in two.

    Attributes:
      table: number of the table.
      cold: use of the rows that are sharded or, in DP, of all, with tier and slots.
      hot_rows: number of hot rows.
      hot: use of these rows; None if there are none.
    """

    table: int
    cold: TableUse
    hot_rows: int = 0
    hot: TableUse | None = None


class PricedCandidates:
    """Candidates of some tables, as arrays, with what each costs.

    Attributes:
      table: ``[candidates]`` number of the table of each.
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

    def __init__(self, cuts: Sequence[Cut], layouts: np.ndarray, workload: Workload):
        """
        Args:
          cuts: the cuts of tables.
          layouts: ``[candidates, 5]`` number of a cut, and how its cold rows are laid
            out: cluster, exchange, row shards, column shards.
          workload: circumstances of the plan.
        """
        layouts = np.asarray(layouts, np.int64).reshape(-1, 5)
        cut, self.cluster, self.exchange, self.row_shards, self.column_shards = (
            layouts.T
        )
        uses = [each.cold for each in cuts]
        self.table = np.array([each.table for each in cuts], np.int64)[cut]
        self.hot_rows = np.array([each.hot_rows for each in cuts], np.int64)[cut]
        self.slots = np.array([use.table.slots or 0 for use in uses], np.int64)[cut]
        owned_shards = np.where(IS_REPLICATED[self.cluster], 0, self.row_shards)
        self.first = np.concatenate([[0], np.cumsum(owned_shards)])
        self.everywhere_ms, self.everywhere_bytes = np.zeros((2, len(cut)))
        self.loads = np.zeros((KINDS, self.first[-1]))
        model, memory = ProgramModel(workload), Memory(workload)
        for of_cluster, name in enumerate(CLUSTER_NAMES):
            alike = np.flatnonzero(self.cluster == of_cluster)
            shards = self.row_shards[alike], self.column_shards[alike]
            candidates = Candidates(workload, uses, name, cut[alike], *shards)
            self.everywhere_ms[alike] = model.everywhere_ms(candidates)
            self.everywhere_bytes[alike] = memory.everywhere_bytes(candidates)
            if not candidates.of_cluster.replicated:
                first = self.first[alike][candidates.candidate]
                of_shards = _shard_loads(candidates, model, memory)
                self.loads[:, first + candidates.row_shard] = of_shards
        # Hot rows, which lie in DP, cost the same for all candidates of a cut.
        has_hot = [c for c, each in enumerate(cuts) if each.hot is not None]
        hot_uses = [each.hot for each in cuts if each.hot is not None]
        hot_ms, hot_bytes = np.zeros((2, len(cuts)))
        if hot_uses:
            number, whole = np.arange(len(hot_uses)), np.ones(len(hot_uses), np.int64)
            in_dp = Candidates(workload, hot_uses, REPLICATED, number, whole, whole)
            hot_ms[has_hot] = model.everywhere_ms(in_dp)
            hot_bytes[has_hot] = memory.everywhere_bytes(in_dp)
        self.everywhere_ms += hot_ms[cut]
        self.everywhere_bytes += hot_bytes[cut]
        different, of_different = np.unique(
            layouts[:, [0, 1, 2, 4]], axis=0, return_inverse=True
        )
        kinds = [
            StorageKind.of(
                uses[c].table,
                CLUSTER_NAMES[of_cluster],
                columns,
                EXCHANGE_NAMES[of_exchange],
                uses[c].weighted,
            )
            for c, of_cluster, of_exchange, columns in different.tolist()
        ]
        hot_kinds = [StorageKind.of(use.table, REPLICATED) for use in hot_uses]
        self.storages = tuple(sorted({*kinds, *hot_kinds}))
        numbers = {kind: s for s, kind in enumerate(self.storages)}
        of_kinds = np.array([numbers[kind] for kind in kinds], np.int64)
        self.storage = of_kinds[of_different.reshape(-1)]
        hot_storage = np.full(len(cuts), -1)
        hot_storage[has_hot] = [numbers[kind] for kind in hot_kinds]
        self.hot_storage = hot_storage[cut]

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


def _shard_loads(
    candidates: Candidates, model: ProgramModel, memory: Memory
) -> np.ndarray:
    """Returns ``[KINDS, row shards]`` loads."""
    *of_device_ms, store_ms = model.owner_ms(candidates)
    sums = candidates.bags * candidates.of_cluster.pools_at_owner
    return np.stack(
        [
            sums[candidates.candidate],
            *candidates.sent_ids,
            *of_device_ms,
            candidates.shard_slots,
            *candidates.updated_rows,
            store_ms,
            memory.stored_bytes(candidates),
        ]
    )


def priced_ranges(
    ranges: Sequence[RowRange], uses: Sequence[TableUse], workload: Workload
) -> PricedCandidates:
    """Returns one candidate for each row range, in their order."""
    layouts = [
        (
            i,
            CLUSTER_NAMES.index(rows.cluster),
            EXCHANGE_NAMES.index(rows.exchange),
            rows.row_shards,
            rows.column_shards,
        )
        for i, rows in enumerate(ranges)
    ]
    cuts = [Cut(i, use) for i, use in enumerate(uses)]
    return PricedCandidates(cuts, np.array(layouts), workload)


class Loads:
    """The loads of the shards on each device; tables can be added and removed.

    Attributes:
      own: ``[KINDS, storages, devices]`` loads.
      node_sums: ``[storages, nodes]`` partial sums of nodes, if they are added up
        there.
      tables: ``[storages]`` number of tables in each.
      everywhere_ms, everywhere_bytes: time and memory of every device alike.
    """

    def __init__(self, candidates: PricedCandidates, workload: Workload):
        fleet = workload.fleet
        storages = len(candidates.storages)
        self.candidates = candidates
        self.gpus_per_node = fleet.gpus_per_node
        self.own = np.zeros((KINDS, storages, fleet.devices))
        self.node_sums = np.zeros((storages, fleet.nodes))
        self.tables = np.zeros(storages, int)
        self.everywhere_ms = self.everywhere_bytes = 0.0

    def add(self, candidate: int, owners: np.ndarray, times: int = 1) -> None:
        """Adds a table whose shard (j, k) lies on ``owners[j * column_shards + k]``;
        with ``times`` -1 removes it."""
        candidates = self.candidates
        s = candidates.storage[candidate]
        self.tables[s] += times
        if candidates.hot_rows[candidate]:
            self.tables[candidates.hot_storage[candidate]] += times
        self.everywhere_ms += times * candidates.everywhere_ms[candidate]
        self.everywhere_bytes += times * candidates.everywhere_bytes[candidate]
        if not len(owners):
            return
        self.own[:, s] += times * self.of_devices(candidate, owners)
        if candidates.staged[candidate]:
            self.node_sums[s] += times * self.of_nodes(candidate, owners)

    def of_devices(self, candidate: int, owners: np.ndarray) -> np.ndarray:
        """Returns ``[KINDS, devices]`` loads of a table whose shards lie on
        ``owners``."""
        columns = self.candidates.column_shards[candidate]
        loads = np.repeat(self.candidates.shard_loads(candidate), columns, axis=1)
        # A device may own several shards: bincount adds them up, one kind of load
        # after the other.
        devices = self.own.shape[2]
        index = (np.arange(KINDS)[:, None] * devices + owners).reshape(-1)
        added = np.bincount(index, loads.reshape(-1), KINDS * devices)
        return added.reshape(KINDS, devices)

    def of_nodes(self, candidate: int, owners: np.ndarray) -> np.ndarray:
        """Returns ``[nodes]`` partial sums of a table whose shards lie on ``owners``:
        one for each column shard of which a node has a row shard."""
        columns = int(self.candidates.column_shards[candidate])
        held = np.zeros((self.node_sums.shape[1], columns), bool)
        held[owners // self.gpus_per_node, np.arange(len(owners)) % columns] = True
        return self.candidates.shard_loads(candidate)[Load.SUMS].max() * held.sum(
            axis=1
        )

    @property
    def update_ms(self) -> np.ndarray:
        """Returns ``[devices]`` time in the update."""
        return self.own[Load.UPDATE_MS].sum(axis=0)

    @property
    def store_ms(self) -> np.ndarray:
        """Returns ``[devices]`` time of row stores."""
        return self.own[Load.STORE_MS].sum(axis=0)
