"""What each growth of a dynamic table took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from embark_jax.plans.plan import Plan


class Growth(NamedTuple):
    """A dynamic table that grew before a step.

    Attributes:
      step: number of steps that were certain by then.
      table: its name.
      before, after: slots on all devices together.
      seconds: time until the next step or scoring was under way, its compilation
        included; tables that grow together share it.
    """

    step: int
    table: str
    before: int
    after: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"dynamic table {self.table} grew from {self.before:,} to {self.after:,} "
            f"slots after step {self.step:,}; growing and compiling anew took "
            f"{self.seconds:.1f} s"
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
        self._begun = 0.0
        self._grown: list[tuple[str, int, int]] = []

    def begin(self, plan: Plan, larger: Plan) -> None:
        """Notes what grows from a plan to one with more slots."""
        if not self._grown:
            self._begun = time.perf_counter()
        for old, new in zip(plan.tables, larger.tables, strict=True):
            if old.slots != new.slots:
                self._grown.append((old.name, old.slots or 0, new.slots or 0))

    def end(self, step: int) -> None:
        """Reports what grew, now that the next program is under way."""
        if self._grown:
            seconds = time.perf_counter() - self._begun
            grown, self._grown = self._grown, []
            for growth in grown:
                self.report(Growth(step, *growth, seconds))
