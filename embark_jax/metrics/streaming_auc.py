"""AUC of training batches, from a histogram of their logits on the devices.

``metrics.pointwise`` computes the exact AUC: it sorts all logits on the host, too much
work for anything but an evaluation. Here each device counts its own logits in bins,
which costs it one scatter in several steps, and 8 MB come to the host when asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MAX_ERROR = 1e-3
"""Largest error of a reported AUC."""
_BITS = 20
"""Bits of a logit that choose its bin: sign, exponent and 11 of the mantissa. A bin is
as wide as 0.05 % of its logits."""
_BINS = 2**_BITS
_AT_ONCE = 10
"""Batches that are counted together, as each call of a program costs the host time."""
_SOFT = 2 * _BINS
"""The element behind the bins of label 0 and of label 1, for labels between them."""


class TrainingAuc:
    """AUC, for each label of a sample, of the batches that were added since it was last
    taken."""

    def __init__(self):
        self._counts: jax.Array | None = None
        self._programs: _Programs | None = None
        self._waiting: list[tuple[jax.Array, jax.Array]] = []

    def add(self, logits: jax.Array, labels: jax.Array) -> None:
        """Adds a batch; waits for nothing.

        Args:
          logits, labels: ``[batch]`` or ``[batch, tasks]``, sharded by samples over all
            devices of a mesh; always of the same number of tasks.
        """
        self._waiting.append((logits, labels))
        if len(self._waiting) == _AT_ONCE:
            self._count()

    def _count(self) -> None:
        """Counts the waiting batches; others make up the number, and do not count."""
        batches, self._waiting = self._waiting, []
        if self._programs is None or self._counts is None:
            sharding = batches[0][0].sharding
            assert isinstance(sharding, NamedSharding)
            assert isinstance(sharding.mesh, Mesh)
            self._programs = _programs(
                sharding.mesh, math.prod(batches[0][1].shape[1:])
            )
            self._counts = self._programs.empty()
        filled = [*batches, *batches[:1] * (_AT_ONCE - len(batches))]
        logits, labels = zip(*filled, strict=True)
        number = np.int32(len(batches))
        self._counts = self._programs.count(self._counts, number, logits, labels)

    def take(self) -> list[float | None]:
        """Returns the AUC of each task, within MAX_ERROR of the exact one; the next
        begin here.

        Logits that share a bin count as ties, so the error is at most half of the share
        of pairs, of a positive and a negative sample, that do.

        Returns:
          The AUCs, or nothing if no batch was added; None if the error may exceed
          MAX_ERROR, as where all logits are nearly the same; if all labels are equal;
          or if some are soft, neither 0 nor 1.
        """
        if self._waiting:
            self._count()
        if self._programs is None or self._counts is None:
            return []
        total = np.asarray(self._programs.total(self._counts))
        self._counts = None
        return list(map(_auc, total))


def _auc(counts: np.ndarray) -> float | None:
    negative, positive = counts[:_BINS], counts[_BINS:_SOFT]
    soft = counts[_SOFT]
    filled = np.flatnonzero((negative != 0) | (positive != 0))  # few of all bins
    negative, positive = (
        counts_of_label[filled].astype(float)
        for counts_of_label in (negative, positive)
    )
    pairs = negative.sum() * positive.sum()
    ties = positive @ negative / 2
    if soft or not pairs or ties > MAX_ERROR * pairs:
        return None
    below = np.cumsum(negative) - negative
    return float((positive @ below + ties) / pairs)


class _Programs(NamedTuple):
    """Functions that make counts, ``[devices, tasks, 2 * bins + 1]`` int32, add to
    them, and sum them over the devices."""

    empty: Callable[[], jax.Array]
    count: Callable[..., jax.Array]
    total: Callable[[jax.Array], jax.Array]


@functools.lru_cache(maxsize=4)
def _programs(mesh: Mesh, tasks: int) -> _Programs:
    by_device = PartitionSpec(mesh.axis_names)

    def empty():
        return jnp.zeros((mesh.size, tasks, _SOFT + 1), jnp.int32)

    def count(counts, number, logits, labels):
        logits, labels = (
            jnp.stack(batches).reshape(_AT_ONCE, -1, tasks)
            for batches in (logits, labels)
        )
        bins = jnp.where(labels == 1, _BINS, 0) + _bin_of(logits)
        bins = jnp.where((labels == 0) | (labels == 1), bins, _SOFT)
        counted = jnp.arange(_AT_ONCE)[:, None, None] < number
        bins = jnp.where(counted, bins, _SOFT + 1)
        return counts.at[0, jnp.arange(tasks), bins].add(1, mode="drop")

    def total(counts):
        return counts.sum(axis=0, dtype=jnp.int32)

    in_specs = by_device, PartitionSpec(), by_device, by_device
    add = jax.shard_map(count, mesh=mesh, in_specs=in_specs, out_specs=by_device)
    return _Programs(
        jax.jit(empty, out_shardings=NamedSharding(mesh, by_device)),
        jax.jit(add, donate_argnums=0),
        jax.jit(total, out_shardings=NamedSharding(mesh, PartitionSpec())),
    )


def _bin_of(logits: jax.Array) -> jax.Array:
    """Returns int32 bins, in the order of the logits."""
    bits = lax.bitcast_convert_type(logits, jnp.uint32)
    negative = bits >> 31 == 1
    key = jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))
    return (key >> (32 - _BITS)).astype(jnp.int32)
