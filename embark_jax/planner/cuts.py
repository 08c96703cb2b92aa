"""Cuts: what whole shards add to a box's bound, which knows means alone.

Devices are bins, and so are nodes where shards are added up inside them. In a box their
sizes are limited, so that each holds one of few *fillings* (``fillings``): so many
shards of each size. A choice of shapes whose mean filling is no mixture of those that
fit can't be placed in the box. A weight for every shard then shows it: no filling
weighs more than 1, the mean of the choice does. As a smaller shard may weigh no more
than a larger one, the weights hold for all candidates, whether the choice uses them or
not (dual feasible functions, https://doi.org/10.1007/s101079900114).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from embark_jax.planner.box import IDS, NODE_PIECES, TOLERANCE, Box, Solution
from embark_jax.planner.fillings import Bins, fillings, heaviest, shrinking
from embark_jax.planner.program import Program

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
      parts: ``[shards, devices of a bin]`` sizes, in what fills a device: ids, or ms of
        the owner; each part lies on a device of its own, the largest come first.
    """

    candidates: np.ndarray
    number: np.ndarray
    pieces: np.ndarray
    parts: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """``[shards]`` of all parts."""
        return self.parts.sum(axis=1)


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
        for shards, bins in self._bins(box, solution):
            if np.isfinite(bins.capacity):
                cut = self._cut(shards, bins, solution.tables)
                if cut is not None:
                    found.append(cut)
        return tuple(found)

    def _bins(self, box: Box, solution: Solution) -> Iterator[tuple[Shards, Bins]]:
        """What fills which bins."""
        program = self.program
        small = program.prices * solution.levels < SMALL_SHARE * solution.bound_ms
        gpus = program.empty.gpus_per_node
        for s in range(program.storages):
            of_devices, of_nodes = self.of_devices[s], self.of_nodes[s]
            pieces = box.high[s]
            ids = IDS * program.storages + s
            if small[ids]:
                continue
            capacity = box.high[ids] * program.units[ids] * (1 + TOLERANCE)
            node_pieces = box.high[NODE_PIECES * program.storages + s]
            if of_nodes is not None:
                # A device has at most one piece of each of the node's.
                pieces = min(pieces, node_pieces)
                lanes = np.array([node_pieces, gpus * pieces])
                paired = pieces < 3 * of_nodes.pieces[:, 0].min()
                yield of_nodes, Bins(capacity, lanes, paired)
            if of_devices is not None:
                yield of_devices, Bins(capacity, np.array([pieces]))
        if self.of_owners is not None:
            capacity = box.high[-1] * (1 + TOLERANCE)
            pieces = box.high[: program.storages]  # of each storage
            yield self.of_owners, Bins(capacity, pieces)

    def _cut(self, shards: Shards, bins: Bins, tables: np.ndarray) -> np.ndarray | None:
        """``[candidates]`` weights, if the mean filling fits no bin."""
        taken = tables[shards.candidates] > 1e-6
        room = bins.capacity * shards.parts.shape[1]
        if not taken.any() or room > MAX_SHARDS * shards.size[taken].max():
            return None
        mean = (shards.number * tables[shards.candidates])[taken]
        pieces, parts, mean = _classes(
            shards.pieces[taken], shards.parts[taken], mean, COARSENESS * room
        )
        found = fillings(pieces, parts, bins)
        number = found.shape[1]
        pieces, parts, mean = pieces[:number], parts[:number], mean[:number]
        fits = found.any(axis=0)
        if not fits.any():
            return None
        weights = heaviest(found, np.where(fits, mean, 0.0))
        if weights @ mean <= 1 + LEAST_VIOLATION:
            return None
        parts = parts * shrinking(found, weights, pieces, parts, bins)
        of_shards = np.zeros(len(shards.parts))
        for k in np.flatnonzero(weights):
            as_large = (shards.parts >= parts[k]).all(axis=1)
            as_large &= (shards.pieces >= pieces[k]).all(axis=1)
            of_shards[as_large] = np.maximum(of_shards[as_large], weights[k])
        return np.bincount(
            shards.candidates,
            of_shards * shards.number,
            minlength=len(self.program.candidates),
        )

    def _of_devices(self, s: int) -> Shards | None:
        """Shards of a storage, by ids."""
        program = self.program
        rows = []
        for c in np.flatnonzero(program.storage == s):
            candidate = program.candidates[c]
            ids = candidate.ids(program.empty.slack)
            for size, number in _alike(ids):
                number *= candidate.shape.column_shards
                rows.append((c, number, candidate.pieces, size))
        return _shards(rows, program.empty.devices, 1)

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
            ids = candidate.ids(program.empty.slack)
            together = np.sort(ids)[: len(ids) - (nodes - 1) * gpus][::-1]
            pieces = candidate.pieces, len(together) * candidate.pieces
            number = nodes * candidate.shape.column_shards
            parts = np.pad(together, (0, gpus - len(together)))
            rows.append((c, number, *pieces, *parts))
        return _shards(rows, program.empty.devices // gpus, gpus)

    def _of_owners(self) -> Shards | None:
        """Shards of all storages, by the time of their owner; a lane for each storage's
        pieces."""
        rows = []
        for c, candidate in enumerate(self.program.candidates):
            for size, number in _alike(candidate.owner_ms):
                lanes = np.zeros(self.program.storages)
                lanes[self.program.storage[c]] = candidate.pieces
                rows.append((c, number * candidate.shape.column_shards, *lanes, size))
        return _shards(rows, self.program.empty.devices, 1)


def _shards(rows: list[tuple[float, ...]], bins: int, devices: int) -> Shards | None:
    """Of candidate, number, pieces of each lane and sizes for each of the ``devices``
    of a bin; None, if there are none."""
    if not rows:
        return None
    table = np.array(rows)
    number = table[:, 1] / bins
    return Shards(
        table[:, 0].astype(int), number, table[:, 2:-devices], table[:, -devices:]
    )


def _alike(sizes: np.ndarray) -> Iterator[tuple[float, int]]:
    """Sizes, each for as many as differ by little, and at most as large as those."""
    left = np.sort(sizes)
    while len(left):
        alike = int((left >= left[-1] * (1 - COARSENESS)).sum())
        yield float(left[-alike]), alike
        left = left[:-alike]


def _classes(
    pieces: np.ndarray, parts: np.ndarray, mean: np.ndarray, coarseness: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces, parts and mean number in a bin of shards alike, the largest first; parts
    are at most as large as those of any of a class."""
    classes: list[tuple[np.ndarray, np.ndarray, float]] = []
    largest: dict[tuple[float, ...], float] = {}
    last: dict[tuple[float, ...], int] = {}
    size = parts.sum(axis=1)
    for shard in np.argsort(-size, kind="stable"):
        key = tuple(pieces[shard].tolist())
        if key in last and size[shard] >= largest[key] - coarseness:
            own, least, before = classes[last[key]]
            least = np.minimum(least, parts[shard])
            classes[last[key]] = own, least, before + float(mean[shard])
        else:
            last[key], largest[key] = len(classes), size[shard]
            classes.append((pieces[shard], parts[shard], float(mean[shard])))
    lanes, sizes, means = zip(*classes, strict=True)
    return np.array(lanes), np.array(sizes), np.array(means)
