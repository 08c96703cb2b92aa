"""The search for a plan, from beginning to end: relaxation, rounding, local search."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np

from embark_jax._base.memory import bytes_text
from embark_jax.planner.cost.memory import STORED_TIERS
from embark_jax.planner.request.workload import TableUse
from embark_jax.planner.search import params
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.branching import Branch, branch
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.layouts import fewest_slots
from embark_jax.planner.search.linear_program import UnsolvedError
from embark_jax.planner.search.local_search import LocalSearch
from embark_jax.planner.search.neighbourhood import reinsert
from embark_jax.planner.search.relaxation import Relaxation
from embark_jax.plans.forced import FREE
from embark_jax.plans.plan import MAX_SLOTS
from embark_jax.plans.wire import VALUE_BYTES

PRICE_RATIO = 4
"""By how much the price of memory rises from search to search."""


class DoesNotFitError(ValueError):
    """No plan fits; the message says what is short."""


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
      assignment: best assignment.
      bound_ms: bound: no plan takes less.
      search: moves that led to it.
      ms_per_byte: price of memory at which it was found.
    """

    assignment: Assignment
    bound_ms: float
    search: LocalSearch
    ms_per_byte: float = 0.0

    @property
    def step_ms(self) -> float:
        return self.assignment.step_ms()


def solve(instance: Instance, quick: bool = False) -> SearchResult:
    """Returns the best assignment of all starts, the lowest bound first, and of the
    leaves of their branches, once tables of the best ones were put in anew together.

    Args:
      instance: instance to plan.
      quick: whether to take the first that is found, unimproved.

    Raises:
      DoesNotFitError: if the tables do not fit.
    """
    if lacking := _lacking(instance):
        raise DoesNotFitError(lacking)
    starts = []
    for allowed in searched(instance):
        relaxation = Relaxation(instance, allowed)
        relaxed = relaxation.solve()
        if relaxed is not None:
            starts.append(Branch(relaxation, relaxed))
    starts.sort(key=lambda start: start.bound_ms)
    found: list[SearchResult] = []

    def search(start: Branch, roundings: int) -> None:
        """Keeps what is found, the fastest first. The price of memory begins below
        that of the fastest."""
        below = found[0].ms_per_byte / PRICE_RATIO if found else 0.0
        found.extend(_search(start, roundings, below))
        found.sort(key=lambda each: each.step_ms)

    groups, tables = len(instance.counts), len(instance.tables)
    roundings = max(params.ROUNDINGS, params.ROUNDED_GROUPS // groups)
    is_large = groups > params.LARGE_MODEL
    for start in starts:
        # No plan of this start is faster than its bound, nor of those that follow.
        if found and (is_large or start.bound_ms >= found[0].step_ms):
            break
        search(start, 1 if quick else roundings)
        if found and quick:
            return found[0]._replace(bound_ms=starts[0].bound_ms)
    programs = min(params.BRANCHES, params.BRANCHED // len(instance.candidates))
    above_ms = found[0].step_ms / (1 + params.CLOSE) if found else np.inf
    bound_ms, leaves = branch(starts, programs, above_ms)
    most_leaves = min(params.LEAVES, params.LEAF_WORK // (tables * groups))
    for leaf in leaves[:most_leaves]:
        if found and leaf.bound_ms >= found[0].step_ms / (1 + params.CLOSE):
            break
        search(leaf, params.LEAF_ROUNDINGS)
    if not found:
        short = instance.memory.shortage(least_bytes(instance))
        raise DoesNotFitError(short + _with_what_is_forced(instance))
    results = [_improved(each, bound_ms) for each in found[: params.IMPROVED]]
    return min(results, key=lambda result: result.step_ms)


def _improved(found: SearchResult, bound_ms: float) -> SearchResult:
    """Returns the result of moves among more candidates, as the relaxation has many
    optima, of unlike candidates, and of tables that are put in anew together."""
    last = found.search
    search = LocalSearch(last.instance, last.relaxed, params.LAST_TRIED)
    dice = np.random.default_rng(0)
    moved = search.improve(found.assignment.copy(), dice, found.ms_per_byte)
    work = params.REINSERTIONS / params.IMPROVED
    moved = reinsert(search, search.fill(moved), work, bound_ms)
    return SearchResult(moved, bound_ms, search)


def searched(instance: Instance) -> list[np.ndarray]:
    """Returns ``[candidates]`` masks of the candidates that each start chooses among.
    On several nodes all tables whose owners pool have one exchange, rather than both in
    one plan, and one start has as few cached tables as possible. A start with fewer
    candidates comes nearer to the bound, so that one more choice makes no plan longer.
    A candidate is in no mask if one of its shards does not fit."""
    candidates = instance.candidates
    fixed = np.array([force.exchange is not None for force in instance.forced])
    free = candidates.pools_at_owner & ~fixed[candidates.table]
    fits = instance.shard_bytes <= instance.memory.limit_bytes
    groups = len(instance.counts)

    def least(values: np.ndarray) -> np.ndarray:
        of_groups = np.full(groups, np.iinfo(np.int64).max)
        np.minimum.at(of_groups, candidates.table, values)
        return values == of_groups[candidates.table]

    kept = [np.array(True), least(np.sign(candidates.slots))]
    exchanges = np.unique(candidates.staged[free]) if free.any() else [False]
    masks = [
        ~(free & (candidates.staged != exchange)) & some & fits
        for exchange in exchanges
        for some in kept
    ]
    different = {mask.tobytes(): mask for mask in masks}
    return [
        mask
        for _, mask in sorted(different.items())
        if len(np.unique(candidates.table[mask])) == groups
    ]


def _search(start: Branch, number: int, ms_per_byte: float) -> list[SearchResult]:
    """Returns the best assignment that fits of so many roundings of a relaxation, if
    any is found.

    Where memory is short it gets a price, which rises from the given one until a plan
    fits, and on while plans get faster: the fullest device counts for all, and only
    whole plans show how full it is.
    """
    instance, relaxed = start.relaxation.instance, start.solution
    roundings = _roundings(start, number)
    search = LocalSearch(instance, relaxed, params.TRIED)
    first_price = params.MEMORY_PRICE * start.bound_ms / instance.memory.limit_bytes
    best: Assignment | None = None
    best_price = 0.0
    for _ in range(params.MEMORY_SEARCHES):
        placed = []
        for seed, chosen in enumerate(roundings):
            assignment = search.construct(chosen, ms_per_byte)
            dice = np.random.default_rng(seed)
            placed.append(search.improve(assignment, dice, ms_per_byte))
        fastest = min(placed, key=Assignment.step_ms)
        if not fastest.fits():
            placed.append(search.fill(fastest))
        least = min(placed, key=Assignment.rank)
        if least.fits():
            if best is not None and least.step_ms() >= best.step_ms():
                break
            best, best_price = least, ms_per_byte
        if best is not None and fastest.fits():
            break
        ms_per_byte = PRICE_RATIO * ms_per_byte or first_price
    if best is None:
        return []
    return [SearchResult(search.fill(best), start.bound_ms, search, best_price)]


def _roundings(start: Branch, number: int) -> list[np.ndarray]:
    """Returns the roundings worth a search, each ``[tables]`` candidates: of the
    relaxation, and of relaxations with crowded peaks."""
    relaxation, relaxed = start
    solutions = [relaxed]
    for crowding in params.CROWDING[1:number]:
        with contextlib.suppress(UnsolvedError):
            crowded = relaxation.solve(crowding, relaxed.range)
            if crowded is not None:
                solutions.append(crowded)
    return [_round_tables(relaxation.instance, each.tables) for each in solutions]


def _round_tables(instance: Instance, tables: np.ndarray) -> np.ndarray:
    """Returns ``[tables]`` candidates that are near the fractions of a relaxation.

    Args:
      instance: instance to plan.
      tables: ``[candidates]`` number of tables that take each, fractions allowed.
    """
    chosen = np.zeros(len(instance.tables), np.int64)
    groups = np.arange(len(instance.counts) + 1)
    first = np.searchsorted(instance.candidates.table, groups)
    for g, count in enumerate(instance.counts.tolist()):
        candidates = np.arange(first[g], first[g + 1])
        whole = _whole(tables[candidates], count)
        chosen[instance.group == g] = np.repeat(candidates, whole)
    return chosen


def _whole(values: np.ndarray, total: int) -> np.ndarray:
    """Returns whole numbers near ``values`` that sum to ``total``: those with the
    largest fractions are rounded up."""
    whole = np.floor(values + 1e-6).astype(int)
    left = total - whole.sum()
    fraction = np.maximum(values - whole, 0.0)
    whole[np.argsort(-fraction, kind="stable")[:left]] += 1
    return whole


def least_bytes(instance: Instance) -> float:
    """Returns the bytes that every plan takes on each device: its fair share of the
    rows, each on one device, with their optimizer state; and the dense layers."""
    rows_bytes = sum(
        count
        * _least_rows(instance, use)
        * instance.memory.row_bytes(use.table.dim, VALUE_BYTES[use.table.dtype])
        for count, use in zip(instance.counts, instance.uses, strict=True)
    )
    return rows_bytes / instance.workload.devices + instance.objective.fixed_bytes.max()


def _least_rows(instance: Instance, use: TableUse) -> int:
    """Returns the fewest rows of a table that are in device memory."""
    if not use.table.cached:
        return use.rows
    return use.table.slots or fewest_slots(use, instance.workload)


def _with_what_is_forced(instance: Instance) -> str:
    """Says which tables have a forced placement; "" if none have."""
    pairs = zip(instance.tables, instance.group, strict=True)
    names = [table.name for table, group in pairs if instance.forced[group] != FREE]
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f", with the forced placement of {', '.join(names[:3])}{more}"


def _lacking(instance: Instance) -> str:
    """Says what every plan lacks: device memory, numbers of rows, or room in row
    stores; "" if it lacks nothing."""
    memory, workload = instance.memory, instance.workload
    if (least := least_bytes(instance)) > memory.limit_bytes:
        return memory.shortage(least)
    devices = workload.devices
    many = [
        table
        for table in instance.tables
        if not table.cached and table.rows > devices * MAX_SLOTS
    ]
    if many:
        return (
            f"table {many[0].name!r} has {many[0].rows:,} rows on {devices} device"
            f"{'s' * (devices > 1)}, and a device numbers at most {MAX_SLOTS:,} rows "
            "of a table"
        )
    cached = [table for table in instance.tables if table.cached]
    rows_bytes = memory.rows_bytes(cached)
    tiers = {storage.tier for storage in instance.candidates.storages}
    of_tiers = zip(STORED_TIERS, memory.stored_limit_bytes, strict=True)
    stores_bytes = sum(room for tier, room in of_tiers if tier in tiers)
    stores_bytes *= workload.fleet.nodes
    devices_bytes = devices * memory.limit_bytes
    if rows_bytes <= stores_bytes + devices_bytes:
        return ""
    return (
        f"rows of {len(cached)} cached tables and their optimizer state take "
        f"{bytes_text(rows_bytes)}, but host memory and disks have room for "
        f"{bytes_text(stores_bytes)} and devices for {bytes_text(devices_bytes)}"
    )
