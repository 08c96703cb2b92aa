"""A batch on the devices, sharded by samples, as a step takes it.

Its micro-batches are equal shares of each device's samples, so that cutting a batch
moves nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.data import Batch, DataError
from embark_jax.data.records import WORD_BYTES, layout
from embark_jax.embedding.arrays import BATCH, MICRO_BATCHES, Routes
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.plans.tables import PADDING_ID


class Columns(NamedTuple):
    """A batch inside a step; fields as in ``data.Batch``."""

    dense: jax.Array
    ids: Mapping[str, jax.Array]
    weights: Mapping[str, jax.Array]
    labels: jax.Array
    sample_weights: jax.Array | None = None
    padding: Mapping[str, jax.Array] = {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceBatch:
    """A batch on the devices, as records: one array, so one copy to each device.

    Attributes:
      words: ``[batch, words]`` int32, sharded by samples.
      layout: layout of a record, as in ``data.records.layout``.
      hot: whether all of its ids are said to be of hot rows: it takes the step that
        exchanges no embeddings, which refuses it if that is wrong.
    """

    words: jax.Array
    layout: np.dtype = dataclasses.field(metadata={"static": True})
    hot: bool = dataclasses.field(default=False, metadata={"static": True})

    def columns(self) -> Columns:
        """Returns its columns, which are slices; call it inside a compiled program."""
        columns = {name: self._column(name) for name in self.layout.names or ()}
        return Columns(
            columns["dense"],
            columns["ids"],
            columns.get("weights", {}),
            columns["label"],
            columns.get("sample_weight"),
            columns.get("padding", {}),
        )

    def _column(self, name: str) -> Any:
        type_, start_bytes = _field(self.layout, name)
        if type_.names is None:
            return self._values(type_, start_bytes)
        fields = {name: _field(type_, name) for name in type_.names}
        return {
            name: self._values(inner, start_bytes + offset_bytes)
            for name, (inner, offset_bytes) in fields.items()
        }

    def _values(self, type_: np.dtype, start_bytes: int) -> jax.Array:
        base, shape = type_.subdtype or (type_, ())
        start, words = start_bytes // WORD_BYTES, type_.itemsize // WORD_BYTES
        values = self.words[:, start : start + words]
        wide = base.itemsize > WORD_BYTES
        if wide:
            values = values.reshape(len(values), *shape, -1)
        with jax.enable_x64(wide):
            values = lax.bitcast_convert_type(values, base)
        return values.reshape(len(values), *shape)


def _field(group: np.dtype, name: str) -> tuple[Any, int]:
    """Returns type and offset of a field; NumPy says more about some."""
    type_, offset_bytes, *_ = cast(Any, group.fields)[name]
    return type_, offset_bytes


def abstract_batch(
    plan: Plan,
    mesh: Mesh,
    dense_features: int,
    wide: Collection[str] = (),
    tasks: int = 0,
) -> DeviceBatch:
    """Returns shapes and shardings of a batch; nothing is allocated.

    Args:
      plan: plan with the features and the batch size.
      mesh: mesh of the plan.
      dense_features: number of columns of ``dense``.
      wide: features whose ids are int64, not int32.
      tasks: number of labels of each sample, if it has several, otherwise 0.
    """
    types = {f.name: np.int64 if f.name in wide else np.int32 for f in plan.features}
    record = layout(
        dense_features,
        tuple((f.name, f.hotness, np.dtype(types[f.name])) for f in plan.features),
        tuple((f.name, f.hotness) for f in plan.features if f.weighted),
        tasks,
    )
    words: Any = jax.ShapeDtypeStruct(
        (plan.batch_size, record.itemsize // WORD_BYTES),
        jnp.int32,
        sharding=NamedSharding(mesh, PartitionSpec(MESH_AXES)),
    )
    return DeviceBatch(words, record)


def check_batch(plan: Plan, batch: DeviceBatch, micro_batches: int) -> None:
    """Checks the number of samples when a step is traced; ``EmbeddingCollection.route``
    checks ids and weights.

    Raises:
      ValueError: if it is not the plan's batch size.
    """
    samples = plan.batch_size * micro_batches
    if len(batch.words) != samples:
        raise ValueError(
            f"batch has {len(batch.words)} samples, must have {samples}: the plan is "
            "made for so many"
        )


def put_batch(batch: Batch, mesh: Mesh, samples: int, hot: bool = False) -> DeviceBatch:
    """Copies a checked batch to the devices, sharded by samples.

    In a run of several processes each gives its own samples, and all get the whole
    batch.

    Args:
      batch: this process's samples.
      mesh: mesh of the plan.
      samples: number of samples of the whole batch.
      hot: as in ``DeviceBatch``.

    Raises:
      DataError: if the number of samples is another.
      ValueError: if an array has another shape or type than a checked batch has.
    """
    share = samples // jax.process_count()
    if len(batch) != share:
        raise DataError(
            f"batch has {len(batch)} samples, must have {share}: the plan is made for "
            "so many in each process"
        )
    records = batch.to_records()
    words = records.view(np.int32).reshape(len(records), -1)
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return DeviceBatch(
        jax.make_array_from_process_local_data(sharding, words), records.dtype, hot
    )


def own_samples(batch: Batch, size: int) -> Batch:
    """Returns this process's samples of a batch, which is filled up to ``size`` with
    empty ones.

    Raises:
      DataError: if the batch has more samples.
    """
    missing = size - len(batch)
    if missing < 0:
        raise DataError(
            f"batch has {len(batch)} samples, must have at most {size}: the plan is "
            "made for so many"
        )
    records = batch.to_records()
    if missing:
        empty = np.zeros(missing, records.dtype)
        for name in batch.ids:
            empty["ids"][name] = PADDING_ID
        for name in batch.padding:
            empty["padding"][name] = 1
        records = np.concatenate([records, empty])
    share = size // jax.process_count()
    first = share * jax.process_index()
    return Batch.of(records[first : first + share], batch.locate)


@jax.named_scope("sort")
def route_batch(
    collection: EmbeddingCollection, batch: DeviceBatch, micro_batches: int = 1
) -> Routes:
    """Routes a batch, under jit; several micro-batches lie along a first axis of the
    result."""
    columns = batch.columns()
    if micro_batches == 1:
        return collection.route(columns.ids, columns.weights, columns.padding)
    return lax.map(
        lambda cut: collection.route(cut.ids, cut.weights, cut.padding),
        cut_batch(collection, columns, micro_batches),
    )


def cut_batch(
    collection: EmbeddingCollection, batch: Columns, micro_batches: int
) -> Columns:
    """Cuts ``[batch, …]`` into ``[micro_batches, batch / micro_batches, …]``."""

    def cut(samples):
        def cut_column(column):
            size = len(column) // micro_batches
            return column.reshape(micro_batches, size, *column.shape[1:])

        return jax.tree.map(cut_column, samples)

    return jax.shard_map(
        cut, mesh=collection.mesh, in_specs=BATCH, out_specs=MICRO_BATCHES
    )(batch)


def join_batch(collection: EmbeddingCollection, values: jax.Array) -> jax.Array:
    """Joins ``[micro_batches, n, …]`` back to ``[batch, …]``."""
    return jax.shard_map(
        lambda cut: cut.reshape(-1, *cut.shape[2:]),
        mesh=collection.mesh,
        in_specs=MICRO_BATCHES,
        out_specs=BATCH,
    )(values)
