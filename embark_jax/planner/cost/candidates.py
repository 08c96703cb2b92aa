"""Candidates: ways to lay out tables, as arrays, with what each costs.

A *candidate* is a cluster, a split and an exchange of a table, before its shards have
owners. One with hot rows is the candidate of its cold rows; the time and memory of the
hot rows, which lie in DP, are added to what it costs everywhere. Values that differ
between the row shards of a candidate are in *flat* arrays, candidate by candidate: for
2 and 3 row shards ``[a0, a1, b0, b1, b2]``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.plans.capacities import capacity_of, rows_of
from embark_jax.plans.clusters import CLUSTERS, DIRECT, EXCHANGES, REPLICATED
from embark_jax.plans.options import ClusterName, ExchangeName
from embark_jax.plans.placement import Placement, RowRange, StorageKind, row_ranges
from embark_jax.plans.tables import FeatureSpec
from embark_jax.plans.traffic import WORD_BYTES, summed_whole
from embark_jax.plans.wire import VALUE_BYTES

CLUSTER_NAMES: tuple[ClusterName, ...] = tuple(CLUSTERS)
EXCHANGE_NAMES: tuple[ExchangeName, ...] = tuple(EXCHANGES)
Layout = tuple[int, int, int, int]
"""Cluster and exchange, as numbers, row shards and column shards."""
HELD_BY_ALL: Layout = (
    CLUSTER_NAMES.index(REPLICATED),
    EXCHANGE_NAMES.index(DIRECT),
    1,
    1,
)


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


class Candidates:
    """Candidates of some tables.

    Attributes:
      workload: circumstances of the plan.
      uses: ``[cuts]`` use of the cold rows of each cut.
      cut, table: ``[candidates]`` numbers of the cut and of the table of each.
      cluster, exchange: ``[candidates]`` numbers in ``CLUSTER_NAMES`` and
        ``EXCHANGE_NAMES``.
      row_shards, column_shards, width: ``[candidates]`` of each; one shard in DP.
      replicated, pools_at_owner, unique_ids, staged: ``[candidates]`` properties of
        cluster and exchange.
      hot_rows: ``[candidates]`` rows of the table that lie in DP.
      slots: ``[candidates]`` slots of its cold rows; 0 where they lie on devices.
      rows, hotness, bags, sequence, weighted, filled: ``[candidates]`` as in
        ``TableUse``.
      dim, value_bytes: ``[candidates]`` columns, and bytes of a parameter.
      embedding_bytes: ``[candidates]`` bytes of a value of a bag's embedding, and of
        its gradient, on the device of the sample.
      cached, on_disk, dynamic, forgets: ``[candidates]`` whether each has fewer slots
        than rows; has room for all rows on a disk; has rows by key; and forgets rows
        that leave its slots.
      candidate, row_shard: flat, the candidate of each row shard, and its number there.
      first: ``[candidates + 1]`` number of each candidate's first row shard.
      storages: all storages of the candidates.
      storage: ``[candidates]`` storage of each.
      hot_storage: ``[candidates]`` storage of its hot rows; -1 if it has none.
      everywhere_ms: ``[candidates]`` time that every device spends on it.
      everywhere_bytes: ``[2, candidates]`` memory that it takes on every device, in
        backward of the dense layers and in the update.
      loads: ``[KINDS, row shards]`` loads that each row shard adds to its owner; none
        in DP.
    """

    def __init__(
        self,
        cuts: Sequence[Cut],
        layouts: Sequence[tuple[int, ...]],
        workload: Workload,
        sizes: Mapping[str, int] | None = None,
    ):
        """
        Args:
          cuts: the cuts of tables.
          layouts: ``[candidates, 5]`` number of a cut, and how its cold rows are laid
            out: a ``Layout``.
          workload: circumstances of the plan.
          sizes: capacities of a plan, which have room for updated rows of replicated
            tables; None has room for those that are expected.
        """
        self.workload, self.sizes = workload, sizes
        self.uses = uses = [each.cold for each in cuts]
        tables = [use.table for use in uses]
        self.cut, self.cluster, self.exchange, self.row_shards, self.column_shards = (
            np.array(layouts, np.int64).reshape(-1, 5).T
        )

        def of_cuts(values: Sequence[Any]) -> np.ndarray:
            return np.array(values)[self.cut]

        def of_clusters(name: str) -> np.ndarray:
            return np.array([getattr(each, name) for each in CLUSTERS.values()])

        self.replicated = of_clusters("replicated")[self.cluster]
        self.pools_at_owner = of_clusters("pools_at_owner")[self.cluster]
        self.unique_ids = of_clusters("unique_ids")[self.cluster]
        self.staged = np.array([e.staged for e in EXCHANGES.values()])[self.exchange]
        self.table = of_cuts([each.table for each in cuts])
        self.hot_rows = of_cuts([each.hot_rows for each in cuts])
        self.slots = of_cuts([table.slots or 0 for table in tables])
        self.rows = of_cuts([use.rows for use in uses])
        self.hotness = of_cuts([use.hotness for use in uses])
        self.bags = of_cuts([use.bags for use in uses])
        self.sequence = of_cuts([use.sequence for use in uses])
        self.weighted = of_cuts([use.weighted for use in uses])
        self.filled = of_cuts([use.filled for use in uses])
        self.embedding_bytes = np.where(
            of_cuts([use.summed for use in uses]),
            VALUE_BYTES[workload.dense.embedding_dtype],
            WORD_BYTES,
        )
        self.dim = of_cuts([table.dim for table in tables])
        self.value_bytes = of_cuts([VALUE_BYTES[table.dtype] for table in tables])
        self.cached = of_cuts([table.cached for table in tables])
        self.on_disk = of_cuts([table.tier == "disk" for table in tables])
        self.dynamic = of_cuts([table.is_dynamic for table in tables])
        self.forgets = of_cuts([table.discard for table in tables])
        self.width = self.dim // self.column_shards
        self.candidate = np.repeat(np.arange(len(self)), self.row_shards)
        self.first = np.concatenate([[0], np.cumsum(self.row_shards)])
        self.row_shard = np.arange(self.first[-1]) - self.first[self.candidate]

        hot_cuts = [Cut(c, each.hot) for c, each in enumerate(cuts) if each.hot]
        in_dp = [(i, *HELD_BY_ALL) for i in range(len(hot_cuts))]
        hot = Candidates(hot_cuts, in_dp, workload) if hot_cuts else None
        self.storages, self.storage, of_hot = self._numbered_storages(hot)
        model, memory = ProgramModel(workload), Memory(workload)
        self.everywhere_ms = model.everywhere_ms(self)
        self.everywhere_bytes = memory.everywhere_bytes(self)
        hot_storage = np.full(len(cuts), -1)
        if hot is not None:
            hot_storage[hot.table] = of_hot
            hot_ms, hot_bytes = np.zeros(len(cuts)), np.zeros((2, len(cuts)))
            hot_ms[hot.table] = hot.everywhere_ms
            hot_bytes[:, hot.table] = hot.everywhere_bytes
            self.everywhere_ms += hot_ms[self.cut]
            self.everywhere_bytes += hot_bytes[:, self.cut]
        self.hot_storage = hot_storage[self.cut]
        *of_device_ms, store_ms = model.owner_ms(self)
        loads = (
            (self.bags * self.pools_at_owner)[self.candidate],
            *self.sent_ids,
            *of_device_ms,
            self.shard_slots,
            *self.updated_rows,
            store_ms,
            memory.stored_bytes(self),
        )
        self.loads = np.stack(loads)
        self.loads[:, self.replicated[self.candidate]] = 0.0

    def _numbered_storages(
        self, hot: Candidates | None
    ) -> tuple[tuple[StorageKind, ...], np.ndarray, np.ndarray]:
        """Returns all storages, those of the hot rows, too; and the number of that of
        each candidate, and of each of the hot rows."""
        split = [self.cut, self.cluster, self.exchange, self.column_shards]
        different, of_different = np.unique(split, axis=1, return_inverse=True)
        kinds = [
            StorageKind.of(
                self.uses[cut].table,
                CLUSTER_NAMES[cluster],
                columns,
                EXCHANGE_NAMES[exchange],
                self.uses[cut].weighted,
            )
            for cut, cluster, exchange, columns in different.T.tolist()
        ]
        hot_kinds = [hot.storages[s] for s in hot.storage] if hot is not None else []
        storages = tuple(sorted({*kinds, *hot_kinds}))
        numbers = {kind: s for s, kind in enumerate(storages)}
        of_kinds, of_hot = (
            np.array([numbers[kind] for kind in each], np.int64)
            for each in (kinds, hot_kinds)
        )
        return storages, of_kinds[of_different.reshape(-1)], of_hot

    def __len__(self) -> int:
        return len(self.cut)

    def shard_loads(self, candidate: int) -> np.ndarray:
        """Returns ``[KINDS, row_shards]`` loads of one candidate."""
        return self.loads[:, self.first[candidate] : self.first[candidate + 1]]

    def shards(self, candidate: int) -> int:
        """Returns the number of shards that have owners: none in DP."""
        shards = self.row_shards[candidate] * self.column_shards[candidate]
        return 0 if self.replicated[candidate] else int(shards)

    def reduced(self, operation: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Reduces ``[..., row shards]`` to ``[..., candidates]`` by sum or maximum."""
        return operation.reduceat(values, self.first[:-1], axis=-1)

    # Flat arrays, one element for each row shard.

    @functools.cached_property
    def shard_rows(self) -> np.ndarray:
        """Rows of each row shard: they go round robin."""
        row_shards = self.row_shards[self.candidate]
        rows = self.rows[self.candidate]
        return (rows - self.row_shard + row_shards - 1) // row_shards

    @functools.cached_property
    def shard_slots(self) -> np.ndarray:
        """Slots of each row shard: one a row, or its share of a cached table's
        slots."""
        slots = np.where(self.slots > 0, self.slots, self.rows)
        shares = -(-slots // self.row_shards)
        return np.minimum(self.shard_rows, shares[self.candidate])

    @functools.cached_property
    def shares(self) -> np.ndarray:
        """Share of its table's ids that fall on each row shard."""
        pairs = list(zip(self.cut.tolist(), self.row_shards.tolist(), strict=True))
        shares: dict[tuple[int, int], np.ndarray] = {}
        for cut, shards in dict.fromkeys(pairs):  # cut by cut: skews keep some
            use = self.uses[cut]
            shares[cut, shards] = use.skew.row_shard_shares(use.rows, shards)
        return np.concatenate([np.zeros(0), *(shares[pair] for pair in pairs)])

    @functools.cached_property
    def sent_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """``(certain, expected)`` ids that a device sends to each row shard: the most
        that are possible, where slack would go beyond them, or else the expectation."""
        possible = self.workload.device_batch * self.hotness[self.candidate].astype(
            float
        )
        possible = np.where(
            self.unique_ids[self.candidate],
            np.minimum(possible, self.shard_rows),
            possible,
        )
        likely = self.likely_ids
        certain = likely * self.workload.capacity_slack >= possible
        return np.where(certain, possible, 0.0), np.where(certain, 0.0, likely)

    @functools.cached_property
    def likely_ids(self) -> np.ndarray:
        """Ids that a device is expected to send to each row shard: in RB every id, in
        UB every unique id."""
        likely = self._ids_of(self.workload.device_batch) * self.shares
        unique = self.expected_unique(self.workload.device_batch) / self.row_shards
        fewer = np.minimum(likely, unique[self.candidate])
        return np.where(self.unique_ids[self.candidate], fewer, likely)

    @functools.cached_property
    def batch_ids(self) -> np.ndarray:
        """Ids of the whole batch that fall on each row shard."""
        return self._ids_of(self.workload.batch_size) * self.shares

    @functools.cached_property
    def batch_unique(self) -> np.ndarray:
        """Rows of each row shard that the whole batch touches: in proportion to its
        rows, since round robin spreads touched rows evenly except the hottest few."""
        unique = self.expected_unique(self.workload.batch_size) / self.rows
        return unique[self.candidate] * self.shard_rows

    @functools.cached_property
    def updated_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """``(certain, expected)`` rows of each row shard that a batch updates, like
        ``sent_ids``. Of a replicated table that devices sum whole it is all."""
        batch_ids = np.rint(self.workload.batch_size * self.hotness)[self.candidate]
        possible = np.minimum(self.shard_rows, batch_ids)
        slack = self.workload.capacity_slack
        certain = capacity_of(0.0, self.batch_unique, slack) >= possible
        certain |= self.cached[self.candidate]  # there is room for all that may come
        if self.workload.devices > 1:
            summed = summed_whole(self.shard_rows, batch_ids)
            certain |= summed & self.replicated[self.candidate]
        return (
            np.where(certain, possible, 0.0),
            np.where(certain, 0.0, self.batch_unique),
        )

    @functools.cached_property
    def room_for_rows(self) -> np.ndarray:
        """Room for updated rows that each row shard adds to its owner's, at least."""
        certain, expected = self.updated_rows
        room = certain + self.workload.capacity_slack * expected
        if self.sizes is None:
            return room
        storage = self.storage[self.candidate]
        sums = np.bincount(storage, room, len(self.storages))
        times = np.ones(len(sums))
        for s, kind in enumerate(self.storages):
            size = self.sizes.get(rows_of(kind.name))
            if kind.of_cluster.replicated and size is not None:
                times[s] = size / max(1.0, sums[s])
        return room * times[storage]

    @functools.cached_property
    def missed_rows(self) -> np.ndarray:
        """Rows of each row shard that come into slots for a batch, in proportion to its
        rows."""
        samples = self.workload.batch_size
        missed = np.array([use.missed_rows(samples) for use in self.uses])[self.cut]
        return (missed / self.rows)[self.candidate] * self.shard_rows

    def expected_unique(self, samples: int) -> np.ndarray:
        """Returns ``[candidates]`` expected number of unique rows in these samples."""
        return np.array([use.unique_rows(samples) for use in self.uses])[self.cut]

    def _ids_of(self, samples: int) -> np.ndarray:
        """Returns the ids of these samples, without padding, for each row shard all of
        its table's."""
        return (samples * (self.hotness * self.filled))[self.candidate]


def candidates_of(
    ranges: Sequence[RowRange],
    uses: Sequence[TableUse],
    workload: Workload,
    sizes: Mapping[str, int] | None = None,
) -> Candidates:
    """Returns one candidate for each row range, in their order; the other arguments
    are as in the class."""
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
    return Candidates(cuts, layouts, workload, sizes)


def uses_of(
    ranges: Sequence[RowRange], features: Sequence[FeatureSpec], workload: Workload
) -> list[TableUse]:
    """Returns the use of each row range by ``features``."""
    uses = table_uses([rows.table for rows in ranges], features, workload)
    of_ranges = []
    for use, rows in zip(uses, ranges, strict=True):
        of_range = use.of_rows(rows.begin, rows.end)
        if workload.sorted_batch is not None:
            share = of_range.filled / use.filled
            share = workload.sorted_batch.ids_share(share, rows.replicated)
            of_range = dataclasses.replace(of_range, filled=share * use.filled)
        of_ranges.append(of_range)
    return of_ranges


def ranges_of(placements: Sequence[Placement], workload: Workload) -> list[RowRange]:
    """Returns the row ranges that a batch reads: all, or those of hot rows.

    Raises:
      ValueError: if all ids of a batch are of hot rows, and a table has none.
    """
    ranges = row_ranges(placements)
    if workload.sorted_batch is None or not workload.sorted_batch.all_hot:
        return ranges
    without = [p.table.name for p in placements if not p.replicated_rows]
    if without:
        raise ValueError(
            f"{len(without)} of {len(placements)} tables have no hot rows, such as "
            f"{without[0]!r}, so no batch is of hot rows alone; give them hot rows, "
            "as embedding.hot_budget does"
        )
    return [rows for rows in ranges if rows.replicated]
