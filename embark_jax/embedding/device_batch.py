"""A batch on the devices, sharded by samples, as a step takes it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.data import Batch, DataError, Jagged
from embark_jax.data.records import WORD_BYTES, layout, layout_of_events
from embark_jax.embedding.collection import BATCH, EmbeddingCollection, Routes
from embark_jax.embedding.indexing import FULL
from embark_jax.embedding.sequences import Spans, unpack
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.plans.tables import PADDING_ID


class Columns(NamedTuple):
    """A batch inside a step; fields as in ``data.Batch``. Sequences are packed: their
    ids and weights are ``[devices, events]``, and ``spans`` say where."""

    dense: jax.Array
    ids: Mapping[str, jax.Array]
    weights: Mapping[str, jax.Array]
    labels: jax.Array
    sample_weights: jax.Array | None = None
    spans: Mapping[str, Spans] = {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceBatch:
    """A batch on the devices, as records: one array, and one of the events of
    sequences, so one or two copies to each device.

    Attributes:
      words: ``[batch, words]`` int32, sharded by samples.
      layout: layout of a record, as in ``data.records.layout``.
      hot: whether all of its ids are said to be of hot rows: it takes the step that
        exchanges no embeddings, which refuses it if that is wrong.
      events: ``[devices, words]`` int32, a record for the samples of each device; None
        if no sequence is packed.
      layout_of_events: layout of such a record, as in ``data.records``.
    """

    words: jax.Array
    layout: np.dtype = dataclasses.field(metadata={"static": True})
    hot: bool = dataclasses.field(default=False, metadata={"static": True})
    events: jax.Array | None = None
    layout_of_events: np.dtype | None = dataclasses.field(
        default=None, metadata={"static": True}
    )

    def columns(self) -> Columns:
        """Returns its columns, which are slices; call it inside a compiled program."""
        columns = _columns_of(self.words, self.layout)
        events: dict[str, Any] = {}
        if self.events is not None and self.layout_of_events is not None:
            events = _columns_of(self.events, self.layout_of_events)
        ids, weights = (
            columns.get(kind, {}) | events.get(kind, {}) for kind in ("ids", "weights")
        )
        spans = columns.get("spans", {})
        return Columns(
            columns["dense"],
            ids,
            weights,
            columns["label"],
            columns.get("sample_weight"),
            {name: Spans(*jnp.unstack(words, axis=1)) for name, words in spans.items()},
        )

    def has_room(self, events: Mapping[str, int]) -> bool:
        """Says whether the packed sequences have this room for the events of a device,
        no less and no more."""
        if self.layout_of_events is None:
            return True
        of_sequences, _ = _field(self.layout_of_events, "ids")
        rooms = {
            name: _field(of_sequences, name)[0].shape for name in of_sequences.names
        }
        return all(room == (events[name],) for name, room in rooms.items())


def _columns_of(words: jax.Array, layout: np.dtype) -> dict[str, Any]:
    """Returns the columns of ``[n, words]`` records, those of features by name."""

    def column(name: str) -> Any:
        type_, start_bytes = _field(layout, name)
        if type_.names is None:
            return _values(words, type_, start_bytes)
        fields = {name: _field(type_, name) for name in type_.names}
        return {
            name: _values(words, inner, start_bytes + offset_bytes)
            for name, (inner, offset_bytes) in fields.items()
        }

    return {name: column(name) for name in layout.names or ()}


def _values(words: jax.Array, type_: np.dtype, start_bytes: int) -> jax.Array:
    base, shape = type_.subdtype or (type_, ())
    start, count = start_bytes // WORD_BYTES, type_.itemsize // WORD_BYTES
    values = words[:, start : start + count]
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
    pooled = [f for f in plan.features if not f.sequence]
    sequences = [f for f in plan.features if f.sequence]
    record = layout(
        dense_features,
        tuple((f.name, f.hotness, np.dtype(types[f.name])) for f in pooled),
        tuple((f.name, f.hotness) for f in pooled if f.weighted),
        tasks,
        spans=tuple(f.name for f in sequences),
    )

    def words_of(count: int, record: np.dtype) -> Any:
        return jax.ShapeDtypeStruct(
            (count, record.itemsize // WORD_BYTES),
            jnp.int32,
            sharding=NamedSharding(mesh, PartitionSpec(MESH_AXES)),
        )

    words = words_of(plan.batch_size, record)
    if not sequences:
        return DeviceBatch(words, record)
    events = plan.events
    of_events = layout_of_events(
        tuple((f.name, events[f.name], np.dtype(types[f.name])) for f in sequences),
        tuple((f.name, events[f.name]) for f in sequences if f.weighted),
    )
    words_of_events = words_of(plan.devices, of_events)
    return DeviceBatch(words, record, False, words_of_events, of_events)


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


def check_batch(plan: Plan, batch: DeviceBatch) -> None:
    """Checks the number of samples when a step is traced; ``EmbeddingCollection.route``
    checks ids and weights.

    Raises:
      ValueError: if it is not the plan's batch size.
    """
    if len(batch.words) != plan.batch_size:
        raise ValueError(
            f"batch has {len(batch.words)} samples, must have {plan.batch_size}: the "
            "plan is made for so many"
        )


def put_batch(
    batch: Batch,
    mesh: Mesh,
    samples: int,
    hot: bool = False,
    room: Mapping[str, int] = FULL,
) -> DeviceBatch:
    """Copies a checked batch to the devices, sharded by samples.

    In a run of several processes each gives its own samples, and all get the whole
    batch. Events beyond their room are left out: spans say that they are missing, so
    that the step refuses the batch.

    Args:
      batch: this process's samples.
      mesh: mesh of the plan.
      samples: number of samples of the whole batch.
      hot: as in ``DeviceBatch``.
      room: events that a device has room for, by sequence, as in the plan; others have
        room for all.

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
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def put(records: np.ndarray) -> jax.Array:
        words = records.view(np.int32).reshape(len(records), -1)
        return jax.make_array_from_process_local_data(sharding, words)

    records = batch.to_records()
    words = put(records)
    if not batch.sequences:
        return DeviceBatch(words, records.dtype, hot)
    devices = mesh.size // jax.process_count()
    events = _records_of_events(batch, devices, room)
    return DeviceBatch(words, records.dtype, hot, put(events), events.dtype)


def _records_of_events(
    batch: Batch, devices: int, room: Mapping[str, int]
) -> np.ndarray:
    """Returns the records of events of a batch's samples on so many devices."""
    share = len(batch) // devices
    full = {name: share * ids.longest for name, ids in batch.sequences.items()}
    sizes = full | {name: events for name, events in room.items() if name in full}
    columns = {
        kind: {name: x for name, x in of_kind.items() if isinstance(x, Jagged)}
        for kind, of_kind in (("ids", batch.ids), ("weights", batch.weights))
    }
    records = np.empty(
        devices,
        layout_of_events(
            tuple((n, sizes[n], x.dtype) for n, x in columns["ids"].items()),
            tuple((n, sizes[n]) for n in columns["weights"]),
        ),
    )
    for kind, of_kind in columns.items():
        for name, jagged in of_kind.items():
            ends = np.cumsum(jagged.length.reshape(devices, -1).sum(axis=1))
            for target, values in zip(
                records[kind][name], np.split(jagged.values, ends[:-1]), strict=True
            ):
                count = min(len(values), len(target))
                target[:count] = values[:count]
                target[count:] = jagged.fill
    return records


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
        for name in records.dtype["ids"].names or ():
            empty["ids"][name] = PADDING_ID
        records = np.concatenate([records, empty])
    share = size // jax.process_count()
    first = share * jax.process_index()
    own = Batch.of(records[first : first + share], batch.locate)
    if not batch.sequences:
        return own

    def joined(
        arrays: Mapping[str, Any], of_batch: Mapping[str, Any]
    ) -> dict[str, Any]:
        return dict(arrays) | {
            name: column.samples(first, first + share)
            for name, column in of_batch.items()
            if isinstance(column, Jagged)
        }

    return dataclasses.replace(
        own,
        ids=joined(own.ids, batch.ids),
        weights=joined(own.weights, batch.weights),
    )


@jax.named_scope("sort")
def route_batch(collection: EmbeddingCollection, batch: DeviceBatch) -> Routes:
    """Routes a batch, under jit."""
    columns = batch.columns()
    return collection.route(columns.ids, columns.weights, columns.spans)


def pad_batch(collection: EmbeddingCollection, batch: Columns) -> Columns:
    """Returns a batch with padded sequences, as losses get it."""
    longest = {f.name: f.hotness for f in collection.plan.features}

    def pad(columns: Mapping[str, jax.Array], fill: float) -> dict[str, jax.Array]:
        def unpack_own(packed, spans):
            return {
                name: unpack(events[0], spans[name], longest[name], fill)
                for name, events in packed.items()
            }

        packed = {name: x for name, x in columns.items() if name in batch.spans}
        if not packed:
            return dict(columns)
        spans = {name: batch.spans[name] for name in packed}
        return {**columns, **collection.map(unpack_own, BATCH, BATCH)(packed, spans)}

    if not batch.spans:
        return batch
    return batch._replace(
        ids=pad(batch.ids, PADDING_ID),
        weights=pad(batch.weights, 0),
    )
