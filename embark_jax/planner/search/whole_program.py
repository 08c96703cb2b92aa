"""The relaxation with whole tables: a mixed-integer program.

The relaxation allows fractions of tables and any spread of shards. Here tables are
whole (HiGHS through ``scipy.optimize.milp``), and large shards take room: of shards
that have at least a size q, a device holds at most peak / q, rounded down (a dual
feasible function, https://doi.org/10.1007/s101079900114). In symbols, added to the rows
of the relaxation, where n_rq is the largest number of shards of size q on a device::

    x_c whole                                                              tables
    y_r whole                              partial sums, and uses of storages
    n_rq whole;  Σ_c ⌊shards_rc / q⌋ x_c ≤ devices × n_rq;  q n_rq ≤ y_r

Example: 150 shards that each make a partial sum, on 128 devices, are 1.17 a device in
the relaxation, but 2 on the fullest in any plan. Sizes q are those of the shards that
the last solution takes. A candidate is left out if it raises the bound above a goal: no
plan below the goal takes it.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import milp

from embark_jax.planner.cost.objective import (
    PEAK_GRADIENTS,
    PEAK_IDS,
    PEAK_LOOKUP,
)
from embark_jax.planner.search.relaxation import Relaxation, Solution
from embark_jax.planner.search.spread import UPDATE

LARGE = 0.1
"""Smallest share of a peak at which a shard is large."""
MOST_SIZES = 24
"""Largest number of sizes of large shards of a peak."""
ALIKE = 0.02
"""Relative difference up to which sizes share a row."""
SAFETY = 1e-6
"""Share by which a bound is lowered for the solver's tolerances."""
GAP = 1e-3
"""Gap at which the solver ends."""


class WholeProgram:
    """The mixed-integer program of one instance.

    Attributes:
      relaxation, relaxed: the relaxation, without any candidate left out, and its
        solution.
      sizes: ``(row, size)`` of large shards.
    """

    def __init__(self, relaxation: Relaxation, relaxed: Solution):
        self.relaxation, self.relaxed = relaxation, relaxed
        self.sizes: list[tuple[int, float]] = []
        instance = relaxation.instance
        counted = instance.objective.counted(instance.candidates.loads, at_least=True)
        peaks = (PEAK_IDS, PEAK_LOOKUP, PEAK_GRADIENTS)
        self._loads = {peak: counted[peak] for peak in peaks}
        self._loads[UPDATE] = counted[-1]
        self.add_sizes(relaxed)

    def add_sizes(self, solution: Solution) -> bool:
        """Adds the sizes of the large shards that a solution takes; returns whether any
        is new."""
        relaxation, number = self.relaxation, len(self.sizes)
        tables = solution.tables[relaxation.live]
        largest = relaxation.largest[:, np.flatnonzero(tables > 1e-6)]
        peaks = np.maximum(
            relaxation.mean @ tables, largest.max(axis=1).toarray()[:, 0]
        )
        for r in np.flatnonzero(peaks > 0).tolist():
            if self._measure(r) not in self._loads:
                continue
            mine = [size for row, size in self.sizes if row == r]
            for size in np.unique(largest[r].data).tolist():
                alike = any(abs(q / size - 1) < ALIKE for q in mine)
                if size >= LARGE * peaks[r] and not alike and len(mine) < MOST_SIZES:
                    mine.append(size)
                    self.sizes.append((r, size))
        return len(self.sizes) > number

    def _measure(self, row: int) -> int:
        storages = len(self.relaxation.instance.objective.storages)
        return UPDATE if row == self.relaxation.spread.rows - 1 else row // storages

    def _counts(self, row: int, size: float) -> np.ndarray:
        """Returns ``[live]`` the number of shards of this size whose room each
        takes."""
        relaxation = self.relaxation
        each = relaxation.instance.candidates
        unit = size * relaxation.unit[row] * (1 - 1e-9)
        shards = np.floor(self._loads[self._measure(row)] / unit)
        counts = each.reduced(np.add, shards) * each.column_shards
        here = relaxation.mean[row].toarray()[0] > 0
        return counts[relaxation.live] * here

    def solve(
        self, goal_ms: float, seconds: float = np.inf, nodes: int | None = None
    ) -> tuple[Solution, bool]:
        """Returns ``(bound and candidates, whether the solver came to its end)``; no
        plan below ``goal_ms`` is below the bound.

        Args:
          goal_ms: step time above which plans do not matter.
          seconds: time after which the solver gives up.
          nodes: nodes of its tree after which it gives up.
        """
        relaxation, rows = self.relaxation, self.relaxation.spread.rows
        instance, live = relaxation.instance, len(relaxation.live)
        above = self.relaxed.bound_ms + self.relaxed.above_ms[relaxation.live]
        kept = np.flatnonzero(above <= goal_ms)
        group, counts = relaxation.group[kept], instance.counts
        number, sizes = len(kept), len(self.sizes)
        # Variables: x of candidates, y of rows, n of sizes.
        largest = relaxation.largest_rows(np.unique(relaxation.shards[0])).tocsc()
        size_row = np.array([r for r, _ in self.sizes], int)
        in_rooms = [self._counts(r, size)[kept] for r, size in self.sizes]
        rooms = np.array(in_rooms).reshape(sizes, number) / instance.objective.devices
        of_rows = sparse.csr_matrix(sparse.identity(rows))
        blocks = [
            [relaxation.mean[:, kept], -of_rows, None],
            [largest[:, kept], largest[:, live:], None],
            [sparse.csr_matrix(rooms), None, -sparse.identity(sizes)],
            [None, -of_rows[size_row], sparse.diags([q for _, q in self.sizes])],
        ]
        matrix = sparse.csr_matrix(sparse.bmat(blocks))
        limits = np.zeros(len(matrix.indptr) - 1)
        widths = number, rows, sizes
        limit_bytes = instance.memory.limit_bytes
        shares, fixed = relaxation.memory()
        shares = np.split(shares / limit_bytes, [live], axis=1)
        parts = shares[0][:, kept], shares[1], np.zeros((2, sizes))
        memory = np.concatenate(parts, axis=1)
        matrix = sparse.vstack([matrix, sparse.csr_matrix(memory)])
        limits = np.append(limits, 1 - fixed / limit_bytes)
        tables = sparse.csr_matrix(
            (np.ones(number), (group, np.arange(number))), (len(counts), sum(widths))
        )
        ms = relaxation.cost[kept], relaxation.cost[live:]
        cost = np.concatenate([*ms, np.zeros(sizes)])
        scale = float(cost.max())
        whole = np.repeat([1, 0, 1], widths)
        whole[number:][:rows] = relaxation.spread.whole
        upper = np.full(sum(widths), np.inf)
        upper[:number] = counts[group]
        options = {"mip_rel_gap": GAP, "time_limit": seconds}
        if nodes is not None:
            options["node_limit"] = nodes
        found = milp(
            cost / scale,
            integrality=whole,
            bounds=(np.zeros(len(upper)), upper),
            constraints=[(tables, counts, counts), (matrix, -np.inf, limits)],
            options=options,
        )
        chosen = np.zeros(len(instance.candidates))
        if found.x is not None:
            chosen[relaxation.live[kept]] = np.round(found.x[:number])
        bound_ms = self.relaxed.bound_ms
        if found.status == 2:  # no plan is below the goal
            bound_ms = goal_ms
        elif found.mip_dual_bound is not None and np.isfinite(found.mip_dual_bound):
            bound_ms = scale * float(found.mip_dual_bound) * (1 - SAFETY)
        return Solution(bound_ms, chosen, np.zeros(len(chosen))), found.status != 1
