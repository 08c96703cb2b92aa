"""Insertion: the candidate and the owners at which a table adds least to the cost.

A step costs as much as the fullest device of each peak, but this says little about
where the next shard should lie: on most devices it raises no peak. So tables are
inserted by a *smooth cost*, in which the mean of a power of the loads stands for their
maximum: ``mean(load ** power) ** (1 / power)``. With power 1 it is the cost of loads
that are spread evenly, as in the relaxation; high powers come near the maximum.
Example: loads 1 and 3 on two devices count as 2 with power 1, 2.7 with 8, 3 with many.

All candidates of a table are tried at once, by *positions*: devices in the order of how
little a shard would add on each. The largest shard takes the first position. Row shards
that are added up inside nodes lie on the first positions of the fewest possible nodes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from embark_jax.planner.cost.candidates import KINDS, TIMED, Load
from embark_jax.planner.cost.loads import Loads
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.instance import Instance

LEAST_LOAD = 1e-9
"""Smallest load of any kind; anything below it after tables are taken out is a rounding
error."""


class Tried:
    """Some candidates of alike tables, by positions.

    Attributes:
      chosen: ``[candidates]`` numbers of the candidates.
      storage: ``[candidates]`` storage of each.
      positions: positions of each candidate's shards; shard (j, k) at ``j *
        column_shards + k``.
      loads: ``[KINDS, candidates, devices]`` load of each position.
      largest: ``[KINDS, candidates]`` largest load of any position.
      staged: candidates whose sums are added up inside nodes.
      node_sums: ``[staged, nodes]`` partial sums of nodes, in their order.
      in_node: ``[staged, GPUs]`` used positions of a first node.
    """

    def __init__(self, instance: Instance, chosen: np.ndarray):
        candidates, fleet = instance.candidates, instance.workload.fleet
        nodes, gpus = fleet.nodes, fleet.gpus_per_node
        nothing = Loads(candidates, instance.workload)
        self.chosen, self.storage = chosen, candidates.storage[chosen]
        self.loads = np.zeros((KINDS, len(chosen), fleet.devices))
        self.staged = np.flatnonzero(candidates.staged[chosen])
        self.node_sums = np.zeros((len(self.staged), nodes))
        self.in_node = np.zeros((len(self.staged), gpus))
        self.positions: list[np.ndarray] = []
        for i, c in enumerate(chosen.tolist()):
            shards = candidates.shard_loads(c)
            rows, columns = shards.shape[1], int(candidates.column_shards[c])
            order = np.argsort(
                -(shards[Load.CERTAIN] + shards[Load.EXPECTED]), kind="stable"
            )
            positions = np.zeros((rows, columns), np.int64)
            staged = bool(candidates.staged[c])
            positions[order] = _positions(rows, columns, gpus, nodes, staged)
            self.positions.append(positions.reshape(-1))
            self.loads[:, i] = nothing.of_devices(c, self.positions[i])
            if staged:
                of_staged = int(np.searchsorted(self.staged, i))
                self.node_sums[of_staged] = nothing.of_nodes(c, self.positions[i])
                self.in_node[of_staged, :rows] = 1
        self.largest = self.loads.max(axis=2)


class Insertion:
    """Inserts tables into one assignment by its smooth cost.

    Attributes:
      assignment: assignment that is changed.
      power: power of the means that stand for maxima; 1, 2, 4, 8 and so on.
      ms_per_byte: price of memory, which keeps memory even.
    """

    def __init__(self, assignment: Assignment, power: int, ms_per_byte: float = 0.0):
        self.assignment, self.power = assignment, power
        self._objective = objective = assignment.instance.objective
        self.ms_per_byte = ms_per_byte
        unit_bytes = objective.held_bytes + objective.update_bytes
        prices = objective.prices + ms_per_byte * unit_bytes
        is_timed = not (ms_per_byte or assignment.instance.has_stores)
        self._kinds, peaks = (TIMED, Peak.ROWS) if is_timed else (KINDS, Peak.NODE)
        self._prices, self._node_prices = prices[:peaks], prices[Peak.NODE]
        self._memory_prices = ms_per_byte * unit_bytes[:peaks]
        self._storage_ms, self._memory_ms = np.zeros((2, len(objective.storages)))
        self._held = np.zeros((peaks, *assignment.loads.own.shape[1:]))
        # Storages whose loads have changed since they were priced.
        self._changed = set(np.flatnonzero(assignment.loads.tables).tolist())

    def take(self, table: int) -> None:
        """Takes a table out."""
        assignment = self.assignment
        assignment.take(table)
        self._note(int(assignment.candidate[table]))

    def put(self, table: int, candidate: int, owners: np.ndarray) -> None:
        """Puts a table in."""
        self.assignment.put(table, candidate, owners)
        self._note(candidate)

    def _note(self, candidate: int) -> None:
        """Notes that the loads of a candidate's storage have changed."""
        self._changed.add(int(self.assignment.instance.candidates.storage[candidate]))

    def _reprice(self) -> None:
        """Prices the storages anew whose loads have changed."""
        loads = self.assignment.loads
        for s in self._changed:
            self._held[:, s] = self._objective.of_devices(loads.own[: self._kinds, s])
            means = _norm(self._held[:, s], self.power)
            ms = float(self._prices[:, s] @ means)
            self._memory_ms[s] = self._memory_prices[:, s] @ means
            if self._node_prices[s]:
                sums = float(_norm(loads.node_sums[s], self.power))
                ms += self._node_prices[s] * sums
            self._storage_ms[s] = ms - self._memory_ms[s]
        self._changed.clear()

    def smooth_cost(self) -> float:
        """Returns the smooth cost of the tables that are in."""
        self._reprice()
        loads = self.assignment.loads
        stored = self._objective.stored_weights @ loads.own[Load.STORED_BYTES].sum(
            axis=1
        )
        memory_bytes = loads.everywhere_bytes[1] + stored
        devices_ms, exposed_ms = self._devices_ms(), 0.0
        if self.assignment.instance.has_stores:
            store_ms = _norm(loads.store_ms, self.power)
            exposed_ms = self._exposed(devices_ms, store_ms)
        return float(
            devices_ms
            + exposed_ms
            + self._memory_ms.sum()
            + self.ms_per_byte * memory_bytes
        )

    def _devices_ms(self) -> float:
        """Returns the smooth time of all but row stores."""
        loads = self.assignment.loads
        return float(
            self._storage_ms.sum()
            + _norm(loads.update_ms, self.power)
            + self._objective.prices[Peak.USE] @ (loads.tables > 0)
            + loads.everywhere_ms
        )

    def _exposed(self, devices_ms: Any, store_ms: Any) -> Any:
        """Returns the smooth time in which a step waits for row stores. With look-ahead
        they work beside the rest of a step, and a norm of both stands for the longer
        one."""
        objective = self._objective
        if not objective.workload.overlap:
            return store_ms
        step_ms = devices_ms + objective.dense_ms
        ratio = store_ms / np.maximum(step_ms, LEAST_LOAD)
        longer = np.maximum(ratio, 1.0)
        powers = _power(1 / longer, self.power) + _power(ratio / longer, self.power)
        return step_ms * (longer * powers ** (1 / self.power) - 1)

    def best(self, tried: Tried) -> tuple[float, int, np.ndarray]:
        """Returns ``(growth of the smooth cost, candidate, owners)`` for the candidate
        of the tried that adds least."""
        self._reprice()
        loads, power, objective = self.assignment.loads, self.power, self._objective
        s, kinds = tried.storage, self._kinds
        own, held = loads.own[:kinds, s], self._held[:, s]
        own[Load.UPDATE_MS] = held[Peak.UPDATE] = loads.update_ms
        prices = self._prices[:, s]
        prices[Peak.UPDATE] = 1.0
        if len(held) > Peak.STORE:
            own[Load.STORE_MS] = held[Peak.STORE] = loads.store_ms
            prices[Peak.STORE] = 1.0
        with_largest = objective.of_devices(own + tried.largest[:kinds, :, None])
        scale = np.maximum(with_largest.max(axis=2, keepdims=True), LEAST_LOAD)
        before = _power(held / scale, power)
        prices *= scale[:, :, 0]
        with_largest /= scale
        more = _power(with_largest, power) - before
        scores = np.einsum("kc,kcd->cd", prices, more)
        devices = np.argsort(scores, axis=1, kind="stable")
        costs = self._everywhere(tried)
        if len(tried.staged):
            self._choose_nodes(tried, scores, costs, devices)
        after = own[:, np.arange(len(s))[:, None], devices]
        after += tried.loads[:kinds]
        after = objective.of_devices(after)
        after /= scale
        growth = _root(_power(after, power), power) - _root(before, power)
        costs += (prices * growth)[: Peak.STORE].sum(axis=0)
        if self.assignment.instance.has_stores:
            store_ms = _norm(loads.store_ms, power)
            store_growth = (prices * growth)[Peak.STORE]
            memory_ms = self._memory_prices[:, s] * scale[:, :, 0] * growth
            longer_ms = costs - memory_ms.sum(axis=0) - self._held_ms(tried)
            before_ms = self._devices_ms()
            costs += self._exposed(before_ms + longer_ms, store_ms + store_growth)
            costs -= self._exposed(before_ms, store_ms)
        best = int(np.argmin(costs))
        owners = devices[best][tried.positions[best]]
        if not self.assignment.instance.candidates.shards(int(tried.chosen[best])):
            owners = owners[:0]
        return float(costs[best]), int(tried.chosen[best]), owners

    def _choose_nodes(
        self,
        tried: Tried,
        scores: np.ndarray,
        costs: np.ndarray,
        devices: np.ndarray,
    ) -> None:
        """Adds the cost of node sums to ``costs`` for candidates that are added up
        inside nodes, and orders ``devices`` node by node."""
        staged, power = tried.staged, self.power
        s = tried.storage[staged]
        held = self.assignment.loads.node_sums[s]
        largest = tried.node_sums.max(axis=1, keepdims=True)
        scale = np.maximum((held + largest).max(axis=1, keepdims=True), LEAST_LOAD)
        before = _power(held / scale, power)
        prices = self._node_prices[s] * scale[:, 0]
        of_nodes = scores[staged].reshape(len(s), held.shape[1], -1)
        inside = np.argsort(of_nodes, axis=2, kind="stable")
        best = np.take_along_axis(of_nodes, inside, axis=2)
        node_scores = np.einsum("cng,cg->cn", best, tried.in_node)
        node_scores += prices[:, None] * (
            _power((held + largest) / scale, power) - before
        )
        nodes = np.argsort(node_scores, axis=1, kind="stable")
        of_all = np.arange(len(s))[:, None]
        after = _power((held[of_all, nodes] + tried.node_sums) / scale, power)
        costs[staged] += prices * (_root(after, power) - _root(before, power))
        gpus = of_nodes.shape[2]
        by_node = inside[of_all, nodes] + nodes[:, :, None] * gpus
        devices[staged] = by_node.reshape(len(s), -1)

    def _everywhere(self, tried: Tried) -> np.ndarray:
        """Returns ``[candidates]`` costs that arise wherever their shards lie."""
        instance, loads = self.assignment.instance, self.assignment.loads
        candidates = instance.candidates
        hot = candidates.hot_storage[tried.chosen]
        opened = loads.tables[tried.storage] == 0
        opened_hot = (hot >= 0) & (loads.tables[hot] == 0)
        fixed_ms = instance.objective.prices[Peak.USE]
        return (
            candidates.everywhere_ms[tried.chosen]
            + fixed_ms[tried.storage] * opened
            + fixed_ms[hot] * opened_hot
            + self._held_ms(tried)
        )

    def _held_ms(self, tried: Tried) -> np.ndarray:
        """Returns ``[candidates]`` the price of memory that they take wherever their
        shards lie."""
        held_bytes = self.assignment.instance.held_bytes
        return self.ms_per_byte * held_bytes[tried.chosen]


def _power(values: np.ndarray, power: int) -> np.ndarray:
    """Returns ``values ** power``, for a power of 2 from 2 on, by squaring."""
    values = values * values
    while power > 2:
        values *= values
        power //= 2
    return values


def _root(powers: np.ndarray, power: int) -> np.ndarray:
    """Returns the root of the mean of powers over the last axis."""
    return (np.add.reduce(powers, axis=-1) / powers.shape[-1]) ** (1 / power)


def _norm(loads: np.ndarray, power: int) -> np.ndarray:
    """Returns the mean over the last axis, in which a high power favours large
    loads."""
    scale = np.maximum(loads.max(axis=-1), LEAST_LOAD)
    return scale * _root(_power(loads / scale[..., None], power), power)


@functools.lru_cache(maxsize=4096)
def _positions(
    rows: int, columns: int, gpus: int, nodes: int, staged: bool
) -> np.ndarray:
    """Returns ``[rows, columns]`` positions of shards: one after the other; or if sums
    are added up inside nodes each column on the fewest possible nodes, the columns on
    one node after the other."""
    if not staged:
        return np.arange(rows * columns).reshape(rows, columns) % (nodes * gpus)
    of_column = min(-(-rows // gpus), nodes)
    row, column = np.arange(rows)[:, None], np.arange(columns)
    begun, node = np.divmod(column * of_column + row % of_column, nodes)
    return node * gpus + (begun * min(rows, gpus) + row // of_column) % gpus
