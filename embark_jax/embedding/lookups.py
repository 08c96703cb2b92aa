"""The embeddings of a batch: one array for all pooled features.

So what is done to embeddings and their gradients is a few operations for each storage,
and the program does not grow with the number of features.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from embark_jax.embedding.batch_ids import add_columns, take_columns
from embark_jax.embedding.indexing import FeatureBlock, StorageIndex
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, embedding_shapes


class Lookups(NamedTuple):
    """The embeddings of a batch as they are looked up, and as their gradients return.

    Attributes:
      pooled: ``[batch, room + sum of dims]``, the pooled embeddings by name, of the
        dtype that they are looked up in, after room for other values.
      sequences: for each sequence the rows of its events, ``[total, dim]`` float32.
    """

    pooled: jax.Array
    sequences: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class PooledColumns:
    """Where pooled features lie in ``Lookups.pooled``. Features of several dims are put
    there by *runs*: as many neighbouring values as divide every dim.

    Attributes:
      features: the features, sorted by name.
      dims: ``[features]`` dim of each.
      room: runs before those of the features, for other values.
    """

    features: tuple[FeatureSpec, ...]
    dims: np.ndarray
    room: int

    @classmethod
    def of(cls, plan: Plan, beside: int) -> PooledColumns:
        """Returns the columns of a plan's features, with room for other values of this
        width if all features are pooled, and of one dim that divides it."""
        shapes = embedding_shapes(plan.tables, plan.features)
        features = sorted(
            (feature for feature in plan.features if not feature.sequence),
            key=lambda feature: feature.name,
        )
        dims = np.array([shapes[feature.name][0] for feature in features], int)
        room = 0
        if len(set(dims.tolist())) == 1 and not plan.events and beside % dims[0] == 0:
            room = beside // dims[0]
        return cls(tuple(features), dims, int(room))

    @property
    def run(self) -> int:
        """Values of a run."""
        return math.gcd(*self.dims.tolist()) or 1

    @property
    def runs(self) -> int:
        return self.room + int(self.dims.sum()) // self.run

    @functools.cached_property
    def _runs_of(self) -> dict[str, range]:
        ends = self.room + np.cumsum(self.dims) // self.run
        begins = ends - self.dims // self.run
        return {
            feature.name: range(begin, end)
            for feature, begin, end in zip(self.features, begins, ends, strict=True)
        }

    def places(self, block: FeatureBlock) -> np.ndarray:
        """Returns the runs of a block's outputs."""
        runs = list(range(self.room if block.room else 0))
        for feature in block.features:
            runs += self._runs_of[feature.feature.name]
        return np.array(runs)

    def by_run(self, values: jax.Array) -> jax.Array:
        """Returns ``[batch, features]`` values by run; zero in the room."""
        columns = np.repeat(np.arange(len(self.dims)), self.dims // self.run)
        by_run = take_columns(values, columns)
        return jnp.pad(by_run, ((0, 0), (self.room, 0))) if self.room else by_run

    def in_runs(self, pooled: jax.Array) -> jax.Array:
        """Returns ``[batch, runs, values of a run]`` of ``Lookups.pooled``."""
        return pooled.reshape(len(pooled), self.runs, self.run)


def split(pooled: PooledColumns, lookups: Lookups) -> dict[str, jax.Array]:
    """Returns the embeddings of each feature, ``[batch, dim]``, or of a sequence those
    of its events."""
    # Its gradient is one concatenation; that of slices would be many sums.
    values = lookups.pooled[:, pooled.room * pooled.run :]
    columns = lax.split(values, pooled.dims.tolist(), axis=1)
    names = (feature.name for feature in pooled.features)
    return dict(lookups.sequences) | dict(zip(names, columns, strict=True))


def sum_outputs(
    outputs: Iterable[tuple[FeatureBlock, jax.Array]],
    pooled: PooledColumns,
    mean_factors: jax.Array | None,
    batch: int,
    dtype: DTypeLike,
) -> Lookups:
    """Adds up what storages have of each feature: those of hot and of cold rows, where
    a table has both.

    Args:
      outputs: blocks of all storages' indexes, and their ``[rows, outputs, width]``.
      pooled: columns of the pooled features.
      mean_factors: ``[batch, features]`` factors of the sums, if some have a mean.
      batch: samples of a device.
      dtype: that of pooled embeddings.
    """
    parts: list[jax.Array] = []
    places: list[np.ndarray] = []
    sequences: dict[str, jax.Array] = {}
    for block, sums in outputs:
        sums = sums.astype(jnp.float32)
        if block.sequence:
            name = block.features[0].feature.name
            sequences[name] = sequences.get(name, 0.0) + sums.reshape(len(sums), -1)
        else:
            parts.append(sums.reshape(batch, -1, pooled.run))
            places.append(pooled.places(block))
    total = jnp.zeros((batch, pooled.runs, pooled.run), jnp.float32)
    if parts:
        joined = jnp.concatenate(parts, axis=1)
        total = add_columns(joined, np.concatenate(places), pooled.runs)
    if mean_factors is not None:
        total *= pooled.by_run(mean_factors)[..., None]
    return Lookups(total.reshape(batch, -1).astype(dtype), sequences)


def by_sums(
    gradients: Lookups, pooled: PooledColumns, mean_factors: jax.Array | None
) -> Lookups:
    """Returns gradients by the sums of rows, pooled ones in runs: those of means
    float32, others as they are."""
    gradient = pooled.in_runs(gradients.pooled)
    if mean_factors is not None:
        factors = pooled.by_run(mean_factors)[..., None]
        gradient = gradient.astype(jnp.float32) * factors
    return Lookups(gradient, gradients.sequences)


def by_outputs(
    index: StorageIndex, gradients: Lookups, pooled: PooledColumns
) -> list[jax.Array]:
    """Returns gradients by a storage's outputs, for each block of its index ``[rows,
    outputs, width]``, of those by sums."""
    by_block = []
    for block in index.blocks:
        if block.sequence:
            gradient = gradients.sequences[block.features[0].feature.name]
        else:
            gradient = take_columns(gradients.pooled, pooled.places(block))
        shape = len(gradient), block.outputs, index.storage.width
        by_block.append(gradient.reshape(shape))
    return by_block
