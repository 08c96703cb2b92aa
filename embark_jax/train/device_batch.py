"""A batch on the devices, sharded by samples, as a step takes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.cache.resolving import init_indexes, resolve_routes
from embark_jax.data import Batch, DataError, Jagged
from embark_jax.data.layout import LONG_IDS, NUMBERS, Layout
from embark_jax.embedding.batch_ids import DeviceBatch, Matrices
from embark_jax.embedding.collection import EmbeddingCollection, Routes
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.train.cuts import deal


def abstract_batch(
    plan: Plan,
    mesh: Mesh,
    dense_features: int,
    wide: Collection[str] = (),
    tasks: int = 0,
    cuts: int = 1,
) -> DeviceBatch:
    """Returns shapes and shardings of a batch; nothing is allocated.

    Args:
      plan: plan with the features and the batch size.
      mesh: mesh of the plan.
      dense_features: number of columns of ``dense``.
      wide: features whose ids are int64, not int32.
      tasks: number of labels of each sample, if it has several, otherwise 0.
      cuts: as in ``put_batch``.
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
    if cuts == 1 or not sequences:
        return DeviceBatch(samples, layout, False, events, of_events)
    place: Any = jax.ShapeDtypeStruct((plan.batch_size,), jnp.int32, sharding=sharding)
    return DeviceBatch(samples, layout, False, events, of_events, cuts, place)


def abstract_routes(collection: EmbeddingCollection, batch: DeviceBatch) -> Routes:
    """Returns shapes and shardings of the routes of a batch; nothing is allocated."""

    def route(batch: DeviceBatch) -> Routes:
        routes = collection.route_batch(batch)
        if not collection.cached:
            return routes
        return resolve_routes(collection, init_indexes(collection), routes)[1]

    shapes = jax.eval_shape(route, batch)

    def sharded(spec: PartitionSpec, arrays: Any) -> Any:
        sharding = NamedSharding(collection.mesh, spec)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding
            ),
            arrays,
        )

    return jax.tree.map(sharded, collection.route_specs, shapes)


def put_batch(
    batch: Batch, plan: Plan, mesh: Mesh, hot: bool = False, cuts: int = 1
) -> DeviceBatch:
    """Copies a checked batch to the devices, sharded by samples.

    In a run of several processes each gives its own samples, and all get the whole
    batch. Events beyond their room are left out: spans say that they are missing, so
    that the step refuses the batch.

    Args:
      batch: this process's samples.
      plan: plan with the batch size, and the room for events.
      mesh: mesh of the plan.
      hot: as in ``DeviceBatch``.
      cuts: number of cuts that a step makes of each device's samples, among which those
        with sequences are dealt.

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
    place = None
    if cuts > 1 and batch.sequences:
        devices = plan.devices // jax.process_count()
        order = dealt_order(batch, devices, cuts)
        batch = batch.take(order)
        place = np.argsort(order).astype(np.int32) % np.int32(share // devices)

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
    events = put(events)
    if place is None:
        return DeviceBatch(on_devices, layout, hot, events, of_events)
    place = jax.make_array_from_process_local_data(sharding, place)
    return DeviceBatch(on_devices, layout, hot, events, of_events, cuts, place)


def dealt_order(batch: Batch, devices: int, cuts: int) -> np.ndarray:
    """Returns ``[batch]``: the samples of each device, dealt among its cuts by their
    events of all sequences."""
    events = sum(jagged.length.astype(np.int64) for jagged in batch.sequences.values())
    by_device = np.reshape(events, (devices, -1))
    first = np.arange(devices) * by_device.shape[1]
    order = [deal(of_device, cuts) for of_device in by_device]
    return (first[:, None] + order).reshape(-1)


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
