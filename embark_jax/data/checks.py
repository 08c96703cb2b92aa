"""Stops bad samples before they reach a device, and says which they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, NoReturn, get_args

import numpy as np

from embark_jax.data.batch import Batch, DataError, id_dtype, tasks_in
from embark_jax.data.hashing import splitmix64
from embark_jax.data.jagged import Jagged, values_of, with_values
from embark_jax.data.records import layout
from embark_jax.plans.options import OnBadId
from embark_jax.plans.tables import DYNAMIC_KEYS, PADDING_ID, FeatureSpec


class BatchChecker:
    """Checks batches and converts them to the one form that the train step takes.

    In that form the ids of a feature are ``[batch, hotness]``, int32 unless the table
    needs int64; dense features, labels and weights are float32; the weight of padding
    is 0. Of a sequence all three are ``Jagged``. The checker never writes to the given
    arrays. It checks nothing if the batch was checked against the same tables when it
    was written, as prepared data are.

    Args:
      features: all features of the model.
      table_rows: rows of each table; ``DYNAMIC_KEYS`` of one whose ids may have any 64
        bits, but for the padding -1, which is no key.
      dense_features: number of dense features; None takes that of the first batch.
      tasks: number of labels of each sample, if it has several, otherwise 0; None takes
        that of the first batch.
      on_bad_id: what to do with an id that is neither in ``0 .. rows - 1`` nor the
        padding -1. "error" raises, "drop" makes it padding, "hash" maps it to a row by
        a hash; the latter two count it.

    Attributes:
      bad_ids: for each feature, how many ids were dropped or hashed so far.

    Raises:
      ValueError: if ``on_bad_id`` is another value.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        table_rows: Mapping[str, int],
        dense_features: int | None = None,
        on_bad_id: OnBadId = "error",
        tasks: int | None = None,
    ):
        if on_bad_id not in get_args(OnBadId):
            raise ValueError(
                f"on_bad_id is {on_bad_id!r}, must be one of "
                f"{', '.join(get_args(OnBadId))}"
            )
        self.bad_ids = {feature.name: 0 for feature in features}
        self._features = {feature.name: feature for feature in features}
        self._weighted = {f.name for f in features if f.weighted}
        self._rows = {f.name: table_rows[f.table] for f in features}
        self._dense_features = dense_features
        self._tasks = tasks
        self._weighs_samples: bool | None = None  # as the first batch does
        self._on_bad_id = on_bad_id

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch in its final form.

        Raises:
          DataError: if it breaks a rule; the message names the first such sample.
        """
        batch = as_arrays(batch)
        if self._dense_features is None:
            self._dense_features = (
                np.shape(batch.dense)[-1] if np.ndim(batch.dense) else 0
            )
        if self._tasks is None:
            self._tasks = tasks_in(batch.labels)
        if self._weighs_samples is None:
            self._weighs_samples = batch.sample_weights is not None
        if self._was_checked(batch):
            return self._packed(batch)
        samples = len(batch)
        shape = (samples, self._tasks) if self._tasks else (samples,)
        labels = _float32(batch, "labels", batch.labels, shape)
        bad = (labels < 0) | (labels > 1)
        if bad.any():
            _fail(batch, "labels", bad, labels, "must be from 0 to 1")
        dense = _float32(batch, "dense", batch.dense, (samples, self._dense_features))
        _check_names("ids", batch.ids.keys(), self._features.keys())
        _check_names("weights", batch.weights.keys(), self._weighted)
        batch = self._packed(batch)
        ids = {name: self._ids(batch, name) for name in self._features}
        weights = {name: self._weights(batch, name) for name in batch.weights}
        for name, column in weights.items():
            padded = values_of(ids[name]) == PADDING_ID
            values = np.where(padded, np.float32(0), values_of(column))
            weights[name] = with_values(column, values)
        return dataclasses.replace(
            batch,
            dense=dense,
            ids=ids,
            labels=labels,
            weights=weights,
            sample_weights=self._sample_weights(batch),
        )

    def _packed(self, batch: Batch) -> Batch:
        """Returns the batch with ``Jagged`` sequences."""
        sequences = [f for f in self._features.values() if f.sequence]
        if not sequences:
            return batch
        ids, weights = dict(batch.ids), dict(batch.weights)
        for feature in sequences:
            name, longest = feature.name, feature.hotness
            jagged, shape = ids[name], np.shape(ids[name])
            if isinstance(jagged, Jagged):
                what = f"ids of feature {name!r}"
                jagged = jagged.checked(what, len(batch), longest, batch.locate)
            else:
                padded = _pad(self._bags(batch, name), longest, PADDING_ID)
                jagged = Jagged.of(padded, padded != PADDING_ID)
            ids[name] = jagged
            if name in weights:
                what, column = f"weights of feature {name!r}", weights[name]
                if not isinstance(column, Jagged):
                    column = _rectangle(what, column, shape, longest)
                weights[name] = jagged.like(column, what, 0)
        return dataclasses.replace(batch, ids=ids, weights=weights)

    @property
    def sample_bytes(self) -> int:
        """Returns the most bytes that a checked sample may have, without dense values
        until their number is known."""
        return self._layout().itemsize

    def _was_checked(self, batch: Batch) -> bool:
        """Says whether the batch is in its final form and was checked."""
        checked = batch.checked_rows
        return (
            batch.records is not None
            and batch.records.dtype == self._layout()
            and all(checked.get(n, math.inf) <= rows for n, rows in self._rows.items())
        )

    def _layout(self) -> np.dtype:
        features = self._features.values()
        return layout(
            self._dense_features or 0,
            tuple((f.name, f.hotness, id_dtype(self._rows[f.name])) for f in features),
            tuple((f.name, f.hotness) for f in features if f.weighted),
            self._tasks or 0,
            bool(self._weighs_samples),
        )

    def _sample_weights(self, batch: Batch) -> np.ndarray | None:
        weights = batch.sample_weights
        if (weights is not None) != self._weighs_samples:
            has = "none" if weights is None else "some"
            raise DataError(
                f"sample weights: this batch has {has}, must be like the first batch"
            )
        if weights is None:
            return None
        weights = _float32(batch, "sample weights", weights, (len(batch),))
        if (weights < 0).any():
            _fail(batch, "sample weights", weights < 0, weights, "must be 0 or more")
        return weights

    def _ids(self, batch: Batch, name: str) -> np.ndarray | Jagged:
        """Returns the ids without bad ones, in the dtype of their table's."""
        column, rows = batch.ids[name], self._rows[name]
        if isinstance(column, Jagged) and self._features[name].sequence:
            ids = _whole_numbers(f"ids of feature {name!r}", column.values)
        else:
            ids = self._bags(batch, name)
        if rows == DYNAMIC_KEYS:
            if ids.dtype == np.uint64:
                self._check_unsigned(batch, name, ids)
                ids = ids.view(np.int64)
        elif ids.size and not (ids.min() >= PADDING_ID and ids.max() < rows):
            ids = self._mend(batch, name, ids)
        ids = ids.astype(id_dtype(rows), copy=False)
        if not isinstance(column, Jagged):
            ids = _pad(ids, self._features[name].hotness, PADDING_ID)
        return with_values(column, ids)

    def _check_unsigned(self, batch: Batch, name: str, keys: np.ndarray) -> None:
        """Raises ``DataError`` if a key has the bits of -1: it would be padding."""
        bad = keys == np.iinfo(np.uint64).max
        if bad.any():
            rule = (
                "must be below 2^64 - 1, whose bits are those of the padding -1; give "
                "this key another number"
            )
            _fail(batch, f"ids of feature {name!r}", bad, keys, rule, batch.ids[name])

    def _bags(self, batch: Batch, name: str) -> np.ndarray:
        """Returns ``[batch, up to hotness]`` ids, whatever rows they are of."""
        what, feature = f"ids of feature {name!r}", self._features[name]
        column, hotness = batch.ids[name], feature.hotness
        if isinstance(column, Jagged):
            raise DataError(
                f"{what}: are jagged, must be an array: pooling is "
                f"{feature.pooling!r}, not 'none'"
            )
        ids = _whole_numbers(what, column)
        if ids.ndim != 2 or len(ids) != len(batch):
            raise DataError(
                f"{what}: shape is {ids.shape}, must be [{len(batch)}, up to {hotness}]"
            )
        if ids.shape[1] > hotness:
            extra = ids != PADDING_ID
            extra[:, :hotness] = False
            if extra.any():
                rule = f"a bag has more ids than the declared hotness, {hotness}"
                _fail(batch, what, extra, ids, rule)
            ids = ids[:, :hotness]
        return ids

    def _mend(self, batch: Batch, name: str, ids: np.ndarray) -> np.ndarray:
        """Returns a copy of ``ids`` without bad ones, int64."""
        rows = self._rows[name]
        bad = (ids < PADDING_ID) | (ids >= rows)
        if self._on_bad_id == "error":
            rule = (
                f"{self._id_rule(name)}; fix the data, or set on_bad_id to "
                '"drop" or "hash"'
            )
            what = f"ids of feature {name!r}"
            _fail(batch, what, bad, ids, rule, batch.ids[name])
        self.bad_ids[name] += int(bad.sum())
        mended = ids.astype(np.int64)
        if self._on_bad_id == "drop":
            mended[bad] = PADDING_ID
        else:
            mended[bad] = splitmix64(mended[bad].view(np.uint64)) % np.uint64(rows)
        return mended

    def _id_rule(self, name: str) -> str:
        table, last = self._features[name].table, self._rows[name] - 1
        return (
            f"must be from 0 to {last} (rows of table {table!r}), or {PADDING_ID} for "
            "padding"
        )

    def describe_bad_ids(self, batch: Batch, counts: Sequence[int]) -> list[str]:
        """Describes each feature with ids out of range: how many, an example, the rule.

        Args:
          batch: the batch with those ids.
          counts: how many of them each feature has, in the order of the features.
        """
        lines = []
        for name, count in zip(self._features, counts, strict=True):
            if count:
                ids = np.asarray(batch.ids[name])
                bad = ids[(ids < PADDING_ID) | (ids >= self._rows[name])]
                lines.append(
                    f"feature {name!r}: {count} such as {bad[0]}, {self._id_rule(name)}"
                )
        return lines

    def _weights(self, batch: Batch, name: str) -> np.ndarray | Jagged:
        column, ids = batch.weights[name], batch.ids[name]
        what, shape = f"weights of feature {name!r}", np.shape(values_of(ids))
        weights = _float32(batch, what, values_of(column), shape, ids)
        if not isinstance(ids, Jagged):
            hotness = self._features[name].hotness
            weights = _pad(weights[:, :hotness], hotness, 0)
        return with_values(column, weights)


def as_arrays(batch: Batch) -> Batch:
    """Returns the batch with arrays in the place of lists."""
    lists: dict[str, Any] = {
        what: _whole(what, values)
        for what in ("dense", "labels")
        if isinstance(values := getattr(batch, what), list | tuple)
    }
    for kind in ("ids", "weights"):
        columns = getattr(batch, kind)
        if any(isinstance(column, list | tuple) for column in columns.values()):
            lists[kind] = {
                name: column
                if isinstance(column, Jagged)
                else _whole(f"{kind} of feature {name!r}", column)
                for name, column in columns.items()
            }
    return dataclasses.replace(batch, **lists) if lists else batch


def _float32(
    batch: Batch,
    what: str,
    values: np.ndarray,
    shape: tuple[int, ...],
    column: np.ndarray | Jagged | None = None,
) -> np.ndarray:
    values = _whole(what, values)
    if values.dtype.kind not in "fiub":
        raise DataError(f"{what}: dtype is {values.dtype}, must be a number type")
    if values.shape != shape:
        raise DataError(f"{what}: shape is {values.shape}, must be {shape}")
    with np.errstate(over="ignore"):  # an overflow is found as an infinity below
        cast = values.astype(np.float32, copy=False)
    finite = np.isfinite(cast)
    if not finite.all():
        _fail(batch, what, ~finite, values, "must be finite in float32", column)
    return cast


def _whole_numbers(what: str, values: np.ndarray) -> np.ndarray:
    values = _whole(what, values)
    if not np.issubdtype(values.dtype, np.integer):
        raise DataError(f"{what}: dtype is {values.dtype}, must be an integer type")
    return values


def _whole(what: str, values: Any) -> np.ndarray:
    """Returns the values as an array; behind a mask there is no value to train on."""
    if np.ma.is_masked(values):
        raise DataError(
            f"{what}: {np.ma.count_masked(values)} values are masked; leave out their "
            "samples, or fill them"
        )
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        raise DataError(
            f"{what}: rows have different lengths, must have one: end short bags with "
            f"{PADDING_ID}, or give Jagged for a sequence"
        ) from None


def _rectangle(
    what: str, column: np.ndarray, shape: tuple[int, ...], longest: int
) -> np.ndarray:
    """Returns ``[batch, longest]`` values of a column that must have this shape."""
    column = _whole(what, column)
    if column.shape != shape:
        raise DataError(f"{what}: shape is {column.shape}, must be {shape}")
    return _pad(column[:, :longest], longest, 0)


def _pad(array: np.ndarray, width: int, value: float) -> np.ndarray:
    missing = width - array.shape[1]
    if missing == 0:
        return array
    return np.pad(array, ((0, 0), (0, missing)), constant_values=value)


def _check_names(kind: str, names: Set[str], declared: Set[str]) -> None:
    for problem, wrong in (
        ("missing", declared - names),
        ("not declared by the model", names - declared),
    ):
        if wrong:
            raise DataError(
                f"{kind} of features {', '.join(sorted(wrong))}: {problem}; a batch "
                f"must have {kind} for exactly {', '.join(sorted(declared)) or 'none'}"
            )


def _fail(
    batch: Batch,
    what: str,
    bad: np.ndarray,
    values: np.ndarray,
    rule: str,
    column: np.ndarray | Jagged | None = None,
) -> NoReturn:
    """Raises for the first sample where ``bad``; the values may be those of a jagged
    ``column``."""
    first = tuple(int(index) for index in np.argwhere(bad)[0])
    sample, *cell = column.cell(*first) if isinstance(column, Jagged) else first
    where = f"{what}, column {cell[0]}" if cell else what
    raise DataError(
        f"{batch.locate(sample)}: {where}: value is {values[first]}, {rule} "
        f"({int(bad.sum())} such values in this batch)"
    )
