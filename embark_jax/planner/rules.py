"""What the bound's program has to be told beside its means: rules for whole shards and
for chance.

Each rule has variables of its own in the program. They are added for the sizes that a
solution uses, as most sizes never matter.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from embark_jax.planner.capacities import DEVIATIONS

if TYPE_CHECKING:
    from embark_jax.planner.bound import Program, Relaxation

PIECES, IDS, ROWS, NODE_PIECES, OWNER = KINDS = range(5)
"""Kinds of load: four of each storage, and the time for a device's own shards. Pieces
of a node are a load of each of its devices."""
ALIKE = 0.02
"""Sizes that differ by less share a rule."""
ABOVE = 1.15
"""Times the ids of a solution: those that a rule for chance is made for, so that it
also holds for solutions near by."""
SMALL_LOAD = 0.01
"""Share of the whole time below which a load is not looked at."""
MOST_MIXES = 4
"""Rules for large shards among others, of one load, that a solution adds at most."""
FAR = 0.3
"""Share above the ids of a solution: a rule that holds still higher is no better."""


@dataclasses.dataclass(frozen=True)
class LargeShards:
    """Even loads are out of reach where shards are large: of shards of at least a size,
    a device holds no more than its level divided by the size, rounded down (a dual
    feasible function, https://doi.org/10.1007/s101079900114). The variable is how many
    fit.

    Attributes:
      kind: of the load, IDS or OWNER.
      load: which of the program's.
      size: of a shard, in the program's units.
    """

    kind: int
    load: int
    size: float
    uppers = (np.inf,)

    def constraints(self, program: Program, variable: int) -> Any:
        """``[2, variables]``, to be at least zero: level − size × how many fit;
        devices × how many fit − shards of this size."""
        fit, zero = np.array([variable]), np.zeros(1, int)
        mine = np.flatnonzero(program.load(self.kind) == self.load)
        unit = self.size * program.unit[self.kind] * (1 - 1e-9)
        held = [np.floor(program.per_shard[c][self.kind] / unit).sum() for c in mine]
        share = np.array(held) * program.columns[mine] / program.empty.devices
        level = (zero, program.level[[self.load]], 1 / self.size)
        shards = (np.zeros_like(mine), mine, -share)
        return sparse.vstack(
            [
                program.matrix(1, level, (zero, fit, -1.0)),
                program.matrix(1, (zero, fit, 1.0), shards),
            ]
        )


@dataclasses.dataclass(frozen=True)
class Chance:
    """Capacities hold ids that are expected, and what chance may add; for few ids that
    is more than the slack (``capacities.padded_ids``). With a capacity for at most
    ``size`` ids, each id expected takes at least as much room as there. The variable is
    whether the capacity is for more.

    Attributes:
      load: of ids, which of the program's.
      size: expected ids, in the program's units.
    """

    load: int
    size: float
    uppers = (1.0,)

    def constraints(self, program: Program, variable: int) -> Any:
        """``[2, variables]``, to be at least zero: level − mean of the ids with the
        room that they take, unless there are more; level − capacity, if there are."""
        more, zero = np.array([variable]), np.zeros(1, int)
        level = (zero, program.level[[self.load]], 1.0)
        mine = np.flatnonzero(program.load(IDS) == self.load)
        expected = program.expected[mine] / program.empty.devices
        beyond = room_beyond_slack(program, self.size)
        share = program.total[IDS][mine] / program.empty.devices + beyond * expected
        # If there are more, nothing is asked: no solution expects as many as all groups
        # at their most.
        waived = beyond * _most(program, mine, expected)
        capacity = (beyond + program.empty.slack) * self.size
        return sparse.vstack(
            [
                program.matrix(
                    1, level, (np.zeros_like(mine), mine, -share), (zero, more, waived)
                ),
                program.matrix(1, level, (zero, more, -capacity)),
            ]
        )


@dataclasses.dataclass(frozen=True)
class MixedShards:
    """Beside a large shard a device has ids left for few others, however many pieces
    are free: of shards of at least ``size``, those of at least ``large_size`` counted
    ``1 + extra`` times, it holds no more than ``pieces``. This is so while pieces and
    ids are few. The variables are whether pieces are more, and whether ids are.

    Attributes:
      storage: in which the shards are.
      load: its ids, in the program.
      pieces: of a device at most.
      size, large_size: ids of a shard, in the program's units.
      extra: what a large shard counts above others.
    """

    storage: int
    load: int
    pieces: int
    size: float
    large_size: float
    extra: float
    uppers = (1.0, 1.0)

    @property
    def least_ids(self) -> float:
        """Of a device that holds more, with ``pieces`` shards at most."""
        return min(
            large * self.large_size
            + self.size * max(0, int(self.pieces - large * (1 + self.extra) + 1))
            for large in range(1, self.pieces + 1)
        )

    def constraints(self, program: Program, variable: int) -> Any:
        """``[3, variables]``, to be at least zero: level of pieces − one more, and
        level of ids − ``least_ids``, if there are more; what a device holds at most −
        mean of the shards, unless there are more."""
        zero = np.zeros(1, int)
        more_pieces, more_ids = np.array([variable]), np.array([variable + 1])
        mine = np.flatnonzero(program.load(IDS) == self.load)
        shards = [program.per_shard[c][IDS] / program.unit[IDS] for c in mine]
        held = [
            (each >= self.size).sum() + self.extra * (each >= self.large_size).sum()
            for each in shards
        ]
        share = np.array(held) * program.columns[mine] / program.empty.devices
        waived = _most(program, mine, share)
        pieces = (zero, program.level[[self.storage]], 1.0)
        ids = (zero, program.level[[self.load]], 1.0)
        return sparse.vstack(
            [
                program.matrix(1, pieces, (zero, more_pieces, -(self.pieces + 1.0))),
                program.matrix(1, ids, (zero, more_ids, -self.least_ids)),
                program.matrix(
                    1,
                    (zero, program.used[[self.storage]], float(self.pieces)),
                    (np.zeros_like(mine), mine, -share),
                    (zero, more_pieces, waived),
                    (zero, more_ids, waived),
                ),
            ]
        )


Rule = LargeShards | Chance | MixedShards


def alike(one: Rule, other: Rule) -> bool:
    """Whether two rules say almost the same."""
    if type(one) is not type(other) or one.load != other.load:
        return False
    if isinstance(one, MixedShards) and isinstance(other, MixedShards):
        return (
            one.pieces == other.pieces
            and abs(one.large_size / other.large_size - 1) < ALIKE
            and abs(one.least_ids / other.least_ids - 1) < ALIKE / 2
        )
    return abs(one.size / other.size - 1) < ALIKE


def _most(program: Program, mine: np.ndarray, share: np.ndarray) -> float:
    """The sum of shares, if all tables take that of ``mine`` whose share is most."""
    most = np.zeros(len(program.counts))
    np.maximum.at(most, program.group[mine], share)
    return float(most @ program.counts)


def room_beyond_slack(program: Program, expected: float) -> float:
    """Places of a capacity for each of so many expected ids, above those of the slack.

    Args:
      program: whose slack and units they are.
      expected: ids, more than none.
    """
    chance = 1 + DEVIATIONS / np.sqrt(expected * program.unit[IDS])
    return max(chance - program.empty.slack, 0.0)


def new_rules(program: Program, choice: Relaxation) -> list[Rule]:
    """Those that a solution of the program breaks."""
    taken = np.concatenate(choice.counts)
    taken[taken < 1e-6] = 0
    share = taken / program.empty.devices
    matters = program.prices() * choice.levels >= SMALL_LOAD * choice.lower_bound
    found: list[Rule] = []
    for kind in (IDS, OWNER):
        loads = program.load(kind)
        for load in np.unique(loads[taken > 0]):
            mine = np.flatnonzero((taken > 0) & (loads == load))
            if matters[load]:
                found += _large_shards(program, choice, kind, int(load), mine, share)
            if matters[load] and kind == IDS:
                found += _chances(program, choice, int(load), mine, share)
                found += _mixed_shards(program, choice, int(load), mine, share)
    known = program.rules
    return [new for new in found if not any(alike(new, each) for each in known)]


def _large_shards(
    program: Program,
    choice: Relaxation,
    kind: int,
    load: int,
    mine: np.ndarray,
    share: np.ndarray,
) -> Iterator[LargeShards]:
    """Those of one load, ``share[mine]`` of whose candidates each device has."""
    unit = program.unit[kind]
    shards = [program.per_shard[c][kind] / unit for c in mine]
    share = share[mine] * program.columns[mine]
    last = 0.0
    for size in np.unique(np.concatenate(shards)):
        held = [np.floor(each / size * (1 + 1e-9)).sum() for each in shards]
        least = size * np.ceil(share @ np.array(held) - 1e-9)
        if least > choice.levels[load] * (1 + 1e-6) and size > (1 + ALIKE) * last:
            yield LargeShards(kind, load, float(size))
            last = size


def _chances(
    program: Program,
    choice: Relaxation,
    load: int,
    mine: np.ndarray,
    share: np.ndarray,
) -> Iterator[Chance]:
    """That of one load of ids, ``share[mine]`` of whose candidates each device has."""
    expected = float(program.expected[mine] @ share[mine])
    if not expected:
        return
    least = float(program.total[IDS][mine] @ share[mine])
    least += room_beyond_slack(program, expected) * expected
    if least > choice.levels[load] * (1 + 1e-6):
        yield Chance(load, ABOVE * expected)


def _mixed_shards(
    program: Program,
    choice: Relaxation,
    load: int,
    mine: np.ndarray,
    share: np.ndarray,
) -> list[MixedShards]:
    """Those of one load of ids, ``share[mine]`` of whose candidates each device has:
    such as are broken by much, and hold for more ids than there are."""
    storage = load - IDS * len(program.used)
    pieces, level = round(choice.levels[storage]), choice.levels[load]
    if pieces < 2:
        return []
    shards = [program.per_shard[c][IDS] / program.unit[IDS] for c in mine]
    share = share[mine] * program.columns[mine]
    sizes: list[float] = []
    for size in np.unique(np.concatenate(shards)):
        if not sizes or size > (1 + ALIKE) * sizes[-1]:
            sizes.append(float(size))
    held = {
        size: float(share @ [(each >= size).sum() for each in shards]) for size in sizes
    }
    found: list[tuple[float, MixedShards]] = []
    for large_size, size in itertools.combinations_with_replacement(sizes[::-1], 2):
        extra = _extra(pieces, level, size, large_size)
        broken = held[size] + extra * held[large_size] - pieces
        rule = MixedShards(storage, load, pieces, size, large_size, extra)
        above = rule.least_ids / level - 1
        if extra > 0 and broken > 1e-6 and above > 1e-4:
            found.append((broken * min(above, FAR), rule))
    best: list[MixedShards] = []
    for _, rule in sorted(found, key=lambda each: -each[0]):
        if len(best) < MOST_MIXES and not any(alike(rule, each) for each in best):
            best.append(rule)
    return best


def _extra(pieces: int, level: float, size: float, large_size: float) -> float:
    """The most that a large shard can count above others on a device that holds at most
    so many pieces and ids: 0 if no large one fits.

    Args:
      pieces, level: of a device; ids in the program's units.
      size, large_size: see ``MixedShards``.
    """
    extra = np.inf
    for large in range(1, min(pieces, int(level / large_size)) + 1):
        others = min(pieces - large, int((level - large * large_size) / size))
        extra = min(extra, (pieces - large - others) / large)
    return extra if np.isfinite(extra) else 0.0
