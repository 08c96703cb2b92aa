"""AUC of training batches, from a histogram of their logits on the devices.

The exact one, of ``train.metrics``, sorts all logits on the host; so much is done for
an evaluation alone. Here each device counts its own logits in bins, which costs it one
scatter a step, and 8 MB come to the host when somebody asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MAX_ERROR = 1e-3
"""Of an AUC that is told."""
_BITS = 20
"""Of a logit that choose its bin: sign, exponent and 11 of the mantissa. A bin is as
wide as 0.05 % of its logits."""
_BINS = 2**_BITS
_SOFT = 2 * _BINS
"""The place behind the bins of label 0 and of label 1, for labels between them."""


class TrainingAuc:
    """AUC of the batches that were added since it was last told."""

    def __init__(self):
        self._counts: jax.Array | None = None
        self._mesh: Mesh | None = None

    def add(self, logits: jax.Array, labels: jax.Array) -> None:
        """Adds a batch; waits for nothing.

        Args:
          logits, labels: ``[batch]``, sharded by samples over all devices of a mesh.
        """
        if self._counts is None:
            assert isinstance(logits.sharding, NamedSharding)
            self._mesh = logits.sharding.mesh
            self._counts = _programs(self._mesh)[0]()
        _, count, _ = _programs(self._mesh)
        self._counts = count(self._counts, logits, labels)

    def take(self) -> float | None:
        """The AUC, at most MAX_ERROR from the exact one; the next one begins here.

        Logits that share a bin count as ties, so the error is at most half of the share
        of pairs, of a positive and a negative sample, that do.

        Returns:
          None if that may be more than MAX_ERROR, as where all logits are nearly the
          same; if all labels are equal; or if some are soft, neither 0 nor 1.
        """
        counts, self._counts = self._counts, None
        if counts is None:
            return None
        total = np.asarray(_programs(self._mesh)[2](counts)).astype(np.float64)
        negative, positive, soft = total[:_BINS], total[_BINS:_SOFT], total[_SOFT]
        pairs = negative.sum() * positive.sum()
        ties = positive @ negative / 2
        if soft or not pairs or ties > MAX_ERROR * pairs:
            return None
        below = np.cumsum(negative) - negative
        return float((positive @ below + ties) / pairs)


@functools.lru_cache(maxsize=4)
def _programs(mesh: Mesh | None) -> tuple[Callable, Callable, Callable]:
    """Functions that make counts, ``[devices, 2 * bins + 1]`` int32, add to them, and
    sum them over the devices."""
    assert mesh is not None
    by_device = PartitionSpec(mesh.axis_names)

    def empty():
        return jnp.zeros((mesh.size, _SOFT + 1), jnp.int32)

    def count(counts, logits, labels):
        place = jnp.where(labels == 1, _BINS, 0) + _bin_of(logits)
        place = jnp.where((labels == 0) | (labels == 1), place, _SOFT)
        return counts.at[0, place].add(1)

    add = jax.shard_map(
        count, mesh=mesh, in_specs=(by_device,) * 3, out_specs=by_device
    )

    def total(counts):
        return counts.sum(axis=0, dtype=jnp.int32)

    replicated = NamedSharding(mesh, PartitionSpec())
    return (
        jax.jit(empty, out_shardings=NamedSharding(mesh, by_device)),
        jax.jit(add, donate_argnums=0),
        jax.jit(total, out_shardings=replicated),
    )


def _bin_of(logits: jax.Array) -> jax.Array:
    """``[batch]`` int32 bins, in the order of the logits."""
    bits = lax.bitcast_convert_type(logits, jnp.uint32)
    negative = bits >> 31 == 1
    key = jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))
    return (key >> (32 - _BITS)).astype(jnp.int32)
