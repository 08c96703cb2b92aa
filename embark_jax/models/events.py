"""The sequences that layers read: context, the events of a history, a candidate.

Layers apply to the events of all samples at once, ``[total, width]``. Those of a
device's samples lie one after the other, so that nothing is computed for padding; what
knows where is ``Sequences``.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels.attention import (
    Heads,
    Weights,
    attend_packed,
    move_rows,
    places_of_events,
    why_unsupported,
)

from embark_jax.models.interface import Embedding, Masked, Packed, on_devices
from embark_jax.plans.tables import PADDING_ID

KERNEL_TILE = 128
"""Events of a tile of the kernel of attention, which copies what is no multiple."""
MANY_EVENTS = 8 * KERNEL_TILE
"""Events of a device from which there is room for whole tiles."""


def as_packed(embedding: Embedding) -> Packed:
    """Returns a sequence as a packed one: places of a padded one are packed as they
    are, with an id of -1 where there is no event."""
    if isinstance(embedding, Packed):
        return embedding
    if not isinstance(embedding, Masked):
        embedding = Masked(embedding, jnp.ones(embedding.shape[:2], bool))
    samples, places, dim = embedding.values.shape
    first = jnp.arange(samples, dtype=jnp.int32) * places
    return Packed(
        embedding.values.reshape(samples * places, dim),
        jnp.where(embedding.valid, 0, PADDING_ID).reshape(samples * places),
        jnp.zeros_like(first),
        jnp.full_like(first, places),
        first,
        longest=places,
    )


class _Places(NamedTuple):
    """Where the events of packed sequences lie; on one device.

    Attributes:
      first, length: ``[samples]`` int32 first event of each sequence, and its events.
      sample: ``[events]`` int32 sample of each event; their number after the last one.
      position: ``[events]`` int32 position of each event in its sequence.
      source: ``[events]`` int32 index of each event in the history; of those that are
        not of the history, the number of packed ones there.
      target: ``[packed]`` int32 inverse of ``source``; -1 where no event is.
    """

    first: jax.Array
    length: jax.Array
    sample: jax.Array
    position: jax.Array
    source: jax.Array
    target: jax.Array


class Sequences:
    """Sequences of the events of a history, the first of which are of the context, and
    the last one the candidate. Places of the history without an id are left out.

    Args:
      history: embeddings of the feature that says which events there are, packed or
        padded; of an array all places hold an event.
      context: number of events of the context.
      candidate: whether the last event is a candidate.

    Attributes:
      longest: largest number of events.
      groups: number of devices whose events lie together.
    """

    def __init__(self, history: Embedding, context: int = 0, candidate: bool = False):
        self._embedding, history = history, as_packed(history)
        self._history, self._context, self._candidate = history, context, candidate
        self.longest = context + history.longest + candidate
        self.groups = 1 if history.mesh is None else history.mesh.size
        spans = history.length, history.first
        self._places: _Places = self._on_devices(self._place)(history.ids, *spans)

    def rows(self, history: Embedding, candidate: jax.Array | None = None) -> jax.Array:
        """Returns the rows of a feature's events, ``[total, dim]``, zeros where they
        are of the context, or where the feature has no event.

        Args:
          history: embeddings of the feature in the history.
          candidate: ``[batch, dim]`` its embeddings of the candidate, if there is one.
        """
        is_own = history is self._embedding
        history = as_packed(history)
        spans = history.begin, history.length, history.first
        aligned = self._history.begin, self._history.length, self._history.first

        def rows(places, values, spans, aligned, candidate):
            source, target = places.source, places.target
            if not is_own:
                source, target = _align(places, spans, aligned, len(values))
            rows = move_rows(values, source, target)
            if candidate is None:
                return rows
            is_last = self._is_last(places)
            source = jnp.where(is_last, places.sample, -1)
            return rows + move_rows(candidate, source, places.first + places.length - 1)

        return self._on_devices(rows)(
            self._places, history.values, spans, aligned, candidate
        )

    def ids(self, history: jax.Array, candidate: jax.Array) -> jax.Array:
        """Returns ids of events, ``[total]``, -1 after the last; there is no context.

        Args:
          history: ids of the history, which lie as its embeddings do.
          candidate: ``[batch]`` ids of the candidates.
        """

        def ids(places, history, candidate):
            def take(ids, index):
                return ids.at[index].get(
                    mode="fill", fill_value=PADDING_ID, wrap_negative_indices=False
                )

            with jax.enable_x64(history.dtype.itemsize == 8):
                own = take(history, places.source)
                last = take(candidate.astype(own.dtype), places.sample)
                return jnp.where(self._is_last(places), last, own)

        with jax.enable_x64(history.dtype.itemsize == 8):
            history = history.reshape(-1)
        return self._on_devices(ids)(self._places, history, candidate)

    def with_context(self, x: jax.Array, context: jax.Array) -> jax.Array:
        """Returns ``x`` with ``[batch, context, width]`` as each sample's first."""
        if not self._context:
            return x

        def replace(places, x, context):
            is_context = self._is_event(places) & (places.position < self._context)
            source = places.sample * self._context + places.position
            number = jnp.arange(self._context, dtype=jnp.int32)
            target = (places.first[:, None] + number[None]).reshape(-1)
            rows = context.reshape(-1, context.shape[-1])
            rows = move_rows(rows, jnp.where(is_context, source, -1), target)
            return jnp.where(is_context[:, None], rows.astype(x.dtype), x)

        return self._on_devices(replace)(self._places, x, context)

    def attend(
        self,
        made: jax.Array,
        heads: int,
        first: tuple[int, int, int],
        weights: Weights,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        """Returns what each event has seen, ``[total, heads, dim]``.

        Args:
          made: ``[total, …, dim]`` heads of queries, keys, values and what else there
            is, which are read where they lie.
          heads: number of heads.
          first: the first head of the queries, of the keys and of the values.
          weights, bias: as in ``embark_kernels.attend_packed``.
        """

        def attend(made, places, bias):
            query, key, value = (Heads(made, each, heads) for each in first)
            implementation = self._history.implementation
            if implementation and why_unsupported(query, key, value, bias):
                implementation = "xla"
            return attend_packed(
                query,
                key,
                value,
                places.first,
                places.length,
                self.longest,
                weights,
                bias,
                implementation=implementation,
            )

        return self._on_devices(attend, everywhere=1)(made, self._places, bias)

    def last(self, x: jax.Array) -> jax.Array:
        """Returns each sample's last event, ``[batch, width]``."""

        def last(places, x):
            target = jnp.where(self._is_last(places), places.sample, -1)
            return move_rows(x, places.first + places.length - 1, target)

        return self._on_devices(last)(self._places, x)

    def is_event(self) -> jax.Array:
        """Returns ``[total]`` bool: where there is an event."""
        return self._on_devices(self._is_event)(self._places)

    def is_last(self) -> jax.Array:
        """Returns ``[total]`` bool: where a sample's last event is."""
        return self._on_devices(self._is_last)(self._places)

    def by_event(self, of_samples: jax.Array) -> jax.Array:
        """Returns ``[total]``: of each event what its sample has; 0 for none."""

        def by_event(places, of_samples):
            return of_samples.at[places.sample].get(mode="fill", fill_value=0)

        return self._on_devices(by_event)(self._places, of_samples)

    def sums(self, of_events: jax.Array) -> jax.Array:
        """Returns each sample's sum of ``[total]``, 0 where no event is."""

        def sums(places, of_events):
            source = self._padded(places)
            target = places.sample * self.longest + places.position
            target = jnp.where(self._is_event(places), target, -1)
            padded = move_rows(of_events, source.reshape(-1), target)
            return padded.reshape(source.shape).sum(axis=1)

        return self._on_devices(sums)(self._places, of_events)

    def by_position(self, vectors: jax.Array) -> jax.Array:
        """Returns ``[total, width]`` of the position of each event in its sequence, of
        ``[longest, width]``; its gradient adds up samples, not one event at a time."""

        def by_position(places, vectors):
            return _take(vectors, places.position, self._padded(places))

        return self._on_devices(by_position, everywhere=1)(self._places, vectors)

    def by_distance(self, vectors: jax.Array) -> jax.Array:
        """Returns the same by the number of events from there to the last one."""

        def by_distance(places, vectors):
            source = self._padded(places, from_last=True)
            return _take(vectors, self._count_following(places), source)

        return self._on_devices(by_distance, everywhere=1)(self._places, vectors)

    def _on_devices(self, function, everywhere=0):
        return on_devices(self._history.mesh, function, everywhere)

    def _place(self, ids: jax.Array, length: jax.Array, first: jax.Array) -> _Places:
        """Finds the places of events, of the history's ids and spans; on one device."""
        packed, samples, extra = len(ids), len(length), self._context + self._candidate
        sample, place = places_of_events(first, length, packed)
        with jax.enable_x64(ids.dtype.itemsize == 8):
            is_some = ids != PADDING_ID
        met = (sample < samples) & (place >= 0) & is_some
        total = jnp.pad(jnp.cumsum(met, dtype=jnp.int32), (1, 0))
        before = total[:-1]  # events before each
        begin = total.at[first].get(mode="clip")
        end = total.at[first + length].get(mode="clip")
        events = packed + samples * extra
        # Of a padded history, whose samples may have no number yet, there is no more.
        if isinstance(self._embedding, Packed) and events > MANY_EVENTS:
            events += -events % KERNEL_TILE
        own_length = end - begin + extra
        own_first = jnp.cumsum(own_length, dtype=jnp.int32) - own_length
        own_sample, position = places_of_events(own_first, own_length, events)
        position = jnp.where(own_sample < samples, position, 0)
        # The history's events that are some, in their order.
        order = jnp.full(packed, packed, jnp.int32)
        order = order.at[jnp.where(met, before, packed)].set(
            jnp.arange(packed, dtype=jnp.int32), mode="drop"
        )
        past = position - self._context
        held = (end - begin).at[own_sample].get(mode="fill", fill_value=0)
        is_past = (past >= 0) & (past < held)
        source = begin.at[own_sample].get(mode="clip") + past
        source = order.at[jnp.where(is_past, source, packed)].get(
            mode="fill", fill_value=packed
        )
        target = own_first.at[sample].get(mode="clip") + self._context
        target += before - begin.at[sample].get(mode="clip")
        return _Places(
            own_first,
            own_length,
            own_sample,
            position,
            source,
            jnp.where(met, target, -1),
        )

    def _padded(self, places: _Places, from_last: bool = False) -> jax.Array:
        """Returns ``[samples, longest]`` the events of each sample, in their order or
        from the last one on; -1 where it has no more."""
        place = jnp.arange(self.longest, dtype=jnp.int32)[None]
        first, length = (x[:, None] for x in (places.first, places.length))
        event = first + (length - 1 - place if from_last else place)
        return jnp.where(place < length, event, -1)

    def _is_event(self, places: _Places) -> jax.Array:
        return places.sample < len(places.first)

    def _is_last(self, places: _Places) -> jax.Array:
        return self._is_event(places) & (self._count_following(places) == 0)

    def _count_following(self, places: _Places) -> jax.Array:
        """Returns the number of a sequence's events after each."""
        length = places.length.at[places.sample].get(mode="clip")
        return length - 1 - places.position


@jax.custom_vjp
def _take(vectors: jax.Array, index: jax.Array, padded: jax.Array) -> jax.Array:
    """Returns ``vectors[index]`` ``[events, width]``.

    Args:
      vectors: ``[longest, width]``.
      index: ``[events]`` int32 vector of each event.
      padded: ``[samples, longest]`` int32 event of each sample that takes a vector; -1
        where it has none.
    """
    return jnp.asarray(vectors).at[index].get(mode="clip")


def _take_backward(padded, gradient):
    by_sample = gradient.at[padded].get(
        mode="fill", fill_value=0, wrap_negative_indices=False
    )
    return by_sample.sum(axis=0), None, None


_take.defvjp(lambda *args: (_take(*args), args[2]), _take_backward)


def _align(
    places: _Places,
    spans: tuple[jax.Array, jax.Array, jax.Array],
    aligned: tuple[jax.Array, jax.Array, jax.Array],
    packed: int,
) -> tuple[jax.Array, jax.Array]:
    """Returns source and target of another feature's events, which lie in the same
    places as the history's.

    Args:
      places: places of events, by the history's.
      spans: begin, length and first event of the other feature.
      aligned: the same of the history.
      packed: packed events of the other feature that there is room for.
    """

    def index(sample, place, begin, spans):
        """Returns the index of places of a sample, -1 where it has none there."""
        inside = (place >= 0) & (sample < len(begin))
        other_begin, length, first = (x.at[sample].get(mode="clip") for x in spans)
        place = place + begin.at[sample].get(mode="clip") - other_begin
        inside &= (place >= 0) & (place < length)
        return jnp.where(inside, first + place, -1)

    begin, length, first = aligned
    sample, place = places_of_events(first, length, len(places.target))
    by_history = index(sample, place, begin, spans)
    source = by_history.at[places.source].get(mode="fill", fill_value=-1)
    other_begin, length, first = spans
    sample, place = places_of_events(first, length, packed)
    by_other = index(sample, place, other_begin, aligned)
    target = places.target.at[by_other].get(
        mode="fill", fill_value=-1, wrap_negative_indices=False
    )
    return source, target
