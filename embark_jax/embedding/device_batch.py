"""A batch on the devices, sharded by samples, as a step takes it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.data import Batch, DataError, Jagged
from embark_jax.data.layout import LONG_IDS, NUMBERS, Columns, Layout
from embark_jax.embedding.collection import EmbeddingCollection, Routes
from embark_jax.embedding.sequences import Spans
from embark_jax.plans.plan import MESH_AXES, Plan

Matrices = dict[str, jax.Array]
"""Matrices of ``data.layout``, sharded by their rows; ids of 64 bits are pairs of
int32."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceBatch:
    """A batch on the devices, as it lies on the host.

    Attributes:
      samples: matrices of ``[batch]`` samples.
      layout: their columns.
      hot: whether all of its ids are said to be of hot rows: it takes the step that
        exchanges no embeddings, which refuses it if that is wrong.
      events: matrices of ``[devices]`` rows: the events of each device's samples.
      layout_of_events: their columns; those of a sequence are as many as there is room
        for.
    """

    samples: Matrices
    layout: Layout = dataclasses.field(metadata={"static": True})
    hot: bool = dataclasses.field(default=False, metadata={"static": True})
    events: Matrices = dataclasses.field(default_factory=dict)
    layout_of_events: Layout = dataclasses.field(
        default=Layout(labels=0), metadata={"static": True}
    )

    def __len__(self) -> int:
        return len(next(iter(self.samples.values())))

    def columns(self) -> Columns:
        """Returns its columns, which are slices; call it inside a compiled program.
        Those of sequences are packed, ``[total]``."""
        columns = _columns_of(self.samples, self.layout)
        events = _columns_of(self.events, self.layout_of_events)
        with jax.enable_x64(True):
            ids, weights = (
                {name: x.reshape(-1) for name, x in of_kind.items()}
                for of_kind in (events.ids, events.weights)
            )
        return columns._replace(
            ids={**columns.ids, **ids},
            weights={**columns.weights, **weights},
            spans={
                name: Spans(*jnp.unstack(spans, axis=1))
                for name, spans in columns.spans.items()
            },
        )

    def has_room(self, events: Mapping[str, int]) -> bool:
        """Says whether the packed sequences have this room for the events of a device,
        no less and no more."""
        return all(events[n] == room for n, room, _ in self.layout_of_events.ids)


def _columns_of(matrices: Matrices, layout: Layout) -> Columns:
    with jax.enable_x64(LONG_IDS in matrices):
        if LONG_IDS in matrices:
            pairs = matrices[LONG_IDS].reshape(len(matrices[LONG_IDS]), -1, 2)
            long_ids = lax.bitcast_convert_type(pairs, jnp.int64)
            matrices = {**matrices, LONG_IDS: long_ids}
        return layout.columns(matrices)


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
    pooled = [f for f in plan.features if not f.sequence]
    sequences = [f for f in plan.features if f.sequence]
    layout = Layout(
        tasks or 1,
        dense_features,
        tuple((f.name, f.hotness, f.name in wide) for f in pooled),
        tuple((f.name, f.hotness) for f in pooled if f.weighted),
        spans=tuple(f.name for f in sequences),
    )
    room = plan.events
    of_events = Layout(
        labels=0,
        ids=tuple((f.name, room[f.name], f.name in wide) for f in sequences),
        weights=tuple((f.name, room[f.name]) for f in sequences if f.weighted),
    )
    sharding = NamedSharding(mesh, PartitionSpec(MESH_AXES))

    def matrices(rows: int, layout: Layout) -> Any:
        return {
            name: jax.ShapeDtypeStruct(
                (rows, width * (2 if name == LONG_IDS else 1)),
                jnp.float32 if name == NUMBERS else jnp.int32,
                sharding=sharding,
            )
            for name, width in layout.widths.items()
        }

    samples = matrices(plan.batch_size, layout)
    events = matrices(plan.devices, of_events)
    return DeviceBatch(samples, layout, False, events, of_events)


def abstract_routes(collection: EmbeddingCollection, batch: DeviceBatch) -> Routes:
    """Returns shapes and shardings of the routes of a batch; nothing is allocated."""
    shapes = jax.eval_shape(functools.partial(route_batch, collection), batch)

    def sharded(spec: PartitionSpec, arrays: Any) -> Any:
        sharding = NamedSharding(collection.mesh, spec)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding
            ),
            arrays,
        )

    return jax.tree.map(sharded, collection.route_specs, shapes)


def put_batch(batch: Batch, plan: Plan, mesh: Mesh, hot: bool = False) -> DeviceBatch:
    """Copies a checked batch to the devices, sharded by samples.

    In a run of several processes each gives its own samples, and all get the whole
    batch. Events beyond their room are left out: spans say that they are missing, so
    that the step refuses the batch.

    Args:
      batch: this process's samples.
      plan: plan with the batch size, and the room for events.
      mesh: mesh of the plan.
      hot: as in ``DeviceBatch``.

    Raises:
      DataError: if the number of samples is another.
      ValueError: if an array has another shape or type than a checked batch has.
    """
    share = plan.batch_size // jax.process_count()
    if len(batch) != share:
        raise DataError(
            f"batch has {len(batch)} samples, must have {share}: the plan is made for "
            "so many in each process"
        )
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def put(matrices: Mapping[str, np.ndarray]) -> Matrices:
        as_sent = {
            name: matrix.view(np.int32) if name == LONG_IDS else matrix
            for name, matrix in matrices.items()
        }
        return jax.make_array_from_process_local_data(sharding, as_sent)

    layout, matrices = batch.matrices()
    # Whole files of prepared data have a matrix that no batch on the devices has.
    on_devices = put({name: matrices[name] for name in layout.widths})
    if not batch.sequences:
        return DeviceBatch(on_devices, layout, hot)
    of_events, events = _events_by_device(batch, plan)
    return DeviceBatch(on_devices, layout, hot, put(events), of_events)


def _events_by_device(batch: Batch, plan: Plan) -> tuple[Layout, dict[str, np.ndarray]]:
    """Returns the events of a batch's samples, a row for each of the devices that they
    go to."""
    devices = plan.devices // jax.process_count()
    weights = {n: x for n, x in batch.weights.items() if isinstance(x, Jagged)}
    layout = Layout(
        labels=0,
        ids=tuple(
            (name, plan.events[name], ids.dtype.itemsize > 4)
            for name, ids in batch.sequences.items()
        ),
        weights=tuple((name, plan.events[name]) for name in weights),
    )
    matrices = layout.padding(devices)
    columns = layout.columns(matrices)
    kinds = (columns.ids, batch.sequences), (columns.weights, weights)
    for targets, of_kind in kinds:
        for name, jagged in of_kind.items():
            ends = np.cumsum(jagged.length.reshape(devices, -1).sum(axis=1))
            for target, values in zip(
                targets[name], np.split(jagged.values, ends[:-1]), strict=True
            ):
                target[: len(values)] = values[: len(target)]
    return layout, matrices


def own_samples(batch: Batch, size: int) -> Batch:
    """Returns this process's samples of a batch, which is padded to ``size`` with
    empty ones.

    Raises:
      DataError: if the batch has more samples.
    """
    if len(batch) > size:
        raise DataError(
            f"batch has {len(batch)} samples, must have at most {size}: the plan is "
            "made for so many"
        )
    share = size // jax.process_count()
    first = share * jax.process_index()
    return batch.part(first, first + share)


@jax.named_scope("sort")
def route_batch(collection: EmbeddingCollection, batch: DeviceBatch) -> Routes:
    """Routes a batch, under jit."""
    columns = batch.columns()
    return collection.route(columns.ids, columns.weights, columns.spans)
