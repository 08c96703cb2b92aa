"""What the bound's program has to be told beside its means: rules for whole shards and
for chance.

Each rule has a variable of its own in the program. They are added for the sizes that a
solution uses, as most sizes never matter.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from embark_jax.planner.capacities import DEVIATIONS

if TYPE_CHECKING:
    from embark_jax.planner.bound import Program

PIECES, IDS, ROWS, OWNER = range(4)
"""Kinds of load: three of each storage, and the time for a device's own shards."""
LARGE = 0.25
"""Share of the mean load of a device from which a shard counts as large."""
ALIKE = 0.02
"""Sizes that differ by less share a rule."""
ABOVE = 1.15
"""Times the ids of a solution: those that a rule for chance is made for, so that it
also holds for solutions near by."""
SMALL_LOAD = 0.01
"""Share of the whole time below which a load is not looked at."""


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
    upper = np.inf

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
    ``expected`` ids, each id expected takes at least as much room as there. The
    variable is whether the capacity is for more.

    Attributes:
      storage: which.
      expected: ids, in the program's units.
    """

    storage: int
    expected: float
    upper = 1.0

    def constraints(self, program: Program, variable: int) -> Any:
        """``[2, variables]``, to be at least zero: level − mean of the ids with the
        room that they take, unless there are more; level − capacity, if there are."""
        more, zero = np.array([variable]), np.zeros(1, int)
        load = IDS * len(program.used) + self.storage
        level = (zero, program.level[[load]], 1.0)
        mine = np.flatnonzero(program.storage == self.storage)
        expected = program.expected[mine] / program.empty.devices
        beyond = room_for(self.expected * program.unit[IDS]) - program.empty.slack
        share = program.total[IDS][mine] / program.empty.devices + beyond * expected
        most = np.zeros(len(program.counts))
        np.maximum.at(most, program.group[mine], expected)
        any_ms = beyond * float(most @ program.counts)
        capacity = (beyond + program.empty.slack) * self.expected
        return sparse.vstack(
            [
                program.matrix(
                    1, level, (np.zeros_like(mine), mine, -share), (zero, more, any_ms)
                ),
                program.matrix(1, level, (zero, more, -capacity)),
            ]
        )


Rule = LargeShards | Chance


def room_for(expected_ids: float) -> float:
    """Places of a capacity for each of so many ids, if chance decides."""
    return 1 + DEVIATIONS / np.sqrt(max(expected_ids, 1e-9))


def new_rules(program: Program, taken: np.ndarray, bound_ms: float) -> list[Rule]:
    """Those that a solution breaks, or may break.

    Args:
      program: with the rules that it has already.
      taken: ``[candidates]`` how many tables take each.
      bound_ms: its optimum.
    """
    return [
        *_large_shards(program, taken, bound_ms),
        *_chances(program, taken, bound_ms),
    ]


def _large_shards(
    program: Program, taken: np.ndarray, bound_ms: float
) -> list[LargeShards]:
    found: list[LargeShards] = []
    prices = program.prices()
    known = [rule for rule in program.rules if isinstance(rule, LargeShards)]
    for kind in (IDS, OWNER):
        loads = program.load(kind)
        for load in np.unique(loads[taken > 0]):
            mine = (taken > 0) & (loads == load)
            mean = float(program.total[kind][mine] @ taken[mine])
            mean /= program.empty.devices
            if mean * prices[load] < SMALL_LOAD * bound_ms:
                continue
            sizes = np.concatenate(
                [program.per_shard[c][kind] for c in np.flatnonzero(mine)]
            )
            for size in np.unique(sizes / program.unit[kind]):
                if size >= LARGE * mean and not any(
                    rule.load == load and abs(rule.size / size - 1) < ALIKE
                    for rule in known + found
                ):
                    found.append(LargeShards(kind, int(load), float(size)))
    return found


def _chances(program: Program, taken: np.ndarray, bound_ms: float) -> list[Chance]:
    found: list[Chance] = []
    prices = program.prices()[IDS * len(program.used) :]
    known = [rule for rule in program.rules if isinstance(rule, Chance)]
    for storage in np.unique(program.storage[taken > 0]):
        mine = (taken > 0) & (program.storage == storage)
        expected = float(program.expected[mine] @ taken[mine]) / program.empty.devices
        more = room_for(expected * program.unit[IDS]) - program.empty.slack
        if more * expected * prices[storage] < SMALL_LOAD * bound_ms:
            continue
        size = ABOVE * expected
        if not any(
            rule.storage == storage and abs(rule.expected / size - 1) < ALIKE
            for rule in known
        ):
            found.append(Chance(int(storage), size))
    return found
