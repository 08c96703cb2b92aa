"""The relaxation: a linear program whose optimum no plan can beat.

Shards have no owners in it, so that every load may be spread evenly over the devices,
and tables may take fractions of candidates. In symbols, with x_c tables of group g that
take candidate c, and y_r the level r (``objective.py``)::

    minimise   Σ_c everywhere_c x_c + Σ_r price_r y_r
    such that  Σ_{c of g} x_c = count_g                        every table takes one
               y_r ≥ Σ_c mean_rc x_c                            at least the mean
               y_r ≥ Σ_{c of g} largest_rc x_c / count_g        and the largest shard
               bytes(x, y) ≤ limit                              where memory is short

The most of any device is at least the mean over devices, and at least any of its
shards, so that every plan satisfies these rows; that a storage is used is one more
level, whose largest "shard" is 1. Rows of the third kind are many, and few
matter: they are added where the last solution breaks them.

A candidate is left out if another of its group and storage has no more of any mean, any
largest shard, time and bytes: put in its place, the other makes no left side larger.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from embark_jax.planner.cost.objective import (
    LEVEL_IDS,
    LEVEL_NODE,
    LEVEL_ROWS,
)
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.spread import levels_of, undominated

MOST_ROUNDS = 30
"""Most rounds of adding rows; the bound holds after any of them."""
BROKEN = 1e-4
"""Share of the bound by which a row must be broken to be added."""
SAFETY = 1e-9
"""Share by which a bound is lowered for rounding errors."""


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """What the relaxation, or its whole-number version, says.

    Attributes:
      bound_ms: no plan takes less.
      tables: ``[candidates]`` how many take each.
      above_ms: ``[candidates]`` by how much more no plan can beat that takes it.
      ms_per_byte: what another byte of memory would save.
    """

    bound_ms: float
    tables: np.ndarray
    above_ms: np.ndarray
    ms_per_byte: float = 0.0


class Relaxation:
    """The linear program of one instance.

    Attributes:
      instance: what is relaxed.
      live: ``[live]`` candidates that are not left out.
      group, storage: ``[live]``.
      mean, largest: ``[rows, live]`` what a table adds to the mean of a level, and its
        largest shard; scaled so that all are in ms, or of memory alone.
      prices: ``[rows]`` 1, or 0 for levels that matter to memory alone.
    """

    def __init__(self, instance: Instance, allowed: np.ndarray, drop: bool = True):
        """
        Args:
          instance: what is relaxed.
          allowed: ``[candidates]`` those that plans may have.
          drop: whether dominated candidates are left out.
        """
        self.instance = instance
        each, objective = instance.candidates, instance.objective
        mean, largest = levels_of(instance)
        self.unit = np.where(mean.any(axis=1), np.maximum(mean.max(axis=1), 1e-30), 1.0)
        mean, largest = mean / self.unit[:, None], largest / self.unit[:, None]
        price = objective.prices.reshape(-1)
        self.prices = np.concatenate([price, objective.fixed_ms, [1.0]]) * self.unit
        chosen = np.flatnonzero(allowed)
        # Of what a table writes in the update: as many rows as places, or as it has.
        s = each.storage
        places = mean[LEVEL_IDS * len(objective.storages) + s, np.arange(len(each))]
        places = places * self.unit[LEVEL_IDS * len(objective.storages) + s]
        rows = mean[LEVEL_ROWS * len(objective.storages) + s, np.arange(len(each))]
        rows = rows * self.unit[LEVEL_ROWS * len(objective.storages) + s]
        touched = np.minimum(places * objective.devices, rows)
        self._touched_bytes = objective.row_gradient_bytes[s] * touched
        if drop:
            chosen = chosen[
                undominated(instance, chosen, mean, largest, self._touched_bytes)
            ]
        self.live = chosen
        self.group, self.storage = each.table[self.live], s[self.live]
        self.mean, self.largest = mean[:, self.live], largest[:, self.live]
        self.rows = len(self.prices)

    def solve(
        self,
        limit_bytes: float = np.inf,
        objective: np.ndarray | None = None,
        crowding: float = 0.0,
    ) -> Solution | None:
        """The optimum; None if memory does not suffice.

        Args:
          limit_bytes: of memory on a device.
          objective: instead of time.
          crowding: levels are taken to be the mean and this share of the largest shard,
            at least. Above 0 the result bounds nothing, but its candidates are easier
            to place: they end up to one shard above the mean.
        """
        instance, number = self.instance, len(self.live)
        groups = len(instance.counts)
        cost = self.times() if objective is None else objective
        cost = np.append(cost, np.zeros(self.rows))
        scale = max(float(cost.max()), 1e-300)
        cost = cost / scale  # the solver's tolerances are absolute
        blocks = self._level_rows(crowding)
        limits = np.zeros(2 * self.rows)
        memory = 0
        if np.isfinite(limit_bytes):
            shares, fixed = self.memory()
            shares = np.pad(shares / limit_bytes, [(0, 0), (0, self.rows)])
            blocks = sparse.vstack([blocks, sparse.csr_matrix(shares)])
            limits = np.append(limits, 1 - fixed / limit_bytes)
            memory = len(fixed)
        tables = sparse.csr_matrix(
            (np.ones(number), (self.group, np.arange(number))),
            (groups, number + 2 * self.rows),
        )
        upper = np.concatenate(
            [instance.counts[self.group], np.full(2 * self.rows, np.inf)]
        )
        bounds = np.stack([np.zeros_like(upper), upper], axis=1)
        added = np.zeros((groups, self.rows), bool)
        found: Any = None
        for _ in range(MOST_ROUNDS):
            found = linprog(
                cost, blocks, limits, tables, instance.counts, bounds, "highs"
            )
            if found.x is None:
                return None
            broken = self._broken(found.x, cost, added)
            if not broken.any():
                break
            added |= broken
            more = self.largest_rows(*np.nonzero(broken))
            blocks = sparse.vstack([blocks, more])
            limits = np.append(limits, np.zeros(more.shape[0]))
        multipliers = np.maximum(-found.ineqlin.marginals, 0.0)
        rates = cost + blocks.T @ multipliers
        bound_ms = scale * (self._dual_bound(rates) - limits @ multipliers)
        tables_of, above_ms = np.zeros((2, len(instance.candidates)))
        above_ms[:] = np.inf
        tables_of[self.live] = np.maximum(found.x[:number], 0.0)
        least = np.full(groups, np.inf)
        np.minimum.at(least, self.group, rates[:number])
        above_ms[self.live] = scale * (rates[:number] - least[self.group])
        self.added = added
        of_memory = found.ineqlin.marginals[2 * self.rows : 2 * self.rows + memory]
        ms_per_byte = scale * float(-of_memory.sum()) / limit_bytes if memory else 0.0
        bound_ms = max(0.0, bound_ms * (1 - SAFETY))
        return Solution(bound_ms, tables_of, above_ms, ms_per_byte)

    def _dual_bound(self, rates: np.ndarray) -> float:
        """What no plan is below, whatever the solver's tolerances: for any multipliers
        of the rows, every table takes the candidate of the least rate, and every level
        is zero, or where its rate is negative as large as a level can be.

        Args:
          rates: ``[live + 2 * rows]`` costs with the rows' at their multipliers.
        """
        counts, number = self.instance.counts, len(self.live)
        least = np.full(len(counts), np.inf)
        np.minimum.at(least, self.group, rates[:number])
        most = np.zeros((len(counts), self.rows))
        devices = self.instance.objective.devices
        np.maximum.at(most, self.group, (self.mean * devices + self.largest).T)
        highest = np.tile(counts @ most, 2)
        return float(counts @ least + np.minimum(rates[number:], 0.0) @ highest)

    def least_bytes(self) -> float:
        """No plan takes less memory on every device."""
        shares, fixed = self.memory()
        scale = self.instance.memory.limit_bytes
        found = [self.solve(objective=share / scale) for share in shares]
        return max(
            each.bound_ms * scale + more
            for each, more in zip(found, fixed, strict=True)
            if each is not None
        )

    def times(self) -> np.ndarray:
        """``[live + rows]`` the objective: ms."""
        everywhere_ms = self.instance.candidates.everywhere_ms[self.live]
        return np.concatenate([everywhere_ms, self.prices])

    def memory(self) -> tuple[np.ndarray, np.ndarray]:
        """``[2, live + rows]`` bytes in backward of the dense layers and in the update,
        and ``[2]`` what is fixed of them (``Objective.bytes``)."""
        objective, each = self.instance.objective, self.instance.candidates
        none = np.zeros(len(objective.storages) + 1)
        held = np.append(objective.held_bytes.reshape(-1), none) * self.unit
        update = np.append(objective.update_bytes.reshape(-1), none) * self.unit
        everywhere = each.everywhere_bytes[self.live]
        touched = everywhere + self._touched_bytes[self.live]
        both = np.stack(
            [
                np.concatenate([everywhere, held]),
                np.concatenate([touched, held + update]),
            ]
        )
        return both, objective.fixed_bytes

    def largest_rows(self, groups: np.ndarray, rows: np.ndarray) -> sparse.csr_matrix:
        """``[len(groups), live + rows]`` largest shards of a group less the level."""
        counts, number = self.instance.counts, len(self.live)
        of_group = [np.flatnonzero(self.group == g) for g in range(len(counts))]
        entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for i, (g, r) in enumerate(zip(groups.tolist(), rows.tolist(), strict=True)):
            mine = of_group[g]
            mine = mine[self.largest[r, mine] > 0]
            entries.append(
                (np.full(len(mine), i), mine, self.largest[r, mine] / counts[g])
            )
        each = np.arange(len(groups))
        of_largest = number + self.rows + rows
        entries.append((each, of_largest, np.full(len(groups), -1.0)))
        row, column, value = map(np.concatenate, zip(*entries, strict=True))
        shape = (len(groups), number + 2 * self.rows)
        return sparse.csr_matrix((value, (row, column)), shape)

    def _level_rows(self, crowding: float) -> sparse.csr_matrix:
        """``[2 * rows, live + 2 * rows]`` means, with crowding, less the level; and the
        largest shard less the level."""
        one = sparse.identity(self.rows)
        storages = len(self.instance.objective.storages)
        crowded = np.full(self.rows, float(crowding))
        crowded[: LEVEL_IDS * storages] = 0.0  # partial sums are whole, and always fit
        crowded[LEVEL_NODE * storages : -1] = 0.0
        mean = sparse.csr_matrix(self.mean)
        none = sparse.csr_matrix(self.mean.shape)
        blocks = [[mean, -one, sparse.diags(crowded)], [none, -one, one]]
        return sparse.csr_matrix(sparse.bmat(blocks))

    def _broken(self, x: np.ndarray, cost: np.ndarray, added: np.ndarray) -> np.ndarray:
        """``[groups, rows]`` where a group's largest shards are above the level."""
        number, counts = len(self.live), self.instance.counts
        taken = np.flatnonzero(x[:number] > 1e-9)
        weighted = self.largest[:, taken] * x[taken]
        largest = np.zeros((self.rows, len(counts)))
        np.add.at(largest.T, self.group[taken], weighted.T)
        above = (largest / counts).T - x[number + self.rows :]
        worth = above * cost[number : number + self.rows]
        return (worth > BROKEN * max(float(cost @ x), 1e-30) / 10) & ~added
