"""Takes a box of plans apart, into two that bound more than the whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from embark_jax.planner.box import IDS, TOLERANCE, Box, Count, Solution
from embark_jax.planner.program import Program

TRIALS = 4
"""Splits of a box that are compared: those that promise most."""
CROWDING = 0.5
"""Share of the largest shard by which placed levels are taken to be above the mean."""
LEAST_PROMISE = 1e-6
"""Share of the bound that a split must promise."""
WHOLE = 1e-4
"""Distance from a whole number up to which a number is one."""

Split = tuple[float, tuple[Box, Box]]
"""By how many ms the bound of one of them may rise, and two boxes that have all plans
of a third between them."""


def splits(program: Program, box: Box, solution: Solution) -> list[tuple[Box, Box]]:
    """The most promising ways to split a box.

    Args:
      program, box: what is bounded.
      solution: that reaches the bound.
    """
    found = [
        *_by_levels(program, box, solution),
        *_by_counts(program, box, solution),
        *_by_storages(program, box, solution),
    ]
    least_ms = LEAST_PROMISE * solution.bound_ms
    found = [
        (promise_ms, boxes) for promise_ms, boxes in found if promise_ms > least_ms
    ]
    found.sort(key=lambda each: -each[0])
    return [boxes for _, boxes in found[:TRIALS]]


def _by_levels(program: Program, box: Box, solution: Solution) -> Iterator[Split]:
    """At a level: below it large shards are out, or fewer fit; above it the level has
    its price."""
    taken = solution.tables > 1e-6
    mean = program.padded_mean(solution.tables)
    top = np.where(taken, program.top, 0.0).max(axis=1)
    free = (program.prices > 0) & (box.high - box.low > TOLERANCE)
    for load in map(int, np.flatnonzero(free & (mean > 0))):
        level = solution.levels[load]
        if program.whole[load]:
            below = np.floor(level + TOLERANCE)
            if below + 1 <= box.high[load]:
                yield _at(program, box, load, level, below, below + 1)
            continue
        if top[load] > level * (1 + 1e-6):
            # Between what holds the largest shard taken, and what does not.
            edge = top[load] * (1 - 1e-6)
            yield _at(program, box, load, level, edge, edge)
        else:
            placed = min(mean[load] + CROWDING * top[load], box.high[load])
            middle = (level + placed) / 2
            yield _at(program, box, load, level, middle, middle)


def _at(
    program: Program, box: Box, load: int, level: float, below: float, above: float
) -> Split:
    low, high = box.low.copy(), box.high.copy()
    high[load], low[load] = below, above
    halves = dataclasses.replace(box, high=high), dataclasses.replace(box, low=low)
    return float(program.prices[load] * (above - level)), halves


def _by_counts(program: Program, box: Box, solution: Solution) -> Iterator[Split]:
    """Where a fraction of a table would take some of the candidates of a storage: those
    with shards up to a size."""
    tables = np.where(box.live, solution.tables, 0.0)
    pairs = program.group * program.storages + program.storage
    ids = program.top[program.load(IDS), np.arange(len(tables))]
    for pair in np.unique(pairs[tables > 1e-6]):
        members = np.flatnonzero(box.live & (pairs == pair))
        members = members[np.argsort(ids[members], kind="stable")]
        sums = np.cumsum(tables[members])
        fraction = np.abs(sums - np.round(sums))
        for last in {int(np.argmax(fraction)), len(members) - 1}:
            if fraction[last] > WHOLE:
                yield _count(program, box, members[: last + 1], tables, sums[last])


def _by_storages(program: Program, box: Box, solution: Solution) -> Iterator[Split]:
    """Where only a part of each group lies in a storage: it is used, or it is not."""
    shares = solution.tables / program.counts[program.group]
    pairs = program.group * program.storages + program.storage
    number = len(program.counts) * program.storages
    used = np.bincount(pairs, shares, minlength=number)
    used = used.reshape(len(program.counts), -1).max(axis=0)
    for count in box.counts:
        if count.least:
            used[program.storage[count.candidates]] = 1
    for s in np.flatnonzero((used > WHOLE) & (used < 1 - WHOLE)):
        members = np.flatnonzero(box.live & (program.storage == s))
        if not len(members):
            continue
        loads = np.arange(program.loads - 1) % program.storages == s
        least = program.top[:-1][loads][:, members].min(axis=1)
        rise = np.maximum(least - solution.levels[:-1][loads], 0.0)
        fixed_ms = program.empty.fixed_ms[s] * (1 - used[s])
        promise_ms = fixed_ms + program.prices[:-1][loads] @ rise
        yield float(promise_ms), _none_or(box, members, 1.0)


def _none_or(box: Box, members: np.ndarray, least: float) -> tuple[Box, Box]:
    """No table takes one of ``members``, or so many do."""
    live = box.live.copy()
    live[members] = False
    some = (*box.counts, Count(members, least=least))
    return (
        dataclasses.replace(box, live=live),
        dataclasses.replace(box, counts=some),
    )


def _count(
    program: Program, box: Box, members: np.ndarray, tables: np.ndarray, number: float
) -> Split:
    """So many tables take one of ``members``, or one more does."""
    below = np.floor(number)
    fewer, more = _none_or(box, members, below + 1)
    if below:
        at_most = (*box.counts, Count(members, most=below))
        fewer = dataclasses.replace(box, counts=at_most)
    taken = members[tables[members] > 1e-6]
    worth_ms = (program.prices[:, None] * program.top[:, taken]).max()
    distance = min(number - below, below + 1 - number)
    return float(distance * worth_ms), (fewer, more)
