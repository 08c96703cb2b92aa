"""What each growth of a dynamic table took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from embark_jax.plans.plan import Plan


class TableGrowth:
    """The growth of all dynamic tables of a trainer.

    Attributes:
      report: called with a sentence about each growth, once the program after it is
        under way. Unless it is replaced, it logs a warning, which Python shows unless
        it is told otherwise.
    """

    def __init__(self):
        self.report: Callable[[str], None] = logging.getLogger(__name__).warning
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
        """Reports what grew before a step, now that the next program is under way, its
        compilation included; tables that grow together share the seconds."""
        seconds = time.perf_counter() - self._begun
        grown, self._grown = self._grown, []
        for table, before, after in grown:
            self.report(
                f"dynamic table {table} grew from {before:,} to {after:,} slots after "
                f"step {step:,}; growing and compiling anew took {seconds:.1f} s"
            )
