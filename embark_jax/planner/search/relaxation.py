"""The relaxation: a linear program whose optimum no plan can beat.

Shards have no owners in it, so that every load may be spread evenly over the devices,
and tables may take fractions of candidates. In symbols, where x_c tables of group g
take candidate c, and y_r is the peak of row r (``spread.py``)::

    minimise   Σ_c everywhere_c x_c + Σ_r price_r y_r
    such that  Σ_{c of g} x_c = count_g                        every table takes one
               y_r ≥ Σ_c mean_rc x_c                            at least the mean
               y_r ≥ Σ_{c of g} largest_rc x_c / count_g        and the largest shard
               bytes(x, y) ≤ limit                              where memory is short

The largest load of any device is at least the mean over devices, and at least any of
its shards, so that every plan satisfies these rows. The use of a storage is one more
peak, whose largest "shard" is 1.

Few candidates, and few rows of the third kind, matter. The program begins with a few
candidates of each group; in each round it gets the rows that its solution breaks and
the candidates that its multipliers find cheaper. The bound counts all candidates at
those multipliers (weak duality), so that it holds after any round. Rows that take only
memory have no price until memory is short, and only these rows can show that; so memory
always has a small price in the check for broken rows.

A candidate is left out if another of its group and storage has no larger mean, largest
shard, time or bytes: in its place, the other makes no left side larger.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import sparse

from embark_jax.planner.cost.objective import PEAK_IDS, PEAK_NODE
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.linear_program import LinearProgram
from embark_jax.planner.search.spread import spread_evenly, undominated

NEAR = 1e-3
"""Largest share of the optimum by which the bound may miss it."""
BROKEN, CHEAP = 3e-5, 0.03
"""Share of the optimum by which a row must be broken to be added; and the least price
of all memory in that check, as a share of the optimum, since memory that is not short
has no price."""
FIRST, MORE, SMALLEST = 12, 8, 2
"""Candidates of a group in the first round, those added to it in a round, and those of
the first round that take least memory."""
SAFETY = 1e-9
"""Share by which a bound is lowered for rounding errors."""


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The solution of the relaxation, or of its whole-number version.

    Attributes:
      bound_ms: bound: no plan takes less.
      tables: ``[candidates]`` number of tables that take each.
      above_ms: ``[candidates]`` amount by which the bound rises for plans that take it.
    """

    bound_ms: float
    tables: np.ndarray
    above_ms: np.ndarray


class Relaxation:
    """The linear program of one instance.

    Attributes:
      instance: instance that is relaxed.
      spread: candidates of the instance, spread evenly.
      live: ``[live]`` candidates that are not left out.
      group: ``[live]`` group of each.
      mean, largest: ``[rows, live]`` values of ``spread``, in units of ``unit``.
      unit: ``[rows]`` largest value of any candidate.
      cost: ``[live + rows]`` objective in ms.
      shards: for each element of ``largest`` its key ``group * rows + row``, by which
        they are ordered; its candidate; and its value.
    """

    def __init__(
        self, instance: Instance, allowed: np.ndarray | bool = True, drop: bool = True
    ):
        """
        Args:
          instance: instance that is relaxed.
          allowed: ``[candidates]`` whether plans may have each.
          drop: whether dominated candidates are left out.
        """
        self.instance, each = instance, instance.candidates
        self.spread = spread = spread_evenly(instance)
        kept = undominated(instance, spread) if drop else np.ones(len(each), bool)
        self.live = np.flatnonzero(kept & allowed)
        self.group = each.table[self.live]
        row = spread.row[:, self.live]
        mean, largest = spread.mean[:, self.live], spread.largest[:, self.live]
        self.unit = np.zeros(spread.rows)
        np.maximum.at(self.unit, row, np.where(mean > 0, mean, largest))
        self.unit[(self.unit <= 0) | spread.whole] = 1.0
        number = np.broadcast_to(np.arange(len(self.live)), row.shape).ravel()
        self.mean, self.largest = (
            sparse.csr_matrix(
                ((values / self.unit[row]).ravel(), (row.ravel(), number)),
                (spread.rows, len(self.live)),
            )
            for values in (mean, largest)
        )
        self.mean.eliminate_zeros()
        self.largest.eliminate_zeros()
        self.cost = np.append(each.everywhere_ms[self.live], spread.ms * self.unit)
        shards = self.largest.tocoo()
        keys = self.group[shards.col] * spread.rows + shards.row
        order = np.argsort(keys, kind="stable")
        self.shards = keys[order], shards.col[order], shards.data[order]
        self._columns = self._best_of_groups(spread.alone_ms[self.live], FIRST)
        self._added = np.zeros(0, np.int64)

    def solve(
        self, objective: np.ndarray | None = None, crowding: float = 0.0
    ) -> Solution | None:
        """Returns the optimum; None if memory does not suffice.

        Args:
          objective: ``[live + rows]`` objective instead of time, without a memory
            limit.
          crowding: share of the largest shard that is added to the mean as the least
            peak. Above 0 the result bounds nothing, but its candidates are easier to
            place: placing ends up to one shard above the mean.
        """
        instance, number = self.instance, len(self.live)
        limit_bytes = instance.memory.limit_bytes
        counts, rows = instance.counts, self.spread.rows
        extra = rows * bool(crowding)  # the largest shard is one more variable of a row
        cost = self.cost if objective is None else objective
        cost = np.append(cost, np.zeros(extra))
        scale = max(float(cost.max()), 1e-300)
        cost = cost / scale  # the solver's tolerances are absolute
        upper = np.append(counts[self.group], np.full(rows + extra, np.inf))
        tables = np.ones(number), (self.group, np.arange(number))
        tables = sparse.csc_matrix(tables, (len(counts), len(cost)))
        program = LinearProgram(cost, upper, tables, counts.astype(float))
        program.add_rows(self._peak_rows(crowding), np.zeros(rows + extra))
        in_bytes, fixed = self.memory()
        in_bytes = np.pad(in_bytes, [(0, 0), (0, extra)])
        of_memory = slice(rows + extra, rows + extra + 2 * (objective is None))
        if objective is None:
            shares = sparse.csr_matrix(in_bytes / limit_bytes)
            program.add_rows(shares, 1 - fixed / limit_bytes)
        columns, added = self._columns, self._added
        program.add_rows(self.largest_rows(added, extra), np.zeros(len(added)))
        program.add_variables(np.arange(number, len(cost)))
        held = in_bytes[1, number : number + rows]
        alone_bytes = in_bytes[1, :number] + self.mean.T @ held
        columns = np.union1d(columns, self._best_of_groups(alone_bytes, SMALLEST))
        best = np.zeros(0), -np.inf, cost
        while True:
            program.add_variables(columns)
            found = program.solve()
            if found is None:
                if len(columns) == number:
                    return None
                columns = np.arange(number)
                continue
            least, x, multipliers = found
            per_byte = multipliers[of_memory] / limit_bytes
            per_byte = per_byte + CHEAP * abs(least) / limit_bytes
            prices = (cost + per_byte @ in_bytes[: len(per_byte)])[number:][:rows]
            broken = self._broken(x[:number], x[number + extra :], prices, least)
            broken, before = np.setdiff1d(broken, added), len(columns)
            # Multipliers swing from round to round; halfway to the best ones so far
            # they show better which candidates are wanted.
            known = np.pad(best[0], (0, len(multipliers) - len(best[0])))
            for each in (multipliers, (multipliers + known) / 2):
                rates = cost + program.matrix.T @ each
                bound = self._dual_bound(rates) - program.limits @ each
                if bound > best[1]:
                    best = each, bound, rates
                columns = np.union1d(
                    columns, self._best_of_groups(rates[:number], MORE)
                )
            near = least - best[1] <= NEAR * abs(least)
            if not len(broken) and (near or len(columns) == before):
                break
            added = np.append(added, broken)
            program.add_rows(self.largest_rows(broken, extra), np.zeros(len(broken)))
        _, bound, rates = best
        self._columns, self._added = columns, added
        tables_of, above_ms = np.zeros((2, len(instance.candidates)))
        above_ms[:] = np.inf
        tables_of[self.live] = x[:number]
        least = np.full(len(counts), np.inf)
        np.minimum.at(least, self.group, rates[:number])
        above_ms[self.live] = scale * (rates[:number] - least[self.group])
        bound_ms = max(0.0, scale * float(bound) * (1 - SAFETY))
        return Solution(bound_ms, tables_of, above_ms)

    def _dual_bound(self, rates: np.ndarray) -> float:
        """Returns a bound that holds whatever the solver's tolerances: for any
        multipliers of the rows, every table takes the candidate of the lowest rate, and
        every peak is zero or, where its rate is negative, as large as a peak can be.

        Args:
          rates: ``[live + rows]`` costs, with the rows at their multipliers.
        """
        counts, number = self.instance.counts, len(self.live)
        least = np.full(len(counts), np.inf)
        np.minimum.at(least, self.group, rates[:number])
        below = np.minimum(rates[number:], 0.0)
        highest = np.zeros(len(below))
        for r in np.flatnonzero(below):
            row = r % self.spread.rows
            most = self.mean[row] * self.instance.objective.devices + self.largest[row]
            of_group = np.zeros(len(counts))
            np.maximum.at(of_group, self.group[most.indices], most.data)
            highest[r] = counts @ of_group
        return float(counts @ least + below @ highest)

    def least_bytes(self) -> float:
        """Returns a bound of memory: no plan takes less on every device."""
        shares, fixed = self.memory()
        scale = self.instance.memory.limit_bytes
        found = [self.solve(objective=share / scale) for share in shares]
        return max(
            each.bound_ms * scale + more
            for each, more in zip(found, fixed, strict=True)
            if each is not None
        )

    def memory(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns ``[2, live + rows]`` bytes in backward of the dense layers and in the
        update, and ``[2]`` the fixed part of them (``Objective.bytes``)."""
        objective, each = self.instance.objective, self.instance.candidates
        none = np.zeros(self.spread.rows - objective.held_bytes.size)
        held = np.append(objective.held_bytes.reshape(-1), none) * self.unit
        update = np.append(objective.update_bytes.reshape(-1), none) * self.unit
        everywhere = each.everywhere_bytes[self.live]
        touched = everywhere + self.spread.touched_bytes[self.live]
        times = [np.append(everywhere, held), np.append(touched, held + update)]
        return np.stack(times), objective.fixed_bytes

    def _best_of_groups(self, rates: np.ndarray, number: int) -> np.ndarray:
        """Returns this number of candidates of each group, as numbers in ``live``:
        those of the lowest ``[live]`` rates."""
        order = np.lexsort((rates, self.group))
        group = self.group[order]
        rank = np.arange(len(order)) - np.searchsorted(group, group)
        return np.sort(order[rank < number])

    def _peak_rows(self, crowding: float) -> sparse.csr_matrix:
        """Returns ``[rows, live + rows]`` means less the peak; or with crowding, ``[2 *
        rows, live + 2 * rows]`` means and a share of the largest shard less the peak,
        and that shard less the peak."""
        one = sparse.identity(self.spread.rows)
        if not crowding:
            return sparse.csr_matrix(sparse.hstack([self.mean, -one]))
        storages = len(self.instance.objective.storages)
        share = np.full(self.spread.rows, crowding)
        share[: PEAK_IDS * storages] = 0.0  # partial sums are whole, and always fit
        share[PEAK_NODE * storages : -1] = 0.0
        blocks = [[self.mean, -one, sparse.diags(share)], [None, -one, one]]
        return sparse.csr_matrix(sparse.bmat(blocks))

    def largest_rows(self, keys: np.ndarray, extra: int = 0) -> sparse.csr_matrix:
        """Returns ``[keys, live + extra + rows]`` largest shards of a group less the
        peak.

        Args:
          keys: ``group * rows + row`` of each row of the result.
          extra: number of variables before those of the rows.
        """
        known, columns, sizes = self.shards
        rows, number = self.spread.rows, len(self.live) + extra
        group, row = np.divmod(keys, rows)
        first = np.searchsorted(known, keys)
        lengths = np.searchsorted(known, keys, side="right") - first
        each = np.repeat(np.arange(len(keys)), lengths)
        mine = np.arange(lengths.sum()) + (first - np.cumsum(lengths) + lengths)[each]
        values = sizes[mine] / self.instance.counts[group][each]
        return sparse.csr_matrix(
            (
                np.append(values, np.full(len(keys), -1.0)),
                (
                    np.append(each, np.arange(len(keys))),
                    np.append(columns[mine], number + row),
                ),
            ),
            (len(keys), number + rows),
        )

    def _broken(
        self, tables: np.ndarray, peaks: np.ndarray, prices: np.ndarray, least: float
    ) -> np.ndarray:
        """Returns keys of groups and rows where a group's largest shard exceeds the
        peak.

        Args:
          tables, peaks: ``[live]`` and ``[rows]`` of the solution.
          prices: ``[rows]`` prices of peaks.
          least: the optimum.
        """
        keys, columns, sizes = self.shards
        taken = np.flatnonzero(tables[columns] > 1e-9)
        found, each = np.unique(keys[taken], return_inverse=True)
        group, row = np.divmod(found, self.spread.rows)
        largest = np.bincount(each, sizes[taken] * tables[columns[taken]])
        above = largest / self.instance.counts[group] - peaks[row]
        return found[above * prices[row] > BROKEN * max(abs(least), 1e-30)]
