"""The arrays of a collection: rows, optimizer state, and the routes of a batch."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax.sharding import PartitionSpec

from embark_jax.embedding.cluster import Route
from embark_jax.embedding.sequences import Spans
from embark_jax.plans.plan import MESH_AXES

BATCH = PartitionSpec(MESH_AXES)
"""Samples over all devices."""

Storages = dict[str, jax.Array]
"""``[devices * slots_per_device, width]`` arrays by storage name, of their tables'
dtype; a replicated one is ``[slots_per_device, width]``."""
OptimizerState = dict[str, dict[str, jax.Array]]
"""Arrays by storage name and state name, shaped like the storage or ``[…, 1]``."""


class TableState(NamedTuple):
    """All arrays of the tables: rows, and what optimizers keep of them."""

    storages: Storages
    optimizer: OptimizerState


class Routes(NamedTuple):
    """The routes of a batch's ids; they depend on no parameter.

    Attributes:
      storages: route of each storage's cluster, by storage name.
      mean_factors: for each feature with mean pooling ``[batch]``: one over the total
        weight of a bag.
      spans: for each sequence, where its events lie.
      needed: for each capacity of the plan the ``[]`` int32 that the batch needs.
      bad_ids: ``[devices, features]`` int32, in the order of the plan's features:
        number of ids in each device's samples that are neither a row of their table nor
        padding. They are treated as padding.
      any_bad: ``[]`` bool: whether any device has a bad id.
    """

    storages: dict[str, Route]
    mean_factors: dict[str, jax.Array]
    spans: dict[str, Spans]
    needed: dict[str, jax.Array]
    bad_ids: jax.Array
    any_bad: jax.Array
