"""The ids of a device's samples, as matrices of which storages take columns.

A batch has one matrix of ids of 32 bits, and one of 64 bits if tables need them; a
feature is some columns of either. What is done to ids is done to matrices, so that the
program does not grow with the number of features.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from embark_jax.data.layout import IDS, LONG_IDS, NUMBERS, BatchColumns, Layout
from embark_jax.embedding.sequences import Spans
from embark_jax.plans.tables import DYNAMIC_KEYS, PADDING_ID, FeatureSpec

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
      cuts: number of cuts of each device's samples, one after the other, among which
        these are dealt so that all have about as many events.
      place: ``[batch]`` int32 place of each sample of the batch among those of its
        device, if they were dealt.
    """

    samples: Matrices
    layout: Layout = dataclasses.field(metadata={"static": True})
    hot: bool = dataclasses.field(default=False, metadata={"static": True})
    events: Matrices = dataclasses.field(default_factory=dict)
    layout_of_events: Layout = dataclasses.field(
        default=Layout(labels=0), metadata={"static": True}
    )
    cuts: int = dataclasses.field(default=1, metadata={"static": True})
    place: jax.Array | None = None

    def __len__(self) -> int:
        return len(next(iter(self.samples.values())))

    def columns(self) -> BatchColumns:
        """Returns its columns, which are slices; call it inside a compiled program.
        Those of sequences are packed, ``[total]``."""
        columns = _columns_of(self.samples, self.layout)
        events = _columns_of(self.events, self.layout_of_events)
        devices = len(next(iter(self.events.values()))) if self.events else 1
        with jax.enable_x64(True):
            ids, weights = (
                {name: x.reshape(-1) for name, x in of_kind.items()}
                for of_kind in (events.ids, events.weights)
            )
        return columns._replace(
            ids={**columns.ids, **ids},
            weights={**columns.weights, **weights},
            spans={
                name: Spans.of(spans[:, 0], spans[:, 1], devices)
                for name, spans in columns.spans.items()
            },
        )

    def has_room(self, events: Mapping[str, int]) -> bool:
        """Says whether the packed sequences have this room for the events of a device,
        no less and no more."""
        return all(events[n] == room for n, room, _ in self.layout_of_events.ids)


def _columns_of(matrices: Matrices, layout: Layout) -> BatchColumns:
    with jax.enable_x64(LONG_IDS in matrices):
        if LONG_IDS in matrices:
            matrices = {**matrices, LONG_IDS: id_matrix(matrices, LONG_IDS)}
        return layout.columns(matrices)


class IdMatrix(NamedTuple):
    """A matrix of ids.

    Attributes:
      ids: ``[rows, columns]`` int32 or int64, -1 where padded, or where an id is out of
        range for its table.
      valid: ``[rows, columns]`` bool: where there is an id.
      bad: ``[columns]`` int32 number of ids that were out of range.
    """

    ids: jax.Array
    valid: jax.Array
    bad: jax.Array


class BatchIds:
    """The ids of a device's samples and their weights.

    Args:
      layout: columns of the samples' matrices.
      samples: matrices ``[batch, columns]``.
      event_layout: columns of the events' matrices.
      events: matrices ``[1, columns]``: the events of packed sequences.
      rows: for each feature the number of rows of its table.
    """

    def __init__(
        self,
        layout: Layout,
        samples: Matrices,
        event_layout: Layout,
        events: Matrices,
        rows: Mapping[str, int],
    ):
        self._columns = dict(layout.id_columns)
        self._weight_columns = layout.weight_columns
        self._numbers = samples.get(NUMBERS)
        self._matrices: dict[str, IdMatrix] = {}
        for matrix in {matrix: None for matrix, _ in self._columns.values()}:
            names = [f for f, (of, _) in self._columns.items() if of == matrix]
            hotness = [_width(self._columns[name][1]) for name in names]
            limits = np.repeat(np.array([rows[f] for f in names], object), hotness)
            ids = id_matrix(samples, matrix)
            self._matrices[matrix] = _masked(ids[:, : len(limits)], limits)
        # Each event is a row of one id.
        self._event_weights = {
            name: events[NUMBERS][:, columns].reshape(-1, 1)
            for name, columns in event_layout.weight_columns.items()
        }
        for name, (matrix, columns) in event_layout.id_columns.items():
            ids = id_matrix(events, matrix)[:, columns]
            with jax.enable_x64(matrix == LONG_IDS):
                ids = ids.reshape(-1, 1)
            self._matrices[name] = _masked(ids, np.array([rows[name]], object))
            self._columns[name] = name, slice(0, 1)

    def columns(self, features: Sequence[str], wide: bool) -> jax.Array:
        """Returns the ids of features, ``[rows, columns]``: int64 if one has them, or
        where it is asked for. Features are of samples, or one sequence."""
        parts, order = self._parts(features)
        dtypes = [self._matrices[matrix].ids.dtype for matrix in parts]
        wide = wide or jnp.int64 in dtypes
        with jax.enable_x64(wide):
            taken = [
                take_columns(self._matrices[matrix].ids, columns)
                for matrix, columns in parts.items()
            ]
            if wide:
                taken = [ids.astype(jnp.int64) for ids in taken]
            joined = jnp.concatenate(taken, axis=1) if len(taken) > 1 else taken[0]
            return take_columns(joined, order)

    def weights(self, features: Sequence[str]) -> jax.Array:
        """Returns the weights of the ids of ``columns``, float32; 1 where a feature has
        none."""
        if features[0] in self._event_weights:
            return self._event_weights[features[0]]
        rows = len(self._matrices[self._columns[features[0]][0]].ids)
        ones = jnp.ones((rows, 1), jnp.float32)
        weighted = [name for name in features if name in self._weight_columns]
        if not weighted:
            width = sum(_width(self._columns[name][1]) for name in features)
            return jnp.broadcast_to(ones, (rows, width))
        assert self._numbers is not None
        columns = [
            np.arange(self._numbers.shape[1])[self._weight_columns[name]]
            if name in weighted
            else np.full(_width(self._columns[name][1]), self._numbers.shape[1])
            for name in features
        ]
        source = self._numbers
        if len(weighted) < len(features):
            source = jnp.concatenate([source, ones], axis=1)
        return take_columns(source, np.concatenate(columns))

    def bad(self, features: Sequence[str]) -> jax.Array:
        """Returns ``[features]`` int32 number of ids that were out of range."""
        feature_of, counts = [], []
        for matrix, of_matrix in self._matrices.items():
            names = [f for f, (of, _) in self._columns.items() if of == matrix]
            for name in names:
                width = _width(self._columns[name][1])
                feature_of += [features.index(name)] * width
            counts.append(of_matrix.bad)
        total = jnp.zeros(len(features), jnp.int32)
        return total.at[np.array(feature_of)].add(jnp.concatenate(counts))

    def mean_factors(self, pooled: Sequence[FeatureSpec]) -> jax.Array | None:
        """Returns ``[batch, features]``, if some have a mean: one over the total weight
        of a bag, zero if that is zero; 1 for features without a mean."""

        def factors(features: list[FeatureSpec]) -> jax.Array:
            names = [feature.name for feature in features]
            terms = self._valid(names).astype(jnp.float32)
            if features[0].pooling != "mean":
                return jnp.ones((len(terms), len(features)), jnp.float32)
            if features[0].weighted:
                terms *= self.weights(names)
            total = terms.reshape(len(terms), len(features), -1).sum(axis=2)
            return jnp.where(total == 0, 0.0, 1.0 / jnp.where(total == 0, 1.0, total))

        if not any(feature.pooling == "mean" for feature in pooled):
            return None
        return _by_kind(pooled, factors)

    def largest_weights(self, pooled: Sequence[FeatureSpec]) -> jax.Array | None:
        """Returns ``[batch, features]``, if some have weights: the largest absolute
        weight of each bag."""

        def largest(features: list[FeatureSpec]) -> jax.Array:
            weights = jnp.abs(self.weights([feature.name for feature in features]))
            return weights.reshape(len(weights), len(features), -1).max(axis=2)

        if not any(feature.weighted for feature in pooled):
            return None
        return _by_kind(pooled, largest)

    def event_weights(self) -> dict[str, jax.Array]:
        """Returns the absolute weights of weighted sequences, ``[events]``."""
        weights = self._event_weights.items()
        return {name: jnp.abs(of_events[:, 0]) for name, of_events in weights}

    def _valid(self, features: Sequence[str]) -> jax.Array:
        """Returns where features have an id, ``[rows, columns]``."""
        parts, order = self._parts(features)
        taken = [
            take_columns(self._matrices[matrix].valid, columns)
            for matrix, columns in parts.items()
        ]
        return take_columns(jnp.concatenate(taken, axis=1), order)

    def _parts(
        self, features: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the columns that features have of each matrix, and the order that
        brings these, joined, into that of the features."""
        columns: dict[str, list[int]] = {}
        places: dict[str, list[int]] = {}
        place = 0
        for name in features:
            matrix, of_feature = self._columns[name]
            columns.setdefault(matrix, []).extend(_range(of_feature))
            width = _width(of_feature)
            places.setdefault(matrix, []).extend(range(place, place + width))
            place += width
        parts = {matrix: np.array(each) for matrix, each in columns.items()}
        return parts, np.argsort(np.concatenate(list(places.values())))


def _by_kind(
    features: Sequence[FeatureSpec], function: Callable[[list[FeatureSpec]], jax.Array]
) -> jax.Array:
    """Returns what a function gives for features of equal hotness, pooling and weights,
    ``[batch, features]``, in the order of all."""
    groups: dict[tuple, list[int]] = {}
    for i, feature in enumerate(features):
        kind = feature.hotness, feature.pooling, feature.weighted
        groups.setdefault(kind, []).append(i)
    parts = [function([features[i] for i in group]) for group in groups.values()]
    order = np.argsort(list(itertools.chain(*groups.values())))
    return take_columns(jnp.concatenate(parts, axis=1), order)


def take_columns(matrix: jax.Array, columns: np.ndarray) -> jax.Array:
    """Returns columns ``[rows, n, …]``, as a slice where they are neighbours."""
    first, count = int(columns[0]), len(columns)
    if np.array_equal(columns, np.arange(first, first + count)):
        return matrix if count == matrix.shape[1] else matrix[:, first : first + count]
    return matrix.at[:, columns].get(mode="promise_in_bounds")


def add_columns(matrix: jax.Array, places: np.ndarray, count: int) -> jax.Array:
    """Adds up the columns of ``[rows, n, …]`` that have the same place: ``[rows, count,
    …]``, zeros where none has. The order is always the same, as it is not in a scatter
    on a GPU."""
    order = np.argsort(places, kind="stable")
    begin, end = np.searchsorted(
        places[order], [np.arange(count), np.arange(count) + 1]
    )
    order = np.append(order, matrix.shape[1])  # a column that is not there
    terms = []
    for number in range(max(end - begin)):
        columns = order[np.where(begin + number < end, begin + number, -1)]
        if matrix.shape[1] in columns:
            terms.append(matrix.at[:, columns].get(mode="fill", fill_value=0))
        else:
            terms.append(take_columns(matrix, columns))
    return sum(terms[1:], terms[0])


def id_matrix(matrices: Matrices, name: str) -> jax.Array:
    """Returns a matrix of ids; those of 64 bits are pairs of int32 before."""
    matrix = matrices[name]
    if name == IDS:
        return matrix
    with jax.enable_x64(True):
        pairs = matrix.reshape(len(matrix), -1, 2)
        return lax.bitcast_convert_type(pairs, jnp.int64)


def _masked(ids: jax.Array, rows: np.ndarray) -> IdMatrix:
    """Masks ids that are out of range, where a column's table has so many rows. All
    bits of 64-bit ids count, in any mode; any of them is a key of a dynamic table."""
    with jax.enable_x64(ids.dtype == jnp.int64):
        last = np.minimum(rows - 1, np.iinfo(ids.dtype).max).astype(ids.dtype)[None]
        is_padding = ids == PADDING_ID
        if (rows == DYNAMIC_KEYS).all():
            return IdMatrix(ids, ~is_padding, jnp.zeros(len(rows), jnp.int32))
        valid = (ids >= 0) & (ids <= last)
        if (dynamic := rows == DYNAMIC_KEYS).any():
            valid = jnp.where(dynamic[None], ~is_padding, valid)
        bad = (~valid & ~is_padding).sum(axis=0, dtype=jnp.int32)
        return IdMatrix(jnp.where(valid, ids, PADDING_ID), valid, bad)


def _range(columns: slice) -> range:
    return range(columns.start, columns.stop)


def _width(columns: slice) -> int:
    return columns.stop - columns.start
