"""What is planned for: a fleet, a batch, and what the batch asks of each table."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from embark_jax.fleet import Fleet
from embark_jax.planner.access import NO_STATISTICS, Statistics
from embark_jax.planner.dealing import Dealing, dealing_in, in_turn
from embark_jax.planner.dense import NO_DENSE, DenseLoad
from embark_jax.planner.statistics import UNIFORM, Skew, Zipf
from embark_jax.planner.storage import (
    Cluster,
    Exchange,
    Placement,
    StorageKind,
    storage_kind,
)
from embark_jax.planner.wire import FLOAT32, Wire
from embark_jax.tables import FeatureSpec, TableSpec

STATE_VALUES = {
    "sgd": (0, 0),
    "adagrad": (1, 0),
    "rowwise_adagrad": (0, 1),
    "adam": (2, 0),
}
"""float32 values that an optimizer keeps for each parameter, and for each row."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """The circumstances of a plan.

    Attributes:
      fleet: the machines.
      batch_size: global, samples a step, or of one of its micro-batches.
      zipf_exponent: skew of ids within their table; 0 is uniform.
      capacity_slack: exchange buffers hold this multiple of the expectation.
      optimizer: of the embedding rows.
      statistics: of a sample of the data; the power law is then for the tables that
        are not in it, and bags of features that are not in it are full.
      wire: the formats in which rows and gradients travel.
      dense: the dense layers.
      micro_batches: that a step takes one after the other.
      overlap: whether a step also makes the routes of the next.
      dealt: whether the rows of tables in RB are dealt to row shards, as storages do,
        or go around in turn, as in EMBark's system.

    Raises:
      ValueError: if a value breaks its rule.
    """

    fleet: Fleet
    batch_size: int
    zipf_exponent: float = 0.0
    capacity_slack: float = 1.25
    optimizer: str = "rowwise_adagrad"
    statistics: Statistics = NO_STATISTICS
    wire: Wire = FLOAT32
    dense: DenseLoad = NO_DENSE
    micro_batches: int = 1
    overlap: bool = False
    dealt: bool = True

    def __post_init__(self):
        if not 0 <= self.zipf_exponent < math.inf:
            raise ValueError(
                f"zipf_exponent is {self.zipf_exponent}, must be finite and >= 0"
            )
        if not 0 < self.capacity_slack < math.inf:
            raise ValueError(
                f"capacity_slack is {self.capacity_slack}, must be finite and > 0"
            )
        if not isinstance(self.wire, Wire):
            raise ValueError(f"wire is {self.wire!r}, must be such as Wire('bfloat16')")
        if self.optimizer not in STATE_VALUES:
            raise ValueError(
                f"optimizer is {self.optimizer!r}, must be one of "
                f"{', '.join(STATE_VALUES)}"
            )

    @property
    def devices(self) -> int:
        return self.fleet.devices

    @property
    def device_batch(self) -> int:
        return self.batch_size // self.devices

    @property
    def state_values(self) -> tuple[int, int]:
        return STATE_VALUES[self.optimizer]

    @property
    def row_wise(self) -> bool:
        """Whether the optimizer takes the mean square of whole rows."""
        return self.optimizer == "rowwise_adagrad"


@dataclasses.dataclass(frozen=True)
class TableUse:
    """All that matters of a table to its cost; tables that agree in it are alike.

    Attributes:
      rows, dim: of the table.
      hotness: ids a sample at most, over all its features.
      lanes: pooled rows a sample: one a pooled feature, hotness of a sequence.
      weighted: whether some of its ids come with a weight.
      filled: ids a sample on average, as a share of ``hotness``; the rest is padding,
        which is not sent.
      skew: how the ids are distributed over its rows.
    """

    rows: int
    dim: int
    hotness: int
    lanes: int
    weighted: bool = False
    filled: float = 1.0
    skew: Skew = UNIFORM


def table_use(
    table: TableSpec, features: Sequence[FeatureSpec], workload: Workload
) -> TableUse:
    """What ``features`` ask of ``table``."""
    mine = [feature for feature in features if feature.table == table.name]
    hotness = sum(feature.hotness for feature in mine)
    statistics = workload.statistics
    return TableUse(
        table.rows,
        table.dim,
        hotness,
        lanes=sum(f.hotness if f.pooling == "none" else 1 for f in mine),
        weighted=any(feature.weighted for feature in mine),
        filled=sum(map(statistics.mean_hotness, mine)) / hotness,
        skew=statistics.skew(table) or Zipf(workload.zipf_exponent),
    )


@dataclasses.dataclass(frozen=True)
class Shape:
    """A cluster, a split and an exchange of a table: a candidate, before it has a
    place.

    Attributes:
      use: of the table.
      cluster, row_shards, column_shards, exchange, row_loads: as of ``Placement``.
    """

    use: TableUse
    cluster: Cluster
    row_shards: int = 1
    column_shards: int = 1
    exchange: Exchange = "flat"
    row_loads: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return self.use.dim // self.column_shards

    @functools.cached_property
    def storage(self) -> StorageKind:
        use = self.use
        return storage_kind(
            self.cluster, use.dim, self.column_shards, use.weighted, self.exchange
        )

    @property
    def shards(self) -> int:
        return self.row_shards * self.column_shards

    def nodes_each(self, gpus_per_node: int) -> int:
        """Nodes at least that hold row shards of one column shard, each of which lies
        on another device."""
        return -(-self.row_shards // gpus_per_node)

    @functools.cached_property
    def shard_rows(self) -> np.ndarray:
        """``[row_shards]`` rows that each row shard holds."""
        j = np.arange(self.row_shards)
        return (self.use.rows - j + self.row_shards - 1) // self.row_shards

    def dealing(self, workload: Workload) -> Dealing:
        """Where the rows go."""
        if not workload.dealt:
            return in_turn(self.use.rows, self.row_shards)
        return dealing_in(self.cluster, self.use.rows, self.row_shards, self.row_loads)

    def sent_ids(self, workload: Workload) -> tuple[np.ndarray, np.ndarray]:
        """``(certain, expected)`` ids that a device sends to each row shard: what
        cannot be exceeded, where slack would go beyond it, or else the expectation."""
        places = workload.device_batch * self.use.hotness
        most = np.full(self.row_shards, float(places))
        if self.cluster == "ub":
            most = np.minimum(most, self.shard_rows)
        likely = self.likely_ids(workload)
        sure = likely * workload.capacity_slack >= most
        return np.where(sure, most, 0.0), np.where(sure, 0.0, likely)

    def likely_ids(self, workload: Workload) -> np.ndarray:
        """``[row_shards]`` ids that a device may be expected to send to each: in "rb"
        every id, in "ub" every id once."""
        use = self.use
        ids = workload.device_batch * use.hotness * use.filled
        if self.cluster == "ub":
            likely = ids * self._shares(workload)
            distinct = use.skew.expected_unique(use.rows, ids)
            return np.minimum(likely, distinct / self.row_shards)
        if self.row_shards == 1:
            return np.full(1, float(ids))
        return ids * self._shares(workload)

    def batch_ids(self, workload: Workload) -> np.ndarray:
        """``[row_shards]`` ids of the whole batch that fall on each row shard."""
        ids = workload.batch_size * self.use.hotness * self.use.filled
        return ids * self._shares(workload)

    def batch_unique(self, workload: Workload) -> np.ndarray:
        """``[row_shards]`` rows of each row shard that the whole batch touches."""
        use, dealing = self.use, self.dealing(workload)
        ids = workload.batch_size * use.hotness * use.filled
        return use.skew.row_shard_unique(use.rows, ids, dealing)

    def kept_loads(self, workload: Workload) -> np.ndarray:
        """``[row_shards]`` share of its ids that each keeps when row shards are dealt
        other loads: those of its hottest row, and of rows that are not dealt. A full
        one has hardly more."""
        dealing = self.dealing(workload)
        if not dealing.first:
            return np.ones(self.row_shards)
        dealt = self.use.skew.first_shares(self.use.rows, dealing.first)
        kept = dealt[: self.row_shards] + (1 - dealt.sum()) / self.row_shards
        kept = np.minimum(1.0, kept / self._shares(workload))
        kept[: dealing.full] = 1.0
        return kept

    def _shares(self, workload: Workload) -> np.ndarray:
        """``[row_shards]`` share of the table's ids that fall on each."""
        use = self.use
        return use.skew.row_shard_shares(use.rows, self.dealing(workload))


def shape_of(
    placement: Placement, features: Sequence[FeatureSpec], workload: Workload
) -> Shape:
    """What the cost of a placement depends on, but for its owners."""
    return Shape(
        table_use(placement.table, features, workload),
        placement.cluster,
        placement.row_shards,
        placement.column_shards,
        placement.exchange,
        placement.row_loads,
    )
