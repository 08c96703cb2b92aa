"""Workloads: a fleet, a batch, and how the batch uses each table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

from embark_kernels.optimizers import ROW_OPTIMIZERS, RowOptimizer

from embark_jax.planner.request.dense import NO_DENSE, DenseLoad
from embark_jax.plans.capacities import events_capacity
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.options import Kernels, Tier
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32, Wire
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics
from embark_jax.statistics.misses import missed_rows
from embark_jax.statistics.skew import UNIFORM, Skew, Zipf


def _state_values(rule: type[RowOptimizer]) -> tuple[int, int]:
    one, two = (sum(rule(1.0).state_widths(width).values()) for width in (1, 2))
    return two - one, 2 * one - two


STATE_VALUES = {name: _state_values(rule) for name, rule in ROW_OPTIMIZERS.items()}
"""float32 values that an optimizer keeps for each parameter, and for each row."""


class SortedBatch(NamedTuple):
    """A batch of ``train.hot_batches``: of all-hot samples, whose ids are all of hot
    rows, or of the others.

    Attributes:
      all_hot_share: share of all samples that are all-hot.
      all_hot: whether this batch is of these.
    """

    all_hot_share: float
    all_hot: bool

    def ids_share(self, share: float, hot: bool) -> float:
        """Returns the share of this batch's ids that fall on hot, or cold, rows, on
        which this share of all ids falls."""
        if self.all_hot:
            return float(hot)
        mixed = 1 - self.all_hot_share
        return min(1.0, max(0.0, share - hot * self.all_hot_share) / mixed)


MOST_EXPONENT = 20
"""Largest exponent of a power law; with it, all ids are of the first row."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """The circumstances of a plan.

    Attributes:
      fleet: the machines.
      batch_size: samples of a step over all devices.
      zipf_exponent: skew of ids within their table; 0 is uniform.
      capacity_slack: multiple of the expected ids that exchange buffers hold.
      optimizer: optimizer of the embedding rows; where tables have several, that with
        the most state, for which all of them are priced.
      statistics: statistics of a sample of the data; the power law is then for the
        tables that are not in it, and bags of features that are not in it are full.
      wire: the formats in which rows and gradients travel.
      dense: the dense layers.
      micro_batches: number of equal cuts of the batch that go through the dense layers
        one after the other.
      overlap: whether the routes of the next batch, which each step makes, hide beside
        the dense layers. They do on GPUs, whose links are idle meanwhile; host devices
        have no links, and share their cores.
      sample_ids: ids of a sample, over all features: as far as the dense layers last
        no less than these travel, a look-ahead hides that they do. 0 is unknown, and
        all is taken to be hidden.
      kernels: implementation of lookups, sums of gradients and updates.
      memory_gb: most memory of a device that a step may take; None is most of all.
      sorted_batch: kind of the batch, where samples are sorted by their hot rows.

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
    sample_ids: int = 0
    kernels: Kernels = "xla"
    memory_gb: float | None = None
    sorted_batch: SortedBatch | None = None

    def __post_init__(self):
        kernels, memory_gb = get_args(Kernels), self.memory_gb
        share = self.sorted_batch.all_hot_share if self.sorted_batch else 0.0
        for key, good, rule in (
            (
                "zipf_exponent",
                0 <= self.zipf_exponent <= MOST_EXPONENT,
                f"from 0 to {MOST_EXPONENT}",
            ),
            ("capacity_slack", 0 < self.capacity_slack < math.inf, "finite and > 0"),
            (
                "memory_gb",
                memory_gb is None or 0 < memory_gb < math.inf,
                "finite and > 0",
            ),
            ("sorted_batch", 0 <= share < 1, "of a share from 0 to below 1"),
            ("wire", isinstance(self.wire, Wire), "such as Wire('bfloat16')"),
            ("kernels", self.kernels in kernels, f"one of {', '.join(kernels)}"),
            (
                "optimizer",
                self.optimizer in STATE_VALUES,
                f"one of {', '.join(STATE_VALUES)}",
            ),
        ):
            if not good:
                raise ValueError(f"{key} is {getattr(self, key)!r}, must be {rule}")

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
        return ROW_OPTIMIZERS[self.optimizer].row_wise


@dataclasses.dataclass(frozen=True)
class TableUse:
    """All that affects the cost of a table; tables with equal uses are alike.

    Attributes:
      table: the table, without what no cost depends on.
      rows: number of rows, of all the table's, that this is the use of.
      hotness: ids a sample at most, over all its features; of sequences those that a
        device has room for, as a mean over its samples.
      bags: rows a sample after pooling: one for a pooled feature, the room for a
        sequence.
      sequence: whether a sequence reads it.
      weighted: whether some of its ids come with a weight.
      summed: whether its embeddings are sums of bags alone: these, and their gradients,
        have the data type that the model takes; means and sequences are float32.
      filled: mean ids a sample, as a share of ``hotness``; the rest is padding, which
        is not sent.
      skew: distribution of the ids over its rows.
    """

    table: TableSpec
    rows: int
    hotness: float
    bags: float = 1
    sequence: bool = False
    weighted: bool = False
    summed: bool = True
    filled: float = 1.0
    skew: Skew = UNIFORM

    @property
    def ids(self) -> float:
        """Ids a sample, without padding."""
        return self.hotness * self.filled

    def unique_rows(self, samples: int) -> float:
        """Returns the unique rows to expect in these samples."""
        return self.skew.expected_unique(self.rows, float(samples * self.ids))

    def missed_rows(self, samples: int) -> float:
        """Returns those of them that are not in slots when the samples come."""
        slots, evict = self.table.slots, self.table.evict
        if slots is None:
            return 0.0
        ids = float(samples * self.ids)
        return missed_rows(self.skew, self.rows, slots, ids, evict)

    def hit_rate(self, samples: int) -> float:
        """Returns the share of them that are in slots when the samples come."""
        unique = self.unique_rows(samples)
        return 1 - self.missed_rows(samples) / unique if unique else 1.0

    def in_tier(self, tier: Tier, slots: int | None) -> TableUse:
        """Returns the use of the same rows where all have room in this tier."""
        table = dataclasses.replace(self.table, tier=tier, slots=slots)
        return dataclasses.replace(self, table=table)

    def of_rows(self, begin: int, end: int) -> TableUse:
        """Returns the use of only rows ``[begin, end)``, for which the ids of all other
        rows are padding."""
        if (begin, end) == (0, self.rows):
            return self
        return dataclasses.replace(
            self,
            rows=end - begin,
            filled=self.filled * self.skew.share(self.rows, begin, end),
            skew=self.skew.within(self.rows, begin, end),
        )


def table_uses(
    tables: Sequence[TableSpec], features: Sequence[FeatureSpec], workload: Workload
) -> list[TableUse]:
    """Returns the use of each of ``tables`` by ``features``."""
    statistics, zipf = workload.statistics, Zipf(workload.zipf_exponent)
    of_table: dict[str, list[FeatureSpec]] = {}
    for feature in features:
        of_table.setdefault(feature.table, []).append(feature)
    uses = []
    for table in tables:
        own_features = of_table[table.name]
        hotness = sum(_room(feature, workload) for feature in own_features)
        uses.append(
            TableUse(
                _without_names(table),
                table.rows,
                hotness,
                bags=sum(_room(f, workload) if f.sequence else 1 for f in own_features),
                sequence=any(feature.sequence for feature in own_features),
                weighted=any(feature.weighted for feature in own_features),
                summed=all(feature.pooling == "sum" for feature in own_features),
                filled=sum(map(statistics.mean_hotness, own_features)) / hotness,
                skew=statistics.skew(table) or zipf,
            )
        )
    return uses


def _without_names(table: TableSpec) -> TableSpec:
    """Returns the table without what no cost depends on: its initial values, and its
    name, unless it is dynamic and like no other."""
    name = table.name if table.is_dynamic else "alike"
    return dataclasses.replace(table, name=name, init_scale=None, initializer="uniform")


def events_of_device(feature: FeatureSpec, workload: Workload) -> int:
    """Returns the events of a sequence that a device has room for."""
    mean = workload.statistics.mean_hotness(feature)
    return events_capacity(workload.device_batch, mean, feature.hotness)


def _room(feature: FeatureSpec, workload: Workload) -> float:
    """Returns the ids of a sample that there is room for."""
    if not feature.sequence:
        return feature.hotness
    return events_of_device(feature, workload) / max(1, workload.device_batch)
