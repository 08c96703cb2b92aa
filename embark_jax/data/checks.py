"""Stops bad samples before they reach a device, and says which they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, NoReturn, get_args

import numpy as np

from embark_jax.data.batch import Batch, DataError, id_dtype, is_long
from embark_jax.data.hashing import splitmix64
from embark_jax.data.jagged import Jagged
from embark_jax.data.layout import Layout
from embark_jax.plans.options import OnBadId
from embark_jax.plans.tables import DYNAMIC_KEYS, PADDING_ID, FeatureSpec


class BatchChecker:
    """Checks batches and converts them to the one form that the train step takes.

    In that form the ids of a feature are ``[batch, hotness]``, int32 unless the table
    needs int64; dense features, labels and weights are float32; the weight of padding
    is 0. Of a sequence ids and weights are ``Jagged``. The checker never writes to the
    given arrays. It checks nothing if the batch was checked against the same tables
    when it was written, as prepared data are.

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
        self._rows = {f.name: table_rows[f.table] for f in features}
        self._dense_features, self._tasks = dense_features, tasks
        self._weighs_samples: bool | None = None  # as the first batch does
        self._stored: Layout | None = None
        self._on_bad_id = on_bad_id

    def __call__(self, batch: Batch) -> Batch:
        """Returns the batch in its final form.

        Raises:
          DataError: if it breaks a rule; the message names the first such sample.
        """
        dense, labels = _array("dense", batch.dense), _array("labels", batch.labels)
        if self._dense_features is None:
            self._dense_features = dense.shape[-1] if dense.ndim else 0
        if self._tasks is None:
            several = labels.ndim == 2 and labels.shape[1] > 1
            self._tasks = labels.shape[1] if several else 0
        if self._weighs_samples is None:
            self._weighs_samples = batch.sample_weights is not None
        if self._was_checked(batch):
            return batch
        samples = len(labels)
        shape = (samples, self._tasks) if self._tasks else (samples,)
        labels = _float32(batch, "labels", labels, shape, self._tasks > 0)
        bad = (labels < 0) | (labels > 1)
        if bad.any():
            _fail(batch, "labels", bad, labels, "must be from 0 to 1")
        dense = _float32(batch, "dense", dense, (samples, self._dense_features))
        _check_names("ids", batch.ids.keys(), self._features.keys())
        weighted = {name: None for name, f in self._features.items() if f.weighted}
        _check_names("weights", batch.weights.keys(), weighted.keys())
        ids = {name: self._ids(batch, f, samples) for name, f in self._features.items()}
        return dataclasses.replace(
            batch,
            dense=dense,
            ids=ids,
            labels=labels,
            weights={name: self._weights(batch, name, ids[name]) for name in weighted},
            sample_weights=self._sample_weights(batch, samples),
        )

    @property
    def sample_bytes(self) -> int:
        """Returns the most bytes that a checked sample may have, without dense values
        until their number is known."""
        return self._layout().sample_bytes

    def _was_checked(self, batch: Batch) -> bool:
        """Says whether the batch is in its final form and was checked."""
        if self._stored is None:
            self._stored = self._layout()
        if batch.stored is None or batch.stored[0] != self._stored:
            return False
        if any(feature.sequence for feature in self._features.values()):
            return False
        checked = batch.checked_rows
        return all(checked.get(n, math.inf) <= rows for n, rows in self._rows.items())

    def _layout(self) -> Layout:
        features = self._features.values()
        return Layout(
            self._tasks or 1,
            self._dense_features or 0,
            tuple((f.name, f.hotness, is_long(self._rows[f.name])) for f in features),
            tuple((f.name, f.hotness) for f in features if f.weighted),
            bool(self._weighs_samples),
        )

    def _sample_weights(self, batch: Batch, samples: int) -> np.ndarray | None:
        weights = batch.sample_weights
        if (weights is not None) != self._weighs_samples:
            has = "none" if weights is None else "some"
            raise DataError(
                f"sample weights: this batch has {has}, must be like the first batch"
            )
        if weights is None:
            return None
        weights = _float32(batch, "sample weights", weights, (samples,))
        if (weights < 0).any():
            _fail(batch, "sample weights", weights < 0, weights, "must be 0 or more")
        return weights

    def _ids(
        self, batch: Batch, feature: FeatureSpec, samples: int
    ) -> np.ndarray | Jagged:
        """Returns ids of a feature in their final form, without bad ones."""
        what, hotness = f"ids of feature {feature.name!r}", feature.hotness
        column = batch.ids[feature.name]
        if isinstance(column, Jagged) and not feature.sequence:
            column = np.asarray(column)
        if isinstance(column, Jagged):
            column = column.checked(what, samples, hotness, batch.locate)
            values = _whole_numbers(what, column.values)
            values = self._valid(batch, feature, values)
            return dataclasses.replace(column, values=values)
        ids = _whole_numbers(what, column)
        if ids.ndim != 2 or len(ids) != samples:
            raise DataError(
                f"{what}: shape is {ids.shape}, must be [{samples}, up to {hotness}]"
            )
        if ids.shape[1] > hotness:
            extra = ids != PADDING_ID
            extra[:, :hotness] = False
            if extra.any():
                rule = f"a bag has more ids than the declared hotness, {hotness}"
                _fail(batch, what, extra, ids, rule)
            ids = ids[:, :hotness]
        ids = _pad(self._valid(batch, feature, ids), hotness, PADDING_ID)
        return Jagged.of(ids, ids != PADDING_ID) if feature.sequence else ids

    def _valid(self, batch: Batch, feature: FeatureSpec, ids: np.ndarray) -> np.ndarray:
        """Returns ids that are rows or padding, in the dtype of their table's."""
        name, rows = feature.name, self._rows[feature.name]
        what, column = f"ids of feature {name!r}", batch.ids[name]
        if rows == DYNAMIC_KEYS:
            if ids.dtype == np.uint64:
                if (bad := ids == np.iinfo(np.uint64).max).any():
                    rule = (
                        "must be below 2^64 - 1, whose bits are those of the padding "
                        "-1; give this key another number"
                    )
                    _fail(batch, what, bad, ids, rule, column)
                ids = ids.view(np.int64)
        elif ids.size and not (ids.min() >= PADDING_ID and ids.max() < rows):
            bad = (ids < PADDING_ID) | (ids >= rows)
            if self._on_bad_id == "error":
                rule = (
                    f"{self._id_rule(name)}; fix the data, or set on_bad_id to "
                    '"drop" or "hash"'
                )
                _fail(batch, what, bad, ids, rule, column)
            self.bad_ids[name] += int(bad.sum())
            ids = ids.astype(np.int64)
            hashes = splitmix64(ids[bad].view(np.uint64)) % np.uint64(rows)
            ids[bad] = PADDING_ID if self._on_bad_id == "drop" else hashes
        return ids.astype(id_dtype(rows), copy=False)

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

    def _weights(
        self, batch: Batch, name: str, ids: np.ndarray | Jagged
    ) -> np.ndarray | Jagged:
        """Returns weights that lie as these ids, which are in their final form."""
        what, column = f"weights of feature {name!r}", batch.weights[name]
        if isinstance(column, Jagged):
            if not isinstance(ids, Jagged) or not ids.lies_as(column):
                raise DataError(
                    f"{what}: lengths or begins are not those of its ids, must be equal"
                )
            weights = _float32(batch, what, column.values, ids.values.shape)
        else:
            hotness = self._features[name].hotness
            weights = _float32(batch, what, column, np.shape(batch.ids[name]))
            weights = _pad(weights[:, :hotness], hotness, 0)
            if isinstance(ids, Jagged):
                weights = ids.pick(weights)
        if not isinstance(ids, Jagged):
            return np.where(ids == PADDING_ID, np.float32(0), weights)
        weights = np.where(ids.values == PADDING_ID, np.float32(0), weights)
        return dataclasses.replace(ids, values=weights, fill=0)


def _array(what: str, values: Any) -> np.ndarray:
    # NumPy would take what lies behind the mask.
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(
            f"{what}: is a masked array, must be whole: write {PADDING_ID} for ids "
            "that are missing"
        )
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(
            f"{what}: rows have different lengths, must have one: end short bags with "
            f"{PADDING_ID}, or give Jagged for a sequence"
        ) from None


def _float32(
    batch: Batch,
    what: str,
    values: Any,
    shape: tuple[int, ...],
    may_be_missing: bool = False,
) -> np.ndarray:
    """Returns finite numbers; NaN is one that is missing."""
    values = _array(what, values)
    if values.dtype.kind not in "fiub":
        raise DataError(f"{what}: dtype is {values.dtype}, must be a number type")
    if values.shape != shape:
        raise DataError(f"{what}: shape is {values.shape}, must be {shape}")
    with np.errstate(over="ignore"):  # an overflow is found as an infinity below
        cast = values.astype(np.float32, copy=False)
    finite = np.isfinite(cast)
    if may_be_missing:
        finite |= np.isnan(cast)
    if not finite.all():
        _fail(batch, what, ~finite, values, "must be finite in float32")
    return cast


def _whole_numbers(what: str, values: Any) -> np.ndarray:
    values = _array(what, values)
    if values.dtype.kind not in "iu":
        raise DataError(f"{what}: dtype is {values.dtype}, must be an integer type")
    return values


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
    sample, *place = column.place(*first) if isinstance(column, Jagged) else first
    where = f"{what}, column {place[0]}" if place else what
    raise DataError(
        f"{batch.locate(sample)}: {where}: value is {values[first]}, {rule} "
        f"({int(bad.sum())} such values in this batch)"
    )
