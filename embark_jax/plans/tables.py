"""Tables and features: the lookups of a recommendation model.

A *table* holds ``rows × dim`` parameters. A *feature* is an input column of ids that
reads one table; several features may share a table. The ids of one feature in one
sample are a *bag*; *hotness* is the largest number of ids a bag may hold.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, get_args

from embark_jax.plans.options import Dtype, Evict, Evicted, Initializer, Pooling, Tier

DYNAMIC_KEYS = 2**64
"""Number of keys of a dynamic table: any 64 bits are one."""
HASHED_KEYS = 2**63 - 1
"""Number of those that prepared values are hashed to."""
FIRST_SLOTS = 2**14
"""Slots that a dynamic table begins with, if nothing is said."""
PADDING_ID = -1
"""Marks a padding element of a bag; it costs no lookup."""
UNIFORM_NEGATIVES = "uniform_negatives"
"""Feature whose ids a run draws at random, for the loss of a retrieval model."""

MOST = 2**31 - 1
MOST_DIM = 2**16
MOST_DEVICES = 2**16
MOST_ROWS, MOST_BATCH = 2**42, 2**44
"""Largest counts: of all, dims, devices, rows, and samples of a batch. The bytes of
such a table are a 64-bit integer, and no machine has them."""
_OF_DYNAMIC = ("discard", "expected_keys")
"""Fields that only dynamic tables may set; others have their defaults."""
_CHOICES = {"tier": Tier, "evict": Evict, "initializer": Initializer, "dtype": Dtype}


def positive_int(what: str, value: Any, limit: int = MOST) -> int:
    """Returns a count, Python's or NumPy's, as an int.

    Raises:
      ValueError: if it is not a whole number, below 1 or above ``limit``.
    """
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < 1:
        raise ValueError(f"{what} is {value!r:.80}, must be a whole number >= 1")
    count = int(value)
    if count > limit:
        digits = f"{count:,}" if count < 10**30 else "a number of more than 30 digits"
        raise ValueError(f"{what} is {digits}, must be at most {limit:,}")
    return count


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """An embedding table of ``rows × dim`` parameters.

    Args:
      name: unique among the tables of a model.
      rows: number of rows; ids run from 0 to ``rows - 1``. May exceed 2**31.
      dim: parameters a row.
      init_scale: scale of the initial values. ``None`` takes ``rows ** -0.5``, as DLRM
        does (https://arxiv.org/abs/1906.00091).
      initializer: rows start "uniform" in ``[-init_scale, init_scale]``, or "normal"
        with mean 0 and standard deviation ``init_scale``.
      optimizer: name of the rule that updates the rows, of those in
        ``embedding.RowRules``; "" means the default.
      dtype: number format in which rows are stored. Updates are computed in float32;
        those of a 16-bit format are then rounded stochastically. Optimizer states are
        float32 always.
      tier: place with room for all rows. "host" is the memory and "disk" a scratch file
        of the processes that own them; the table is then *cached*: device memory holds
        as many rows as it has slots, among them the rows that a batch asks for. "auto"
        leaves it to the planner: all rows on devices unless their memory is short.
      slots: number of slots of a cached table, on all devices together; ``None`` leaves
        it to the planner.
      evict: rows that leave the slots of a cached table first: "lru" those asked for
        longest ago, "lfu" those asked for by the fewest batches since they came.
      max_slots: number of slots that makes a *dynamic* table, as ``TableSpec.dynamic``
        does: any 64-bit id is a key, and gets a row when it is first seen. ``slots``
        are the present room, and grow. Without ``slots`` it has as many as ``rows``, up
        to ``max_slots``; without a ``tier``, evicted rows are in "host".
      discard: whether a dynamic table forgets a row that leaves the slots: its key
        counts as new when it is seen again.
      expected_keys: different keys of a dynamic table by the end of the run, for which
        memory is planned; None expects as many as ``max_slots``.

    Raises:
      ValueError: if a value breaks its rule.
    """

    name: str
    rows: int
    dim: int
    init_scale: float | None = None
    tier: Tier = "device"
    slots: int | None = None
    evict: Evict = "lru"
    max_slots: int | None = None
    discard: bool = False
    expected_keys: int | None = None
    initializer: Initializer = "uniform"
    optimizer: str = ""
    dtype: Dtype = "float32"

    @classmethod
    def dynamic(
        cls,
        name: str,
        dim: int,
        slots: int | None,
        max_slots: int,
        *,
        evicted: Evicted = "host",
        expected_keys: int | tuple[int, int] | None = None,
        **others: Any,
    ) -> TableSpec:
        """Makes a table whose rows are made when their key is first seen.

        Args:
          name, dim: as in any table.
          slots: initial slots, on all devices together; at least one a device. None
            takes the keys expected at first, or 16,384, up to ``max_slots``. Whenever
            there are more keys they double, more than once if many are new.
          max_slots: largest number of slots. Surplus rows then leave.
          evicted: place of rows that have left: memory, "host", a scratch file, "disk",
            or nowhere, "discard".
          expected_keys: as in the class; or of the first steps and of the end.
          others: ``init_scale``, ``optimizer``, ``dtype`` and ``evict``, as in any
            cached table; an ``init_scale`` of None takes ``max_slots ** -0.5``.

        Raises:
          ValueError: if a value breaks its rule.
        """
        if evicted not in get_args(Evicted):
            raise ValueError(
                f"table {name!r}: evicted is {evicted!r}, must be one of "
                f"{', '.join(get_args(Evicted))}"
            )
        limit = positive_int(f"table {name!r}: max_slots", max_slots, MOST_ROWS)
        first_keys = FIRST_SLOTS
        if isinstance(expected_keys, tuple):
            first_keys, expected_keys = expected_keys
        slots = min(first_keys, limit) if slots is None else slots
        return cls(
            name,
            rows=positive_int(f"table {name!r}: slots", slots, MOST_ROWS),
            dim=dim,
            tier="host" if evicted == "discard" else evicted,
            slots=slots,
            max_slots=max_slots,
            discard=evicted == "discard",
            expected_keys=expected_keys,
            **others,
        )

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name or "/" in self.name:
            raise ValueError(
                f"table name {self.name!r}: must be non-empty text, without '/'"
            )
        self._count("rows", MOST_ROWS)
        self._count("dim", MOST_DIM)
        scale = self.init_scale
        finite = isinstance(scale, numbers.Real) and 0 <= scale < math.inf
        self._check(
            "init_scale", scale is None or finite, "must be a finite number >= 0"
        )
        if self.is_dynamic:
            limit = self._count("max_slots", MOST_ROWS)
            if self.tier == "device":
                object.__setattr__(self, "tier", "host")
            if self.slots is None:
                object.__setattr__(self, "slots", min(self.rows, limit))
        for key, kind in _CHOICES.items():
            allowed = get_args(kind)
            good = getattr(self, key) in allowed
            self._check(key, good, f"must be one of {', '.join(allowed)}")
        if not self.cached:
            self._check(
                "slots",
                self.slots is None,
                "but tier is 'device', where every row has its slot; set tier to host "
                "or disk",
            )
        elif self.slots is not None:
            few = self._count("slots", MOST_ROWS) <= self.rows
            self._check("slots", few, f"must be at most its {self.rows} rows")
        if not self.is_dynamic:
            for key in _OF_DYNAMIC:
                default = getattr(self, key) == getattr(TableSpec, key)
                rule = "which only a dynamic table may have; give it max_slots"
                self._check(key, default, rule)
            return
        if self.expected_keys is not None:
            self._count("expected_keys", MOST_ROWS)
        rule = "must be uniform where the table is dynamic"
        self._check("initializer", self.initializer == "uniform", rule)
        few = self.slots is not None and self.slots <= limit
        self._check("slots", few, f"must be at most its max_slots {limit}")

    def _count(self, key: str, limit: int) -> int:
        """Makes a field an int that is a count up to a limit, or raises."""
        value = positive_int(f"table {self.name!r}: {key}", getattr(self, key), limit)
        object.__setattr__(self, key, value)
        return value

    def _check(self, key: str, good: bool, rule: str) -> None:
        if not good:
            raise ValueError(
                f"table {self.name!r}: {key} is {getattr(self, key)!r}, {rule}"
            )

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments that give its rows their place and form in a checkpoint; rows
        of a dynamic table are None."""
        shape = {"rows": None if self.is_dynamic else self.rows, "dim": self.dim}
        return shape if self.dtype == "float32" else shape | {"dtype": self.dtype}

    @property
    def is_dynamic(self) -> bool:
        """Whether rows are made when their key is first seen."""
        return self.max_slots is not None

    @property
    def keys(self) -> int:
        """Number of ids: they run from 0 to this, exclusive; ``DYNAMIC_KEYS`` where any
        64 bits are one."""
        return DYNAMIC_KEYS if self.is_dynamic else self.rows

    def with_slots(self, slots: int) -> TableSpec:
        """Returns the dynamic table with its slots doubled until they are so many, or
        as many as it may have."""
        assert self.max_slots is not None
        assert self.slots is not None
        doubled = self.slots
        while doubled < slots:
            doubled *= 2
        doubled = min(doubled, self.max_slots)
        return dataclasses.replace(self, rows=max(self.rows, doubled), slots=doubled)

    @property
    def cached(self) -> bool:
        """Whether device memory has fewer slots than the table has rows, or may have
        in a plan to come."""
        return self.tier != "device"

    @property
    def scale(self) -> float:
        """Scale of the initial values: ``init_scale``, or what it is by default."""
        rows = self.max_slots or self.rows
        return rows**-0.5 if self.init_scale is None else self.init_scale


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """A column of ids that reads one table.

    Args:
      name: unique among the features of a model.
      table: name of the table it reads; "" takes the feature's own name.
      hotness: largest number of ids in a bag; shorter bags are padded with -1.
      pooling: how the rows of a bag become the pooled embedding. "sum" and "mean" give
        ``[batch, dim]`` and an empty bag pools to zeros; "none" keeps the sequence,
        ``[batch, hotness, dim]``, with zeros where it is padded.
      weighted: whether each id comes with a float32 weight. "sum" is then the weighted
        sum, "mean" the weighted sum over the sum of weights.

    Raises:
      ValueError: if a value breaks its rule.
    """

    name: str
    table: str = ""
    hotness: int = 1
    pooling: Pooling = "sum"
    weighted: bool = False

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"feature name {self.name!r}: must be non-empty text")
        if not self.table:
            object.__setattr__(self, "table", self.name)
        for key, kind in (("table", str), ("weighted", bool)):
            if not isinstance(value := getattr(self, key), kind):
                raise ValueError(
                    f"feature {self.name!r}: {key} is {value!r}, must be of type "
                    f"{kind.__name__}"
                )
        hotness = positive_int(f"feature {self.name!r}: hotness", self.hotness)
        object.__setattr__(self, "hotness", hotness)
        if self.pooling not in get_args(Pooling):
            raise ValueError(
                f"feature {self.name!r}: pooling is {self.pooling!r}, must be one of "
                f"{', '.join(get_args(Pooling))}"
            )

    @property
    def reading(self) -> dict[str, Any]:
        """All but its name, as JSON."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "name"}

    @property
    def sequence(self) -> bool:
        """Whether each id has a row of its own, and is an event of a sequence."""
        return self.pooling == "none"


def check_model(tables: Sequence[TableSpec], features: Sequence[FeatureSpec]) -> None:
    """Raises ``ValueError`` with every inconsistency between tables and features."""
    problems = []
    for kind, specs, cls in (
        ("table", tables, TableSpec),
        ("feature", features, FeatureSpec),
    ):
        others = [spec for spec in specs if not isinstance(spec, cls)]
        if others or not specs:
            content = f"{others[0]!r} among them" if others else "none given"
            raise ValueError(
                f"{kind}s: {content}, must be at least one {cls.__name__} and nothing "
                "else"
            )
        names = [spec.name for spec in specs]
        problems += [
            f"{kind} name {name!r} is used {names.count(name)} times, must be unique"
            for name in sorted(set(names))
            if names.count(name) > 1
        ]
    table_names = {table.name for table in tables}
    problems += [
        f"feature {feature.name!r} reads table {feature.table!r}, which is not among "
        f"the tables ({', '.join(sorted(table_names))})"
        for feature in features
        if feature.table not in table_names
    ]
    unread = table_names - {feature.table for feature in features}
    problems += [f"table {name!r} is read by no feature" for name in sorted(unread)]
    if problems:
        raise ValueError("; ".join(problems))


def embedding_shapes(
    tables: Sequence[TableSpec], features: Sequence[FeatureSpec]
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each feature's embedding per sample: ``(dim,)``, or
    ``(hotness, dim)`` for a sequence."""
    dims = {table.name: table.dim for table in tables}
    return {
        f.name: (f.hotness, dims[f.table]) if f.sequence else (dims[f.table],)
        for f in features
    }


def embedding_width(
    tables: Sequence[TableSpec], features: Sequence[FeatureSpec]
) -> int:
    """Returns the number of values of all embeddings of a sample."""
    return sum(map(math.prod, embedding_shapes(tables, features).values()))
