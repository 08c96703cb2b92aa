"""A batch on the devices, sharded by samples: what a step takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.data import Batch, DataError
from embark_jax.planner import MESH_AXES, Plan
from embark_jax.tables import PADDING_ID


class DeviceBatch(NamedTuple):
    """A batch on the devices, sharded by samples; fields as in ``data.Batch``."""

    dense: jax.Array
    ids: Mapping[str, jax.Array]
    weights: Mapping[str, jax.Array]
    labels: jax.Array


def abstract_batch(
    plan: Plan, mesh: Mesh, dense_features: int, wide: Collection[str] = ()
) -> DeviceBatch:
    """Shapes and shardings of a batch; nothing is allocated.

    Args:
      plan: its features and batch size.
      mesh: of the plan.
      dense_features: columns of ``dense``.
      wide: features whose ids are int64, not int32.
    """
    by_sample = NamedSharding(mesh, PartitionSpec(MESH_AXES))

    def of(shape, dtype=jnp.float32) -> Any:
        shape = (plan.batch_size, *shape)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=by_sample)

    ids = {
        f.name: of((f.hotness,), jnp.int64 if f.name in wide else jnp.int32)
        for f in plan.features
    }
    weights = {f.name: of((f.hotness,)) for f in plan.features if f.weighted}
    return DeviceBatch(of((dense_features,)), ids, weights, of(()))


def check_batch(plan: Plan, batch: DeviceBatch, micro_batches: int) -> None:
    """Checks dense values and labels by their shapes and types alone, as when a step is
    traced; ``EmbeddingCollection.route`` checks ids and weights.

    Raises:
      ValueError: if they are not float32, ``[batch, dense_features]`` and ``[batch]``.
    """
    samples = plan.batch_size * micro_batches
    problems = [
        f"{name} are {array.dtype} of shape {array.shape}, must be float32 of shape "
        f"{shape}"
        for name, array, axes, shape in (
            ("dense values", batch.dense, 2, f"[{samples}, dense features]"),
            ("labels", batch.labels, 1, f"[{samples}]"),
        )
        if array.dtype != jnp.float32 or array.ndim != axes or array.shape[0] != samples
    ]
    if problems:
        raise ValueError("; ".join(problems))


def put_batch(batch: Batch, mesh: Mesh) -> DeviceBatch:
    """Copies a checked batch to the devices, sharded by samples.

    In a run of several processes each gives its own part, and all get the whole batch.
    """
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def put(array):
        # 64-bit ids stay what they are; elsewhere JAX would cut them to 32 bits.
        with jax.enable_x64(array.dtype == np.int64):
            return jax.make_array_from_process_local_data(sharding, array)

    ids = {name: put(value) for name, value in batch.ids.items()}
    weights = {name: put(value) for name, value in batch.weights.items()}
    return DeviceBatch(put(batch.dense), ids, weights, put(batch.labels))


def own_part(batch: Batch, size: int) -> Batch:
    """This process's part of a batch, which empty samples fill up to ``size``.

    Raises:
      DataError: if it has more samples.
    """
    missing = size - len(batch)
    if missing < 0:
        raise DataError(
            f"batch has {len(batch)} samples, must have at most {size}: the plan is "
            "made for so many"
        )
    part = size // jax.process_count()
    first = part * jax.process_index()

    def cut(array, fill):
        if missing:
            rows = ((0, missing),) + ((0, 0),) * (array.ndim - 1)
            array = np.pad(array, rows, constant_values=fill)
        return array[first : first + part]

    return dataclasses.replace(
        batch,
        dense=cut(batch.dense, 0),
        ids={name: cut(ids, PADDING_ID) for name, ids in batch.ids.items()},
        labels=cut(batch.labels, 0),
        weights={name: cut(value, 0) for name, value in batch.weights.items()},
    )
