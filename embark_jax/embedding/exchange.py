"""Collectives that carry ids, rows and gradients between devices.

An exchange between all devices is flat, one all-to-all, or hierarchical: first inside
each node, to the GPU of the destination's rank, then between the GPUs of equal rank of
all nodes. Hierarchical messages between nodes are ``gpus_per_node`` times fewer and
larger, and partial sums are added up inside the node before they leave it (EMBark,
https://doi.org/10.1145/3640457.3688111).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from embark_jax.embedding.partial_sums import PartialSums, merge_in_nodes
from embark_jax.plans import options
from embark_jax.plans.options import WireFormat
from embark_jax.plans.plan import MESH_AXES


class Exchange(Protocol):
    """The way that ids, rows, sums and gradients of one storage travel. ``devices`` are
    all of the mesh, in its order; ``wire`` is the format in which float32 rows travel,
    if there is another device."""

    def all_to_all(self, values: jax.Array, wire: WireFormat = "float32") -> jax.Array:
        """Sends ``values[d]`` to device d; row s of the result came from device s.

        Args:
          values: array ``[devices, ...]``, local to each device of the mesh.
          wire: format of the values; float32 takes any values as they are.
        """
        ...

    def sums_to_requesters(self, sums: jax.Array, wire: WireFormat) -> jax.Array:
        """Turns partial sums ``[devices, batch, ranks, width]``, which this device
        pooled for each device, into sums ``[batch, outputs, width]`` of its own
        batch."""
        ...

    def gradients_to_owners(self, gradients: jax.Array, wire: WireFormat) -> jax.Array:
        """Turns gradients ``[batch, outputs, width]`` of this device's batch into those
        of its sums in the batches of all devices,
        ``[devices, batch, ranks, width]``."""
        ...


class FlatExchange:
    """One all-to-all between all devices; see ``Exchange``."""

    def __init__(self, partial_sums: PartialSums, nodes: int, gpus_per_node: int):
        self.partial_sums = partial_sums

    def all_to_all(self, values, wire: WireFormat = "float32"):
        return _all_to_all(values, MESH_AXES, 0, wire)

    def sums_to_requesters(self, sums, wire):
        return self.partial_sums.reduce(self.all_to_all(sums, wire))

    def gradients_to_owners(self, gradients, wire):
        return self.all_to_all(self.partial_sums.scatter(gradients), wire)


class HierarchicalExchange:
    """An all-to-all inside each node, and one along each rail; see ``Exchange``.

    Sums are exchanged inside the node and then added, not reduce-scattered: so a device
    sends only its own sums; a reduce-scatter would also send zeros for those of the
    other GPUs.
    """

    def __init__(self, partial_sums: PartialSums, nodes: int, gpus_per_node: int):
        self.shape = (nodes, gpus_per_node)
        self.ranks = partial_sums.ranks
        self.merging = merge_in_nodes(partial_sums, gpus_per_node)

    def all_to_all(self, values, wire: WireFormat = "float32"):
        staged = values.reshape(*self.shape, *values.shape[1:])
        staged = _inside_node(staged, wire)
        return _along_rail(staged, wire).reshape(values.shape)

    def sums_to_requesters(self, sums, wire):
        staged = _inside_node(sums.reshape(*self.shape, *sums.shape[1:]), wire)
        gpu, rank = jnp.divmod(_of_this_node(self.merging.terms), self.ranks)
        # [node ranks, terms, nodes, batch, width]
        terms = staged.at[:, gpu, :, rank].get(mode="fill", fill_value=0)
        merged = terms.sum(axis=1).transpose(1, 2, 0, 3)
        return self.merging.partial_sums.reduce(_along_rail(merged, wire))

    def gradients_to_owners(self, gradients, wire):
        received = _along_rail(self.merging.partial_sums.scatter(gradients), wire)
        rank = _of_this_node(self.merging.node_rank)
        # [nodes, batch, gpus, ranks, width]
        spread = received.at[:, :, rank].get(mode="fill", fill_value=0)
        staged = _inside_node(spread.transpose(0, 2, 1, 3, 4), wire)
        return staged.reshape(-1, *staged.shape[2:])


EXCHANGES: dict[options.ExchangeName, Callable[[PartialSums, int, int], Exchange]] = {
    "flat": FlatExchange,
    "hierarchical": HierarchicalExchange,
}
"""The registry of exchanges; each is called with partial sums of a storage, the number
of nodes, and that of a node's GPUs."""


def _inside_node(staged: jax.Array, wire: WireFormat) -> jax.Array:
    """Sends each GPU of the node its share of axis 1 of ``[nodes, gpus, ...]``."""
    return _all_to_all(staged, MESH_AXES[1], 1, wire)


def _along_rail(staged: jax.Array, wire: WireFormat) -> jax.Array:
    """Sends the GPU of the same rank of each node its share of ``[nodes, ...]``."""
    return _all_to_all(staged, MESH_AXES[0], 0, wire)


def _all_to_all(
    values: jax.Array, devices: str | tuple[str, ...], axis: int, wire: WireFormat
) -> jax.Array:
    if values.shape[axis] == 1:
        return values
    # Unsigned integers travel, so that no compiler pass widens the values, or rounds
    # them on the other side.
    if wire == "bfloat16":
        values = lax.bitcast_convert_type(values.astype(jnp.bfloat16), jnp.uint16)
    values = lax.all_to_all(
        values, devices, split_axis=axis, concat_axis=axis, tiled=True
    )
    if wire == "bfloat16":
        rounded = lax.bitcast_convert_type(values, jnp.bfloat16)
        values = rounded.astype(jnp.float32)
    return values


def _of_this_node(by_node: jax.typing.ArrayLike) -> jax.Array:
    return jnp.asarray(by_node)[lax.axis_index(MESH_AXES[0])]


def gather(values: jax.Array) -> jax.Array:
    """Joins ``[n, ...]`` of each device to ``[devices * n, ...]``, equal on all."""
    return lax.all_gather(values, MESH_AXES, axis=0, tiled=True)


def own_share(gathered: jax.Array) -> jax.Array:
    """Returns this device's ``[n, ...]`` of the result of ``gather``."""
    devices = math.prod(lax.axis_size(axis) for axis in MESH_AXES)
    n = gathered.shape[0] // devices
    return lax.dynamic_slice_in_dim(gathered, lax.axis_index(MESH_AXES) * n, n)


def own_share_alone(values: jax.Array) -> jax.Array:
    """Returns ``[devices * n]`` zeros with this device's ``[n]`` values at its share.
    If no value is negative, the maximum over devices is what ``gather`` returns."""
    devices, n = math.prod(lax.axis_size(axis) for axis in MESH_AXES), values.shape[0]
    zeros = jnp.zeros(devices * n, values.dtype)
    begin = lax.axis_index(MESH_AXES) * n
    return lax.dynamic_update_slice_in_dim(zeros, values, begin, axis=0)


def sum_over_devices(values: jax.Array, wire: WireFormat = "float32") -> jax.Array:
    """Returns the sum of float32 ``values`` over all devices, equal on all. XLA
    combines it with the sums of dense gradients, which have the same format."""
    return lax.psum(values.astype(wire), MESH_AXES).astype(values.dtype)


@jax.named_scope("id exchange")
def largest_over_devices(values: jax.Array) -> jax.Array:
    """Returns the maximum of ``values`` over all devices, equal on all."""
    return lax.pmax(values, MESH_AXES)
