"""Cuts of a batch, which go through the dense layers one after the other.

A cut has an equal share of each device's samples, so that nothing moves. Rows are
looked up, and updated, for the whole batch; of packed sequences a cut has the events
of its samples, which lie beside each other, so that what is made of those of one cut
alone is in memory. Samples are dealt to the cuts of their device so that all have about
as many events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from embark_jax.data.layout import BatchColumns
from embark_jax.embedding.collection import BATCH, EmbeddingCollection
from embark_jax.embedding.lookups import Lookups
from embark_jax.embedding.sequences import Spans
from embark_jax.plans.capacities import events_of_cut
from embark_jax.plans.plan import MESH_AXES, Plan

MICRO_BATCHES = PartitionSpec(None, MESH_AXES)
"""Cuts of a batch along the first axis, their samples over all devices."""
EVERYWHERE = PartitionSpec()


class _Sequences(NamedTuple):
    """What a batch has of sequences: packed ids and weights by feature, and spans."""

    ids: dict[str, jax.Array]
    weights: dict[str, jax.Array]
    spans: dict[str, Spans]


class Cuts:
    """The cuts of one batch.

    Args:
      collection: the embedding tables.
      count: number of cuts.
      batch: the samples, with packed sequences.
      dealt: number of cuts among which they are dealt, this or 1.
    """

    def __init__(
        self,
        collection: EmbeddingCollection,
        count: int,
        batch: BatchColumns,
        dealt: int,
    ):
        self._collection, self._count, self._batch = collection, count, batch
        plan = collection.plan
        samples = plan.batch_size // plan.devices // count
        self._events = {
            f.name: events_of_cut(plan.events[f.name], samples, f.hotness, dealt)
            for f in plan.features
            if f.sequence
        }
        self._sequences = _Sequences(
            {name: batch.ids[name] for name in batch.spans},
            {n: batch.weights[n] for n in batch.spans if n in batch.weights},
            dict(batch.spans),
        )

    def numbered(self) -> tuple[jax.Array, BatchColumns]:
        """Returns the numbers of the cuts, and what they have of samples, ``[cuts,
        batch / cuts, …]``."""

        def cut(batch):
            # Not -1, which is undefined for arrays without columns.
            return jax.tree.map(
                lambda array: array.reshape(
                    self._count, len(array) // self._count, *array.shape[1:]
                ),
                batch,
            )

        spans = self._batch.spans
        of_samples = self._batch._replace(
            ids={n: x for n, x in self._batch.ids.items() if n not in spans},
            weights={n: x for n, x in self._batch.weights.items() if n not in spans},
            spans={},
        )
        cuts = self._collection.map(cut, (BATCH,), MICRO_BATCHES)(of_samples)
        return jnp.arange(self._count), cuts

    def joined(self, cuts: Any) -> Any:
        """Returns arrays ``[cuts, batch / cuts, …]`` as ``[batch, …]``."""

        def join(cuts):
            return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), cuts)

        return self._collection.map(join, (MICRO_BATCHES,), BATCH)(cuts)

    @jax.named_scope("lookup")
    def of(
        self, embeddings: Lookups, number: jax.Array, samples: BatchColumns
    ) -> tuple[Lookups, BatchColumns]:
        """Returns the embeddings of a cut and its batch, of the embeddings of the batch
        and what ``numbered`` has of the cut."""

        def cut(embeddings, sequences, number):
            pooled = self._own(embeddings.pooled, number)
            rows, ids, weights, spans = {}, {}, {}, {}
            for name, packed in embeddings.sequences.items():
                spans[name], begin = self._events_of(
                    name, sequences.spans[name], number
                )

                def own(packed, name=name, begin=begin):
                    with jax.enable_x64(packed.dtype.itemsize == 8):
                        return lax.dynamic_slice_in_dim(
                            packed, begin, self._events[name]
                        )

                rows[name], ids[name] = own(packed), own(sequences.ids[name])
                if name in sequences.weights:
                    weights[name] = own(sequences.weights[name])
            return Lookups(pooled, rows), _Sequences(ids, weights, spans)

        specs = BATCH, BATCH, EVERYWHERE
        embeddings, (ids, weights, spans) = self._collection.map(cut, specs, BATCH)(
            embeddings, self._sequences, number
        )
        batch = samples._replace(
            ids={**samples.ids, **ids},
            weights={**samples.weights, **weights},
            spans=spans,
        )
        return embeddings, batch

    def with_gradients(
        self, embeddings: Lookups, number: jax.Array, gradients: Lookups
    ) -> Lookups:
        """Returns the embeddings of the batch with the gradients of a cut in the place
        of its embeddings."""

        def replace(embeddings, spans, number, gradients):
            own, sequences = gradients.pooled, {}
            pooled = lax.dynamic_update_slice_in_dim(
                embeddings.pooled, own, number * len(own), axis=0
            )
            for name, own in gradients.sequences.items():
                rows = embeddings.sequences[name]
                of_cut, begin = self._events_of(name, spans[name], number)
                index = jnp.arange(len(own), dtype=jnp.int32)
                end = of_cut.first[-1] + of_cut.length[-1]
                is_own = (index >= of_cut.first[0]) & (index < end)
                others = lax.dynamic_slice_in_dim(rows, begin, len(own))
                own = jnp.where(is_own[:, None], own, others)
                sequences[name] = lax.dynamic_update_slice_in_dim(
                    rows, own, begin, axis=0
                )
            return Lookups(pooled, sequences)

        specs = BATCH, BATCH, EVERYWHERE, BATCH
        mapped = self._collection.map(replace, specs, BATCH)
        return mapped(embeddings, self._sequences.spans, number, gradients)

    def _events_of(
        self, name: str, spans: Spans, number: jax.Array
    ) -> tuple[Spans, jax.Array]:
        """Returns the spans of a cut's samples among the events that it has room for,
        and where these begin among the device's."""
        own = Spans(*(self._own(array, number) for array in spans))
        last = self._collection.plan.events[name] - self._events[name]
        begin = jnp.clip(own.first[0], 0, last)
        return own._replace(first=own.first - begin), begin

    def _own(self, of_samples: jax.Array, number: jax.Array) -> jax.Array:
        """Returns what a device has of a cut, of ``[batch of the device, …]``."""
        size = len(of_samples) // self._count
        return lax.dynamic_slice_in_dim(of_samples, number * size, size)


def deal(events: np.ndarray, cuts: int) -> np.ndarray:
    """Returns an order of samples in which equal parts have about as many events.

    Samples go by their events, most first, in rounds of one to each cut: the one with
    most to the cut that has fewest. So the events of two cuts differ by no more than
    those of two samples.

    Args:
      events: ``[samples]`` number of events of each.
      cuts: number of parts, one after the other in the order.
    """
    total = np.zeros(cuts, np.int64)
    dealt = []
    for one_each in np.argsort(-events, kind="stable").reshape(-1, cuts):
        by_total = np.argsort(total, kind="stable")
        total[by_total] += events[one_each]
        dealt.append(one_each[np.argsort(by_total)])
    return np.stack(dealt, axis=1).reshape(-1)


def check_cuts(plan: Plan, micro_batches: int) -> None:
    """Checks that a batch can be cut.

    Raises:
      ValueError: if a device's samples are no multiple of the cuts.
    """
    if micro_batches == 1:
        return
    samples = plan.batch_size // plan.devices
    if samples % micro_batches:
        raise ValueError(
            f"micro_batches is {micro_batches}, must divide the {samples} samples of "
            "a device"
        )
