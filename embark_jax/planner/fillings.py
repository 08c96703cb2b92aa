"""Fillings: what a bin, a device or a node, holds at most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

MAX_FILLINGS = 3000
"""Of a bin: with more, the smallest shards are left out, as if they took no room."""


class Bins(NamedTuple):
    """Bins alike.

    Attributes:
      capacity: of each device, in sizes.
      lanes: ``[lanes]`` limits of pieces.
      paired: whether no device holds more than two shards.
    """

    capacity: float
    lanes: np.ndarray
    paired: bool = False


def fillings(pieces: np.ndarray, parts: np.ndarray, bins: Bins) -> np.ndarray:
    """All that may fit, the empty one first; of the first classes, if there would be
    too many.

    Args:
      pieces: ``[classes, lanes]`` that a shard of each class adds to the lanes.
      parts: ``[classes, devices of a bin]`` its sizes, each for another device.
      bins: to fill.

    Returns:
      ``[fillings, classes]`` numbers of shards. That sizes suffice for all devices
      together is looked at, and that they do for each where shards are paired.
    """
    devices = parts.shape[1]
    sizes = parts.sum(axis=1)
    found = np.zeros((1, 0), int)
    held = np.zeros((1, 2 * devices))
    for k in range(len(sizes)):
        numbers, lying = [np.pad(found, ((0, 0), (0, 1)))], [held]
        while len(numbers[-1]):
            more, beside = numbers[-1].copy(), lying[-1]
            more[:, k] += 1
            fits = more @ sizes[: k + 1] <= bins.capacity * devices
            fits &= (more @ pieces[: k + 1] <= bins.lanes).all(axis=1)
            more, beside = more[fits], beside[fits]
            if bins.paired:
                beside, fits = in_pairs(beside, parts[k], bins.capacity)
                more, beside = more[fits], beside[fits]
            numbers.append(more)
            lying.append(beside)
            if sum(map(len, numbers)) > MAX_FILLINGS:
                return found
        found, held = np.concatenate(numbers), np.concatenate(lying)
    return found


def in_pairs(
    held: np.ndarray, parts: np.ndarray, capacity: float
) -> tuple[np.ndarray, np.ndarray]:
    """Shards of a node whose devices hold two each, and whether they fit: if at all,
    then the largest beside the smallest.

    Args:
      held: ``[fillings, 2 * devices]`` sizes, the largest first, zeros at the end.
      parts: ``[devices]`` sizes that come to them.
      capacity: of each device.
    """
    devices = len(parts)
    own = np.broadcast_to(parts, (len(held), devices))
    held = np.sort(np.concatenate([held, own], axis=1), axis=1)[:, ::-1]
    held, left = held[:, : 2 * devices], held[:, 2 * devices :]
    pairs = held[:, :devices] + held[:, : devices - 1 : -1]
    fits = (left == 0).all(axis=1) & (pairs <= capacity).all(axis=1)
    return held, np.asarray(fits)


def heaviest(fillings: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """``[classes]`` weights with which no filling weighs more than 1, and ``mean`` as
    much as it can: the prices of a mixture of fillings that holds the mean."""
    found = linprog(
        np.ones(len(fillings) - 1),
        -fillings[1:].T,
        -mean,
        method="highs-ds",
        options={"presolve": False},
    )
    if found.x is None:
        return np.zeros(len(mean))
    prices = -found.ineqlin.marginals
    weights = np.where(prices > 1e-7, prices, 0.0)
    return weights / max(1.0, (fillings @ weights).max()) * (1 - 1e-9)


def shrinking(
    fillings: np.ndarray,
    weights: np.ndarray,
    pieces: np.ndarray,
    parts: np.ndarray,
    bins: Bins,
) -> float:
    """A factor for all sizes with which still nothing that weighs more than 1 fits;
    1 where shards are paired."""
    if bins.paired:
        return 1.0
    sizes, capacity = parts.sum(axis=1), bins.capacity * parts.shape[1]
    taken = np.flatnonzero(weights)
    weight = (fillings @ weights)[:, None] + weights[taken]
    size = (fillings @ sizes)[:, None] + sizes[taken]
    room = ((fillings @ pieces)[:, None] + pieces[taken] <= bins.lanes).all(axis=2)
    heavy = room & (weight > 1 + 1e-9)
    # What weighs less than that but does not fit needs at least one more.
    light = room & ~heavy & (size > capacity)
    least = min(
        size[heavy].min(initial=np.inf),
        size[light].min(initial=np.inf) + sizes[taken].min(),
    )
    return min(1.0, capacity / least * (1 + 1e-9)) if np.isfinite(least) else 1.0
