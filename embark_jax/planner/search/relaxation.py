"""The relaxation: a linear program whose optimum no plan can beat.

Shards have no owners in it, so that every load may be spread evenly over the devices,
and tables may take fractions of candidates. In symbols, where x_c tables of group g
take candidate c, and y_p is peak p (``instance.py``)::

    minimise   Σ_c everywhere_c x_c + Σ_p price_p y_p + w
    such that  Σ_{c of g} x_c = count_g                        every table takes one
               y_p ≥ Σ_c mean_pc x_c                            at least the mean
               y_p ≥ Σ_{c of g} largest_pc x_c / count_g        and the largest shard
               bytes(x, y) ≤ limit                              where memory is short
               w ≥ store(y) - dense - cost(x, y)                with look-ahead

The largest load of any device is at least the mean over devices, and at least any of
its shards, so that every plan satisfies these rows. The use of a storage is one more
peak, whose largest "shard" is 1. The peak of row stores has no price: w is what the
step waits for them, all of it without look-ahead.

There are many rows of the third kind, one for each group and peak, and few matter:
those that a solution breaks are added, until it breaks none. The bound counts all
candidates at the last multipliers (weak duality), so that it holds whatever rows are
left out. Rows that take only memory have no price until memory is short, and only these
rows can show that; so memory always has a small price in the check for broken rows.

A candidate is left out if another of its group and storage has no larger mean, largest
shard, time or bytes: in its place, the other makes no left side larger. Without this,
planning takes longer by a tenth to a third.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from embark_jax.planner.search import params
from embark_jax.planner.search.instance import OF_STORAGES, Instance
from embark_jax.planner.search.linear_program import LinearProgram

STORE, EXPOSED = -2, -1
"""Numbers of the last peaks: of row stores, and what is exposed of them."""
TINY = 1e-300
SAFETY = 1e-9
"""Share by which a bound is lowered for rounding errors."""


class PeakRange(NamedTuple):
    """The least and the most that peaks may be, ``[peaks]`` in units."""

    least: np.ndarray
    most: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The solution of the relaxation.

    Attributes:
      bound_ms: bound: no plan takes less.
      tables: ``[candidates]`` number of tables that take each.
      above_ms: ``[candidates]`` amount by which the bound rises for plans that take it.
      peaks: ``[peaks]`` value of each, in units.
      range: the least and the most that they may be.
    """

    bound_ms: float
    tables: np.ndarray
    above_ms: np.ndarray
    peaks: np.ndarray
    range: PeakRange


@dataclasses.dataclass(eq=False)
class _Program:
    """A program, and the keys of the largest shards that are rows of it."""

    program: LinearProgram
    keys: np.ndarray


class Relaxation:
    """The linear program of one instance.

    Attributes:
      instance: instance that is relaxed.
      peaks: number of peaks.
      live: ``[live]`` candidates that are not left out.
      group: ``[live]`` group of each.
      mean, largest: ``[peaks, live]`` values of the instance, in units of ``unit``.
      unit: ``[peaks]`` largest value of any candidate.
      worth: ``[live + peaks]`` ms of each table and of a unit of each peak.
      cost: ``[live + peaks]`` objective: the same without row stores' peak.
      shards: for each element of ``largest`` its key ``group * peaks + peak``, by which
        they are ordered; its candidate; and its value.
      scale: ms of a unit of the programs' cost.
    """

    def __init__(self, instance: Instance, allowed: np.ndarray | bool = True):
        """
        Args:
          instance: instance that is relaxed.
          allowed: ``[candidates]`` whether plans may have each.
        """
        self.instance, self.peaks = instance, len(instance.peak_ms)
        candidates = instance.candidates
        self.live = np.flatnonzero(instance.undominated & allowed)
        self.group = candidates.table[self.live]
        peak = instance.peak[:, self.live]
        mean = instance.mean[:, self.live]
        largest = instance.largest[:, self.live]
        # The solver's tolerances are absolute, and loads are bytes, ids and ms: each
        # row is in units of its largest value. Whole numbers stay as they are.
        self.unit = np.zeros(self.peaks)
        np.maximum.at(self.unit, peak, np.where(mean > 0, mean, largest))
        self.unit[(self.unit <= 0) | instance.whole] = 1.0
        self.mean = self._by_peak(peak, mean)
        self.largest = self._by_peak(peak, largest)
        everywhere_ms = candidates.everywhere_ms[self.live]
        self.worth = np.append(everywhere_ms, instance.peak_ms * self.unit)
        self.cost = self.worth.copy()
        self.cost[STORE] = 0.0
        row, column = self.largest.coords
        keys = self.group[column] * self.peaks + row
        order = np.argsort(keys, kind="stable")
        self.shards = keys[order], column[order], self.largest.data[order]
        self.scale = max(float(self.cost.max()), TINY)
        self._programs: dict[float, _Program] = {}  # by crowding

    def _by_peak(self, peak: np.ndarray, values: np.ndarray) -> sparse.coo_array:
        """Returns ``[peaks, live]`` of ``[ADDED, live]`` values, in units."""
        columns = np.broadcast_to(np.arange(len(self.live)), peak.shape)
        entries = (values / self.unit[peak]).ravel(), (peak.ravel(), columns.ravel())
        made = sparse.coo_array(entries, (self.peaks, len(self.live))).tocsr()
        made.eliminate_zeros()
        return made.tocoo()

    def solve(
        self, crowding: float = 0.0, within: PeakRange | None = None
    ) -> Solution | None:
        """Returns the optimum; None if no plan is possible.

        Args:
          crowding: share of the largest shard that is added to the mean as the least
            peak. Above 0 the result bounds nothing, but its candidates are easier to
            place: placing ends up to one shard above the mean.
          within: range of the peaks; None is any.

        Raises:
          UnsolvedError: if the solver finds no end.
        """
        instance, number, peaks = self.instance, len(self.live), self.peaks
        extra = peaks * bool(crowding)  # the largest shard is one more variable
        if within is None:
            within = PeakRange(np.zeros(peaks), np.full(peaks, np.inf))
        made = self._programs.get(crowding) or self._program(crowding)
        program = made.program
        program.limit(number + np.arange(peaks), *within)
        per_share = self.memory()[0][1] / instance.memory.limit_bytes
        while True:
            optimum = program.solve()
            if optimum is None:
                return None
            least = abs(optimum.cost)
            of_memory = params.MEMORY_PRICE * least * per_share
            prices = self.worth[number:] / self.scale + of_memory[number:]
            broken = self._broken(
                optimum.variables[:number],
                optimum.variables[number + extra :],
                prices,
                params.TOLERANCE * max(least, 1e-30),
            )
            broken = np.setdiff1d(broken, made.keys)
            if not len(broken):
                break
            made.keys = np.append(made.keys, broken)
            program.add_rows(self._largest_rows(broken, extra), np.zeros(len(broken)))
        # No step gains more than it waits for row stores.
        multipliers = optimum.multipliers.copy()
        if instance.has_stores:
            last = peaks + extra + len(self._limit_rows[1]) - 1
            multipliers[last] = min(multipliers[last], 1.0)
        rates = program.rates(multipliers)
        bound = self._dual_bound(rates, within) - program.limits @ multipliers
        tables_of, above_ms = np.zeros((2, len(instance.candidates)))
        above_ms[:] = np.inf
        tables_of[self.live] = optimum.variables[:number]
        above_ms[self.live] = self.scale * (
            rates[:number] - self._least_of_groups(rates)[self.group]
        )
        bound_ms = max(0.0, self.scale * float(bound) * (1 - SAFETY))
        values = optimum.variables[number : number + peaks]
        return Solution(bound_ms, tables_of, above_ms, values, within)

    def _program(self, crowding: float) -> _Program:
        """Returns a new program, with the largest shards that the first one has."""
        instance, number, peaks = self.instance, len(self.live), self.peaks
        extra = peaks * bool(crowding)
        cost = np.append(self.cost, np.zeros(extra)) / self.scale
        upper = np.append(instance.counts[self.group], np.full(peaks + extra, np.inf))
        entries = np.ones(number), (self.group, np.arange(number))
        tables = sparse.coo_array(entries, (len(instance.counts), len(cost)))
        # Presolving takes longer than it saves, but its optima are better to round, of
        # tables of which many are alike.
        presolve = not crowding
        totals = instance.counts.astype(float)
        program = LinearProgram(cost, upper, tables, totals, presolve)
        program.add_rows(self._peak_rows(crowding), np.zeros(peaks + extra))
        matrix, limits = self._limit_rows
        program.add_rows(np.pad(matrix, ((0, 0), (0, extra))), limits)
        first = self._programs.get(0.0)
        keys = first.keys if first else np.zeros(0, np.int64)
        program.add_rows(self._largest_rows(keys, extra), np.zeros(len(keys)))
        self._programs[crowding] = made = _Program(program, keys)
        return made

    def _least_of_groups(self, rates: np.ndarray) -> np.ndarray:
        """Returns ``[groups]`` the lowest rate of any candidate of each."""
        least = np.full(len(self.instance.counts), np.inf)
        np.minimum.at(least, self.group, rates[: len(self.live)])
        return least

    def _dual_bound(self, rates: np.ndarray, within: PeakRange) -> float:
        """Returns a bound that holds whatever the solver's tolerances: for any
        multipliers of the rows, every table takes the candidate of the lowest rate, and
        every peak is as small as it may be or, where its rate is negative, as large.

        Args:
          rates: ``[live + peaks]`` costs, with the rows at their multipliers.
          within: range of the peaks.
        """
        counts, peaks = self.instance.counts, self.peaks
        of_peaks = rates[len(self.live) :]
        values = np.zeros(len(of_peaks))
        values[:peaks] = within.least
        for r in np.flatnonzero(of_peaks < 0):
            loads = self._most[[r % peaks]].toarray().ravel()
            of_group = np.zeros(len(counts))
            np.maximum.at(of_group, self.group, loads)
            highest = counts @ of_group
            if r < peaks:
                highest = min(highest, within.most[r])
            values[r] = max(values[r], highest)
        return float(counts @ self._least_of_groups(rates) + of_peaks @ values)

    @functools.cached_property
    def _most(self) -> Any:
        """``[peaks, live]`` most that a table adds to a peak, in units."""
        return self.instance.objective.devices * self.mean + self.largest

    def memory(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns ``[2, live + peaks]`` bytes in backward of the dense layers and in
        the update, and ``[2]`` the fixed part of them (``Objective.bytes``)."""
        objective = self.instance.objective
        held, update = np.zeros((2, self.peaks))
        of_storages = slice(len(OF_STORAGES) * len(objective.storages))
        held[of_storages] = objective.held_bytes[OF_STORAGES].reshape(-1)
        update[of_storages] = objective.update_bytes[OF_STORAGES].reshape(-1)
        held, update = held * self.unit, update * self.unit
        everywhere = self.instance.candidates.everywhere_bytes[:, self.live]
        times = np.stack([held, held + update])
        return np.hstack([everywhere, times]), objective.fixed_bytes

    @functools.cached_property
    def _limit_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """``[limits, live + peaks]`` shares of what limits plans, and ``[limits]`` what
        may be taken of it: of device memory, at both times, of host memory and disks if
        they are limited, and last, if there are any row stores, the time that
        look-ahead gives them."""
        instance = self.instance
        limit_bytes = instance.memory.limit_bytes
        in_bytes, fixed_bytes = self.memory()
        matrix = [*in_bytes / limit_bytes]
        limits = [*(1 - fixed_bytes / limit_bytes)]
        none = np.zeros(self.peaks)
        pools = instance.memory.stored_limit_bytes * instance.workload.fleet.nodes
        for stored, pool in zip(self.instance.stored_bytes, pools, strict=True):
            if stored.any() and np.isfinite(pool):
                matrix.append(np.append(stored[self.live] / pool, none))
                limits.append(1.0)
        if self.instance.has_stores:
            ahead = float(instance.workload.overlap)
            exposure = -ahead * self.cost
            exposure[STORE] = self.worth[STORE]
            exposure[EXPOSED] = -self.cost[EXPOSED]
            matrix.append(exposure / self.scale)
            limits.append(ahead * instance.objective.dense_ms / self.scale)
        return np.stack(matrix), np.array(limits)

    def _peak_rows(self, crowding: float) -> Any:
        """Returns the means less each peak; with crowding means and a share of the
        largest shard, and then that shard, less each peak."""
        each = sparse.eye_array(self.peaks)
        if not crowding:
            return sparse.hstack([self.mean, -each])
        # What is whole, such as partial sums, always fits.
        share = sparse.diags_array(np.where(self.instance.whole, 0.0, crowding))
        return sparse.block_array([[self.mean, -each, share], [None, -each, each]])

    def _largest_rows(self, keys: np.ndarray, extra: int = 0) -> Any:
        """Returns the largest shards of a group less the peak.

        Args:
          keys: ``group * peaks + peak`` of each row of the result.
          extra: number of variables before those of the rows.
        """
        all_keys, columns, sizes = self.shards
        group, row = np.divmod(keys, self.peaks)
        # The shards of a key lie together: from ``first``, so many in ``lengths``.
        first = np.searchsorted(all_keys, keys)
        lengths = np.searchsorted(all_keys, keys, side="right") - first
        key_of_shard = np.repeat(np.arange(len(keys)), lengths)
        begin = np.cumsum(lengths) - lengths
        shard = np.arange(lengths.sum()) + (first - begin)[key_of_shard]
        values = sizes[shard] / self.instance.counts[group][key_of_shard]
        number = len(self.live) + extra
        shards = values, (key_of_shard, columns[shard])
        peaks = np.full(len(keys), -1.0), (np.arange(len(keys)), row)
        of_shards = sparse.coo_array(shards, (len(keys), number))
        of_peaks = sparse.coo_array(peaks, (len(keys), self.peaks))
        return sparse.hstack([of_shards, of_peaks])

    def _broken(
        self,
        tables: np.ndarray,
        peaks: np.ndarray,
        prices: np.ndarray,
        tolerance: float,
    ) -> np.ndarray:
        """Returns keys of groups and rows where a group's largest shard exceeds the
        peak by more than costs the tolerance.

        Args:
          tables, peaks: ``[live]`` and ``[peaks]`` of the solution.
          prices: ``[peaks]`` prices.
          tolerance: least cost of what is above the peak.
        """
        all_keys, columns, sizes = self.shards
        taken = np.flatnonzero(tables[columns] > 1e-9)
        keys, number = np.unique(all_keys[taken], return_inverse=True)
        group, row = np.divmod(keys, self.peaks)
        largest = np.bincount(number, sizes[taken] * tables[columns[taken]])
        above = largest / self.instance.counts[group] - peaks[row]
        return keys[above * prices[row] > tolerance]
