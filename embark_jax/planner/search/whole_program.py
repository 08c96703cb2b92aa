"""The relaxation with whole tables: a mixed-integer program.

The relaxation allows fractions of tables and any spread of shards. Here tables are
whole (HiGHS through ``scipy.optimize.milp``), and large shards take room: of shards of
at least a size q a device holds at most level / q, rounded down (a dual feasible
function, https://doi.org/10.1007/s101079900114). In symbols, beside the rows of
the relaxation, with n_rq the most shards of size q on a device::

    x_c whole;  largest_rc t_c ≤ y_r;  x_c ≤ count_g t_c           a shard is whole, too
    n_rq whole;  Σ_c ⌊shards_rc / q⌋ x_c ≤ devices × n_rq;  q n_rq ≤ y_r

Sizes q are those of the shards that the last solution takes. Candidates beside which
the bound is already above the plan are left out: no better plan takes them.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import milp

from embark_jax.planner.cost.candidates import (
    CERTAIN,
    EXPECTED,
    GRADIENTS_MS,
    LOOKUP_MS,
    UPDATE_MS,
)
from embark_jax.planner.cost.objective import (
    LEVEL_GRADIENTS,
    LEVEL_IDS,
    LEVEL_LOOKUP,
)
from embark_jax.planner.search.relaxation import Relaxation, Solution

LARGE = 0.1
"""Share of a level from which on a shard is large."""
MOST_SIZES = 24
"""Most sizes of large shards of a level."""
ALIKE = 0.02
"""Sizes that differ by less share a row."""
SAFETY = 1e-6
"""Share by which a bound is lowered for the solver's tolerances."""
GAP = 1e-3
"""At which the solver ends."""


class WholeProgram:
    """The mixed-integer program of one exchange.

    Attributes:
      relaxed: the relaxation's solution.
    """

    def __init__(self, relaxation: Relaxation, relaxed: Solution, limit_bytes: float):
        self.relaxation, self.relaxed = relaxation, relaxed
        self.limit_bytes = limit_bytes
        self.sizes: list[tuple[int, float]] = []
        self._counts: dict[tuple[int, float], np.ndarray] = {}
        instance = relaxation.instance
        each, storages = instance.candidates, len(instance.objective.storages)
        ids = each.loads[CERTAIN] + instance.objective.slack * each.loads[EXPECTED]
        self.shards = {
            LEVEL_IDS * storages: ids,
            LEVEL_LOOKUP * storages: each.loads[LOOKUP_MS],
            LEVEL_GRADIENTS * storages: each.loads[GRADIENTS_MS],
            relaxation.rows - 1: each.loads[UPDATE_MS],
        }
        self.add_sizes(relaxed)

    def add_sizes(self, solution: Solution) -> bool:
        """Adds the sizes of the large shards that a solution takes; whether any is
        new."""
        relaxation, number = self.relaxation, len(self.sizes)
        taken = solution.tables[relaxation.live] > 1e-6
        levels = np.maximum(
            relaxation.mean @ solution.tables[relaxation.live],
            np.where(taken, relaxation.largest, 0.0).max(axis=1),
        )
        for r in range(relaxation.rows):
            if self._kind(r) is None or levels[r] <= 0:
                continue
            sizes = np.unique(relaxation.largest[r, taken])
            for size in sizes[sizes > 0]:
                mine = [known for known in self.sizes if known[0] == r]
                alike = any(abs(q / size - 1) < ALIKE for _, q in mine)
                if size >= LARGE * levels[r] and not alike and len(mine) < MOST_SIZES:
                    self.sizes.append((r, float(size)))
        return len(self.sizes) > number

    def _kind(self, r: int) -> np.ndarray | None:
        """``[row shards]`` the loads of a level, if large shards are counted in it."""
        storages = len(self.relaxation.instance.objective.storages)
        if r == self.relaxation.rows - 1:
            return self.shards[r]
        return self.shards.get(r // storages * storages)

    def _count(self, r: int, size: float) -> np.ndarray:
        """``[live]`` how many shards of this size a candidate takes the room of."""
        if (r, size) not in self._counts:
            relaxation = self.relaxation
            each = relaxation.instance.candidates
            kind = self._kind(r)
            assert kind is not None
            unit = size * relaxation.unit[r] * (1 - 1e-9)
            counts = each.reduced(np.add, np.floor(kind / unit)) * each.column_shards
            here = relaxation.mean[r] > 0
            self._counts[r, size] = counts[relaxation.live] * here
        return self._counts[r, size]

    def solve(
        self, best_ms: float, seconds: float = np.inf, nodes: int | None = None
    ) -> tuple[Solution, bool]:
        """``(bound and candidates, whether the solver came to its end)``; no plan that
        is better than ``best_ms`` is below the bound.

        Args:
          best_ms: of a plan that is known.
          seconds, nodes: after which the solver gives up.
        """
        relaxation = self.relaxation
        instance, rows = relaxation.instance, relaxation.rows
        above = self.relaxed.bound_ms + self.relaxed.above_ms[relaxation.live]
        kept = np.flatnonzero(above <= best_ms)
        group, counts = relaxation.group[kept], instance.counts
        mean, largest = relaxation.mean[:, kept], relaxation.largest[:, kept]
        number, sizes = len(kept), len(self.sizes)
        # x, then t of candidates of alike tables, y, and n.
        many = np.flatnonzero(counts[group] > 1)
        y = number + len(many)
        n = y + rows
        width = n + sizes
        each = np.arange(number)
        times = relaxation.times()
        cost = np.concatenate(
            [
                times[kept],
                np.zeros(len(many)),
                times[len(relaxation.live) :],
                np.zeros(sizes),
            ]
        )
        scale = float(cost.max())
        entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        height = 0

        def add(rows_of, columns, values, high: int) -> None:
            nonlocal height
            rows_of, columns, values = np.broadcast_arrays(rows_of, columns, values)
            entries.append((height + rows_of, columns, values))
            height += high

        r, c = np.nonzero(mean)
        add(r, c, mean[r, c], 0)
        add(np.arange(rows), y + np.arange(rows), -1.0, rows)
        # The largest shard of the candidate that each single table takes, by group.
        single = counts[group] == 1
        r, c = np.nonzero(largest * single)
        pairs, row = np.unique(r * len(counts) + group[c], return_inverse=True)
        add(row, c, largest[r, c], 0)
        add(np.arange(len(pairs)), y + pairs // len(counts), -1.0, len(pairs))
        r, t = np.nonzero(largest[:, many])
        add(np.arange(len(r)), number + t, largest[r, many[t]], 0)
        add(np.arange(len(r)), y + r, -1.0, len(r))
        add(np.arange(len(many)), many, 1.0, 0)
        taken = -counts[group[many]].astype(float)
        add(np.arange(len(many)), number + np.arange(len(many)), taken, len(many))
        for i, (r_of, size) in enumerate(self.sizes):
            count = self._count(r_of, size)[kept]
            some = np.flatnonzero(count)
            add(0, some, count[some] / instance.objective.devices, 0)
            add(0, np.array([n + i]), -1.0, 1)
            add(0, np.array([n + i, y + r_of]), np.array([size, -1.0]), 1)
        limits = np.zeros(height)
        if np.isfinite(self.limit_bytes):
            shares, fixed = relaxation.memory()
            for share, more in zip(shares / self.limit_bytes, fixed, strict=True):
                add(0, each, share[kept], 0)
                add(0, y + np.arange(rows), share[len(relaxation.live) :], 1)
                limits = np.append(limits, 1 - more / self.limit_bytes)
        row, column, value = map(np.concatenate, zip(*entries, strict=True))
        matrix = sparse.csr_matrix((value, (row, column)), (height, width))
        tables = sparse.csr_matrix(
            (np.ones(number), (group, each)), (len(counts), width)
        )
        whole = np.ones(width)
        whole[y:n] = 0
        upper = np.full(width, np.inf)
        upper[:number], upper[number:y] = counts[group], 1
        options: dict[str, float] = {"mip_rel_gap": GAP}
        if np.isfinite(seconds):
            options["time_limit"] = seconds
        if nodes is not None:
            options["node_limit"] = nodes
        found = milp(
            cost / scale,
            integrality=whole,
            bounds=(np.zeros(width), upper),
            constraints=[(tables, counts, counts), (matrix, -np.inf, limits)],
            options=options,
        )
        chosen = np.zeros(len(instance.candidates))
        if found.x is not None:
            chosen[relaxation.live[kept]] = np.round(found.x[:number])
        bound_ms = self.relaxed.bound_ms
        if found.status == 2:  # no better plan is possible
            bound_ms = best_ms
        elif found.mip_dual_bound is not None and np.isfinite(found.mip_dual_bound):
            bound_ms = scale * float(found.mip_dual_bound) * (1 - SAFETY)
        above_ms = np.zeros(len(chosen))
        return Solution(bound_ms, chosen, above_ms), found.status != 1
