"""The turns in which time windows began: what days mean to a key index, which counts
turns."""

from __future__ import annotations

import numpy as np

from embark_jax.plans.counts import MOST
from embark_jax.plans.tables import TableSpec


class WindowTurns:
    """The windows of the batches so far.

    Attributes:
      turn: number of turns since training or a restore began.
    """

    def __init__(self):
        self.turn = 0
        self._first_turns: dict[float, int] = {}  # by day

    def begin(self, day: float, steps_ago: int = 0) -> None:
        """Begins the window of a day, unless it is known; its first step is the next,
        or was so many steps before that."""
        self._first_turns.setdefault(day, self.turn + 1 - steps_ago)

    def turns(self, table: TableSpec, ahead: int = 0) -> np.int32:
        """Returns the turns after which a row of a table expires that is not asked for,
        at the last turn or ``ahead`` of it.

        Raises:
          ValueError: if no window has begun.
        """
        assert table.expire_days is not None
        if not self._first_turns:
            raise ValueError(
                f"table {table.name!r}: expire_after is {table.expire_after!r}, but "
                "nothing says which day it is; call Trainer.begin_window first"
            )
        first_day = list(self._first_turns)[-1] - table.expire_days
        if min(self._first_turns) >= first_day:
            return np.int32(MOST)
        turns = [t for day, t in self._first_turns.items() if day >= first_day]
        return np.int32(self.turn + ahead - min(turns))
