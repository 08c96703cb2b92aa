"""Collectives that carry ids, rows and gradients between devices."""

from __future__ import annotations

import math

import jax
from jax import lax

from embark_jax.planner import MESH_AXES


def exchange(values: jax.Array) -> jax.Array:
    """Sends ``values[d]`` to device d; row s of the result came from device s.

    Args:
      values: ``[devices, ...]``, local to each device of the mesh.
    """
    if values.shape[0] == 1:
        return values
    return lax.all_to_all(values, MESH_AXES, split_axis=0, concat_axis=0, tiled=True)


def gather(values: jax.Array) -> jax.Array:
    """``[n, ...]`` of each device to ``[devices * n, ...]``, equal on all."""
    return lax.all_gather(values, MESH_AXES, axis=0, tiled=True)


def own_part(gathered: jax.Array) -> jax.Array:
    """What ``gather`` took from this device: its ``[n, ...]`` of all."""
    devices = math.prod(lax.axis_size(axis) for axis in MESH_AXES)
    n = gathered.shape[0] // devices
    return lax.dynamic_slice_in_dim(gathered, lax.axis_index(MESH_AXES) * n, n)


def sum_over_devices(values: jax.Array) -> jax.Array:
    """The sum of ``values`` over all devices, equal on all."""
    return lax.psum(values, MESH_AXES)


def largest_over_devices(values: jax.Array) -> jax.Array:
    """The maximum of ``values`` over all devices, equal on all."""
    return lax.pmax(values, MESH_AXES)
