"""The embeddings of a batch: one array for all pooled features of a dim.

So what is done to embeddings and their gradients is a few operations for each dim and
storage, and the program does not grow with the number of features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from embark_jax.embedding.batch_ids import add_columns, take_columns
from embark_jax.embedding.indexing import FeatureBlock, StorageIndex
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, embedding_shapes

PooledFeatures = Mapping[int, Sequence[FeatureSpec]]
"""The pooled features of each dim, in their order in ``Lookups``: by name."""


class Lookups(NamedTuple):
    """The embeddings of a batch as they are looked up, and as their gradients return.

    Attributes:
      pooled: for each dim ``[batch, (room + features) * dim]``, the pooled embeddings,
        of the dtype that they are looked up in, after room for other values.
      sequences: for each sequence the rows of its events, ``[total, dim]`` float32.
    """

    pooled: dict[int, jax.Array]
    sequences: dict[str, jax.Array]


def pooled_features(plan: Plan) -> PooledFeatures:
    """Returns the pooled features of a plan by dim."""
    shapes = embedding_shapes(plan.tables, plan.features)
    by_dim: dict[int, list[FeatureSpec]] = {}
    for feature in sorted(plan.features, key=lambda feature: feature.name):
        if not feature.sequence:
            by_dim.setdefault(shapes[feature.name][0], []).append(feature)
    return by_dim


def split(
    pooled: PooledFeatures, lookups: Lookups, room: int = 0
) -> dict[str, jax.Array]:
    """Returns the embeddings of each feature, ``[batch, dim]``, or of a sequence those
    of its events."""
    embeddings = dict(lookups.sequences)
    for dim, features in pooled.items():
        # Its gradient is one concatenation; that of slices would be many sums.
        values = lookups.pooled[dim][:, room * dim :]
        columns = lax.split(values, [dim] * len(features), axis=1)
        embeddings |= zip((f.name for f in features), columns, strict=True)
    return embeddings


def join(pooled: PooledFeatures, lookups: Lookups) -> jax.Array:
    """Returns the embeddings of pooled features in one array, ``[batch, room + sum of
    dims]``, by name."""
    joined = jnp.concatenate([lookups.pooled[dim] for dim in pooled], axis=1)
    if len(pooled) == 1:
        return joined
    dims = [(f.name, dim) for dim, features in pooled.items() for f in features]
    ends = np.cumsum([dim for _, dim in dims])
    runs = math.gcd(*pooled)  # neighbours in both orders
    begin = {name: end - dim for (name, dim), end in zip(dims, ends, strict=True)}
    columns = [
        np.arange(begin[name], begin[name] + dim, runs) for name, dim in sorted(dims)
    ]
    order = np.concatenate(columns) // runs
    return _permute(joined.reshape(len(joined), -1, runs), order).reshape(joined.shape)


def _permute(matrix: jax.Array, order: np.ndarray) -> jax.Array:
    """Returns the columns of ``[rows, n, …]`` in another order. The gradient of a
    gather would be a scatter; this one is a gather, too."""
    permute = jax.custom_vjp(lambda matrix: take_columns(matrix, order))
    permute.defvjp(
        lambda matrix: (take_columns(matrix, order), None),
        lambda _, gradient: (take_columns(gradient, np.argsort(order)),),
    )
    return permute(matrix)


def sum_outputs(
    outputs: Iterable[tuple[FeatureBlock, jax.Array]],
    pooled: PooledFeatures,
    mean_factors: Mapping[int, jax.Array],
    batch: int,
    dtype: DTypeLike,
    room: int = 0,
) -> Lookups:
    """Adds up what storages have of each feature: those of hot and of cold rows, where
    a table has both.

    Args:
      outputs: blocks of all storages' indexes, and their ``[rows, outputs, width]``.
      pooled: the pooled features.
      mean_factors: ``[batch, features]`` factors of the sums, of dims that have some.
      batch: samples of a device.
      dtype: that of pooled embeddings.
      room: outputs of zeros before the features.
    """
    parts: dict[int, list[jax.Array]] = {dim: [] for dim in pooled}
    outputs_of: dict[int, list[Any]] = {dim: [] for dim in pooled}
    sequences: dict[str, jax.Array] = {}
    for block, sums in outputs:
        for dim, (features, columns) in block.by_dim.items():
            columns = slice(columns.start - block.room, columns.stop)
            part = sums[:, columns].reshape(len(sums), -1, dim).astype(jnp.float32)
            if block.sequence:
                before = sequences.get(features[0], 0.0)
                sequences[features[0]] = before + part[:, 0]
            else:
                parts[dim].append(part)
                outputs_of[dim] += [*range(room if block.room else 0), *features]
    sums = {}
    for dim, features in pooled.items():
        total = jnp.zeros((batch, room + len(features), dim), jnp.float32)
        if parts[dim]:
            joined = jnp.concatenate(parts[dim], axis=1)
            places = _places(features, outputs_of[dim], room)
            total = add_columns(joined, places, room + len(features))
        if dim in mean_factors:
            total = total * _after(room, mean_factors[dim])[..., None]
        sums[dim] = total.reshape(batch, -1).astype(dtype)
    return Lookups(sums, sequences)


def _places(
    features: Sequence[FeatureSpec], outputs: Sequence[Any], room: int
) -> np.ndarray:
    """Returns the places of outputs, which are of features by name or of the room."""
    order = [*range(room), *(f.name for f in features)]
    return np.array([order.index(output) for output in outputs])


def _after(room: int, of_features: jax.Array) -> jax.Array:
    """Returns ``[batch, room + features]``, with zeros in the room."""
    return jnp.pad(of_features, ((0, 0), (room, 0))) if room else of_features


def by_sums(
    gradients: Lookups,
    pooled: PooledFeatures,
    mean_factors: Mapping[int, jax.Array],
    room: int = 0,
) -> Lookups:
    """Returns gradients by the sums of rows, pooled ``[batch, room + features, dim]``:
    those of means float32, others as they are."""
    of_sums = {}
    for dim in pooled:
        gradient = gradients.pooled[dim]
        gradient = gradient.reshape(len(gradient), -1, dim)
        if dim in mean_factors:
            factors = _after(room, mean_factors[dim])[..., None]
            gradient = gradient.astype(jnp.float32) * factors
        of_sums[dim] = gradient
    return Lookups(of_sums, gradients.sequences)


def by_outputs(
    index: StorageIndex, gradients: Lookups, pooled: PooledFeatures, room: int = 0
) -> list[jax.Array]:
    """Returns gradients by a storage's outputs, for each block of its index ``[rows,
    outputs, width]``, of those by sums."""
    by_block = []
    for block in index.blocks:
        parts = []
        for dim, (features, _) in block.by_dim.items():
            if block.sequence:
                part = gradients.sequences[features[0]]
            else:
                outputs = [*range(room if block.room else 0), *features]
                places = _places(pooled[dim], outputs, room)
                part = take_columns(gradients.pooled[dim], places)
            parts.append(part.reshape(len(part), -1, index.storage.width))
        by_block.append(jnp.concatenate(parts, axis=1))
    return by_block
