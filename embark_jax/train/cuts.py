"""Cuts of a batch, which go through the dense layers one after the other.

A cut has an equal share of each device's samples, so that nothing moves. Rows are
looked up, and updated, for the whole batch; sequences stay packed but for those of the
cut at hand, so that the padding of one cut alone is in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from embark_jax.embedding.collection import BATCH, EmbeddingCollection
from embark_jax.embedding.lookups import Lookups
from embark_jax.embedding.sequences import Spans, places
from embark_jax.plans.plan import MESH_AXES, Plan

MICRO_BATCHES = PartitionSpec(None, MESH_AXES)
"""Cuts of a batch along the first axis, their samples over all devices."""
EVERYWHERE = PartitionSpec()


class Cuts:
    """The cuts of one batch.

    Args:
      collection: the embedding tables.
      count: number of cuts.
      spans: spans of the batch's sequences.
    """

    def __init__(
        self, collection: EmbeddingCollection, count: int, spans: Mapping[str, Spans]
    ):
        self._collection, self._count = collection, count
        hotness = {f.name: f.hotness for f in collection.plan.features}
        room = collection.plan.events

        def place(spans):
            return {n: places(s, hotness[n], room[n]) for n, s in spans.items()}

        self._places = spans and collection.map(place, BATCH, BATCH)(dict(spans))

    def numbered(self, batch: Any) -> tuple[jax.Array, Any]:
        """Returns the numbers of the cuts, and arrays ``[batch, …]`` as ``[cuts, batch
        / cuts, …]``."""

        def cut(batch):
            # Not -1, which nobody knows of arrays without columns.
            return jax.tree.map(
                lambda array: array.reshape(
                    self._count, len(array) // self._count, *array.shape[1:]
                ),
                batch,
            )

        cuts = self._collection.map(cut, (BATCH,), MICRO_BATCHES)(batch)
        return jnp.arange(self._count), cuts

    def joined(self, cuts: Any) -> Any:
        """Returns arrays ``[cuts, batch / cuts, …]`` as ``[batch, …]``."""

        def join(cuts):
            return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), cuts)

        return self._collection.map(join, (MICRO_BATCHES,), BATCH)(cuts)

    def embeddings_of(self, embeddings: Lookups, number: jax.Array) -> Lookups:
        """Returns the embeddings of a cut, its sequences padded, of those of the batch,
        as ``lookup`` returns them."""

        def lookup(embeddings, places, number):
            pooled = {d: self._own(x, number) for d, x in embeddings.pooled.items()}
            sequences = {}
            for name, rows in embeddings.sequences.items():
                place = self._own(places[name], number)
                sequences[name] = rows.at[place].get(mode="fill", fill_value=0)
            return Lookups(pooled, sequences)

        mapped = self._collection.map(lookup, (BATCH, BATCH, EVERYWHERE), BATCH)
        return mapped(embeddings, self._places, number)

    def with_gradients(
        self,
        embeddings: Lookups,
        number: jax.Array,
        gradients: Lookups,
    ) -> Lookups:
        """Returns the embeddings of the batch with the gradients of a cut in the place
        of what ``embeddings_of`` returned."""

        def replace(embeddings, places, number, gradients):
            pooled, sequences = {}, {}
            for dim, own in gradients.pooled.items():
                pooled[dim] = lax.dynamic_update_slice_in_dim(
                    embeddings.pooled[dim], own, number * len(own), axis=0
                )
            for name, own in gradients.sequences.items():
                place = self._own(places[name], number)
                rows = embeddings.sequences[name]
                sequences[name] = rows.at[place].set(own, mode="drop")
            return Lookups(pooled, sequences)

        specs = BATCH, BATCH, EVERYWHERE, BATCH
        mapped = self._collection.map(replace, specs, BATCH)
        return mapped(embeddings, self._places, number, gradients)

    def _own(self, of_samples: jax.Array, number: jax.Array) -> jax.Array:
        """Returns what a device has of a cut, of ``[batch of the device, …]``."""
        size = len(of_samples) // self._count
        return lax.dynamic_slice_in_dim(of_samples, number * size, size)


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
