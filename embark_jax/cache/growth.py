"""How far dynamic tables grow, and what each growth took.

With more slots the programs are compiled anew, which takes as long as hundreds of
steps; so a table that must grow gets room at once for the keys that are expected next.
Room follows from keys alone: all processes find the same.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from embark_jax.plans.plan import Plan

BATCHES_AHEAD = 100
"""Batches for whose new keys a table that grows has room, if they bring as many as
those before."""
MOST_AHEAD = 8
"""Room as a multiple of the keys that there are, at most: the first batches have more
new keys than any other."""
RECENT = 8
"""Batches whose new keys are averaged."""


class Growth(NamedTuple):
    """A dynamic table that grew before a step.

    Attributes:
      step: number of steps that were certain by then.
      table: its name.
      keys: keys that need a row.
      before, after: slots on all devices together.
      seconds: time until the next step or scoring was under way, its compilation
        included; tables that grow together share it.
    """

    step: int
    table: str
    keys: int
    before: int
    after: int
    seconds: float

    def __str__(self) -> str:
        slots = f"from {self.before:,} to {self.after:,} slots"
        if self.before == self.after:
            slots = f"beyond its {self.after:,} slots"
        return (
            f"dynamic table {self.table} grew {slots} after step {self.step:,}, for "
            f"{self.keys:,} keys; growing and compiling anew took {self.seconds:.1f} s"
        )


def log_growth(growth: Growth) -> None:
    """Logs it as a warning, which Python shows unless it is told otherwise."""
    logging.getLogger(__name__).warning(str(growth))


class TableGrowth:
    """The growth of all dynamic tables of a trainer.

    Attributes:
      report: called with each growth, once the program after it is under way.
    """

    def __init__(self, report: Callable[[Growth], None] = log_growth):
        self.report = report
        self._expected: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._new = defaultdict[str, deque[int]](lambda: deque(maxlen=RECENT))
        self._begun = 0.0
        self._grown: list[tuple[str, int, int, int]] = []

    def expect(self, keys: Mapping[str, int]) -> None:
        """Takes the number of keys of each table, those of the next batch of training
        included."""
        self._grown.clear()  # such as by a checkpoint, which no program followed
        for table, count in keys.items():
            new = self._new[table]
            new.append(max(0, count - self._keys.get(table, 0)))
            self._keys[table] = count
            soon = count + BATCHES_AHEAD * sum(new) // len(new)
            self._expected[table] = min(soon, MOST_AHEAD * count)

    def larger(self, plan: Plan, keys: Mapping[str, int]) -> Plan:
        """Returns the plan, or if these keys need it, one with more room, for the keys
        that are expected, too."""
        if not keys:  # every step comes here, and a plan may have thousands of tables
            return plan
        larger = plan.with_room(keys, self._expected)
        self._begun = time.perf_counter()
        for old, new in zip(plan.tables, larger.tables, strict=True):
            if old.rows != new.rows:
                slots = (old.slots or 0), (new.slots or 0)
                self._grown.append((old.name, keys[old.name], *slots))
        return larger

    def end(self, step: int) -> None:
        """Reports what grew, now that the next program is under way."""
        if self._grown:
            seconds = time.perf_counter() - self._begun
            grown, self._grown = self._grown, []
            for growth in grown:
                self.report(Growth(step, *growth, seconds))
