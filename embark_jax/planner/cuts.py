"""Cuts: what whole shards add to a box's bound, which knows means alone.

Devices are bins. In a box their sizes are limited, so that a device holds one of few
*fillings*: so many shards of each size. A choice of shapes whose mean filling is no
mixture of those that fit can't be placed in the box. A weight for every shard then
shows it: no filling weighs more than 1, the mean of the choice does. As a smaller shard
may weigh no more than a larger one, the weights hold for all candidates, whether the
choice uses them or not (dual feasible functions,
https://doi.org/10.1007/s101079900114).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from scipy.optimize import linprog

from embark_jax.planner.box import IDS, NODE_PIECES, Box, Solution
from embark_jax.planner.program import Program

MAX_FILLINGS = 3000
"""Of a bin: with more, the smallest shards are left out, as if they took no room."""
MAX_SHARDS = 20
"""Of the largest size in a bin: with more, wholeness hardly matters."""
COARSENESS = 0.02
"""Share of a bin by which shards of one class differ at most."""
LEAST_VIOLATION = 1e-3
"""Above 1, of the mean filling's weight: cuts by less raise no bound."""
SMALL_SHARE = 0.01
"""Of a bound: storages whose ids take less time are not looked at."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """What bins of one kind are filled with.

    Attributes:
      candidates: ``[shards]`` of which candidate.
      number: ``[shards]`` so many for each table, over the number of bins.
      pieces: ``[shards, lanes]`` that one adds to lanes with whole limits.
      size: ``[shards]`` in what fills the bin: ids, or ms of the owner.
    """

    candidates: np.ndarray
    number: np.ndarray
    pieces: np.ndarray
    size: np.ndarray


class Cuts:
    """Finds cuts for the boxes of a program."""

    def __init__(self, program: Program):
        self.program = program
        self.of_devices = list(map(self._of_devices, range(program.storages)))
        self.of_nodes = list(map(self._of_nodes, range(program.storages)))
        self.of_owners = self._of_owners()

    def new(self, box: Box, solution: Solution) -> tuple[np.ndarray, ...]:
        """Those that a solution breaks."""
        found = []
        for shards, capacity, lanes in self._bins(box, solution):
            if np.isfinite(capacity):
                cut = self._cut(shards, capacity, lanes, solution.tables)
                if cut is not None:
                    found.append(cut)
        return tuple(found)

    def _bins(
        self, box: Box, solution: Solution
    ) -> Iterator[tuple[Shards, float, np.ndarray]]:
        """Each with its capacity in sizes, and limits of its lanes."""
        program = self.program
        small = program.prices * solution.levels < SMALL_SHARE * solution.bound_ms
        gpus = program.empty.gpus_per_node
        for s in range(program.storages):
            of_devices, of_nodes = self.of_devices[s], self.of_nodes[s]
            pieces = box.high[s]
            ids = IDS * program.storages + s
            if small[ids]:
                continue
            capacity = box.high[ids] * program.units[ids]
            node_pieces = box.high[NODE_PIECES * program.storages + s]
            if of_nodes is not None:
                # A device has at most one piece of each of the node's.
                pieces = min(pieces, node_pieces)
                lanes = np.array([node_pieces, gpus * pieces])
                yield of_nodes, gpus * capacity, lanes
            if of_devices is not None:
                yield of_devices, capacity, np.array([pieces])
        if self.of_owners is not None:
            yield self.of_owners, box.high[-1], np.zeros(0)

    def _cut(
        self, shards: Shards, capacity: float, lanes: np.ndarray, tables: np.ndarray
    ) -> np.ndarray | None:
        """``[candidates]`` weights, if the mean filling fits no bin."""
        capacity *= 1 + 1e-7  # of rounding errors
        taken = tables[shards.candidates] > 1e-6
        if not taken.any() or capacity > MAX_SHARDS * shards.size[taken].max():
            return None
        mean = (shards.number * tables[shards.candidates])[taken]
        classes = _classes(shards.pieces[taken], shards.size[taken], mean, capacity)
        pieces, size, mean = classes
        fillings = _fillings(pieces, size, lanes, capacity)
        number = fillings.shape[1]
        pieces, size, mean = pieces[:number], size[:number], mean[:number]
        alone = (pieces <= lanes).all(axis=1) & (size <= capacity)
        if not alone.any():
            return None
        found = linprog(
            np.where(alone, -mean, 0.0),
            fillings[1:],
            np.ones(len(fillings) - 1),
            method="highs-ds",
            options={"presolve": False},
        )
        if found.x is None or -found.fun <= 1 + LEAST_VIOLATION:
            return None
        weight = np.where(alone & (found.x > 1e-7), found.x, 0) * (1 - 1e-9)
        size = size * _shrinking(fillings, weight, pieces, size, lanes, capacity)
        weights = np.zeros(len(shards.size))
        for k in np.flatnonzero(weight):
            heavier = (shards.size >= size[k]) & (shards.pieces >= pieces[k]).all(
                axis=1
            )
            weights[heavier] = np.maximum(weights[heavier], weight[k])
        return np.bincount(
            shards.candidates,
            weights * shards.number,
            minlength=len(self.program.candidates),
        )

    def _of_devices(self, s: int) -> Shards | None:
        """Shards of a storage, by ids."""
        program = self.program
        rows = []
        for c in np.flatnonzero(program.storage == s):
            candidate = program.candidates[c]
            ids = candidate.certain + program.empty.slack * candidate.expected
            for size, number in _alike(ids):
                number *= candidate.shape.column_shards
                rows.append((c, number, candidate.pieces, size))
        return _shards(rows, program.empty.devices)

    def _of_nodes(self, s: int) -> Shards | None:
        """Of each column the row shards that share a node, at least so many and so
        large; None where the owners of some are forced, who may be anywhere."""
        program = self.program
        gpus = program.empty.gpus_per_node
        chosen = np.flatnonzero(program.storage == s)
        staged = program.empty.storages[s].hierarchical
        if not staged or program.placed[chosen].any():
            return None
        rows = []
        for c in chosen:
            candidate = program.candidates[c]
            nodes = candidate.shape.nodes_each(gpus)
            ids = candidate.certain + program.empty.slack * candidate.expected
            together = np.sort(ids)[: len(ids) - (nodes - 1) * gpus]
            pieces = candidate.pieces, len(together) * candidate.pieces
            number = nodes * candidate.shape.column_shards
            rows.append((c, number, *pieces, together.sum()))
        return _shards(rows, program.empty.devices / gpus)

    def _of_owners(self) -> Shards | None:
        """Shards of all storages, by the time of their owner."""
        rows = []
        for c, candidate in enumerate(self.program.candidates):
            for size, number in _alike(candidate.owner_ms):
                rows.append((c, number * candidate.shape.column_shards, size))
        return _shards(rows, self.program.empty.devices)


def _shards(rows: list[tuple[float, ...]], bins: float) -> Shards | None:
    """Of candidate, number, pieces of each lane and size; None, if there are none."""
    if not rows:
        return None
    table = np.array(rows)
    return Shards(
        table[:, 0].astype(int), table[:, 1] / bins, table[:, 2:-1], table[:, -1]
    )


def _alike(sizes: np.ndarray) -> Iterator[tuple[float, int]]:
    """Sizes, each for as many as differ by little, and at most as large as those."""
    left = np.sort(sizes)
    while len(left):
        alike = int((left >= left[-1] * (1 - COARSENESS)).sum())
        yield float(left[-alike]), alike
        left = left[:-alike]


def _classes(
    pieces: np.ndarray, size: np.ndarray, mean: np.ndarray, capacity: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces, size and mean number in a bin of shards alike, the largest first; sizes
    are those of the smallest of a class."""
    classes: list[tuple[list[float], float, float]] = []
    largest: dict[tuple[float, ...], float] = {}
    last: dict[tuple[float, ...], int] = {}
    order = np.argsort(-size, kind="stable")
    for own, ids, number in zip(
        pieces[order].tolist(), size[order].tolist(), mean[order].tolist(), strict=True
    ):
        key = tuple(own)
        if key in last and ids >= largest[key] - COARSENESS * capacity:
            _, _, before = classes[last[key]]
            classes[last[key]] = own, ids, before + number
        else:
            last[key], largest[key] = len(classes), ids
            classes.append((own, ids, number))
    lanes, sizes, means = zip(*classes, strict=True)
    return np.array(lanes).reshape(len(classes), -1), np.array(sizes), np.array(means)


def _fillings(
    pieces: np.ndarray, size: np.ndarray, lanes: np.ndarray, capacity: float
) -> np.ndarray:
    """``[fillings, classes]`` all that fit, the empty one first; of the first classes,
    if there would be too many."""
    found = np.zeros((1, 0), int)
    for k in range(len(size)):
        more = [np.pad(found, ((0, 0), (0, 1)))]
        while len(more[-1]):
            next_ = more[-1].copy()
            next_[:, k] += 1
            fits = next_ @ size[: k + 1] <= capacity
            fits &= (next_ @ pieces[: k + 1] <= lanes).all(axis=1)
            more.append(next_[fits])
            if sum(map(len, more)) > MAX_FILLINGS:
                return found
        found = np.concatenate(more)
    return found


def _shrinking(
    fillings: np.ndarray,
    weight: np.ndarray,
    pieces: np.ndarray,
    size: np.ndarray,
    lanes: np.ndarray,
    capacity: float,
) -> float:
    """A factor for all sizes with which still nothing that weighs more than 1 fits."""
    taken = np.flatnonzero(weight)
    weights = (fillings @ weight)[:, None] + weight[taken]
    sizes = (fillings @ size)[:, None] + size[taken]
    room = ((fillings @ pieces)[:, None] + pieces[taken] <= lanes).all(axis=2)
    heavy = room & (weights > 1 + 1e-9)
    # What weighs less than that but does not fit needs at least one more.
    light = room & ~heavy & (sizes > capacity)
    least = min(
        sizes[heavy].min(initial=np.inf),
        sizes[light].min(initial=np.inf) + size[taken].min(),
    )
    return min(1.0, capacity / least * (1 + 1e-9)) if np.isfinite(least) else 1.0
