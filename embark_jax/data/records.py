"""A sample is one record, in the same form on hosts and on devices.

A record is a NumPy structured value of 4-byte words, without gaps: ``label``,
``dense``, ``ids`` with a field for each feature, ``weights`` with one for each weighted
feature, if there are any, ``sample_weight``, if samples have one, and as prepared data
are read ``events``, if samples have histories. So a batch is copied to a device as a
whole, and its columns are views.

On the way to the devices, ``spans`` of a sequence has the place of its
first event and its length, and the events of all samples of a device are a record of
their own, with ``ids`` and ``weights``.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from embark_jax._base.errors import DataError

WORD_BYTES = 4
MOST_RECORD_BYTES = 2**31 - 1
"""NumPy's limit."""


@functools.lru_cache(maxsize=64)
def layout(
    dense: int,
    ids: tuple[tuple[str, int, np.dtype], ...],
    weights: tuple[tuple[str, int], ...] = (),
    tasks: int = 0,
    sample_weights: bool = False,
    event_words: int = 0,
    spans: tuple[str, ...] = (),
) -> np.dtype:
    """Returns the dtype of a record.

    Args:
      dense: number of dense columns.
      ids: for each feature: name, hotness, and dtype of its ids.
      weights: for each weighted feature: name and hotness.
      tasks: number of labels, if a sample has several; 0 means one label.
      sample_weights: whether a sample has a weight.
      event_words: numbers that say which events a sample's history is of.
      spans: sequences whose events are in another record.

    Raises:
      DataError: if a record would be too large for NumPy.
    """
    widths = {name: hot * kind.itemsize for name, hot, kind in ids}
    widths["dense"] = dense * WORD_BYTES
    size = sum(widths.values()) + sum(hot for _, hot in weights) * WORD_BYTES
    if size + (tasks + 2) * WORD_BYTES > MOST_RECORD_BYTES:
        name = max(widths, key=widths.__getitem__)
        raise DataError(
            f"a sample has {size:,} bytes, {widths[name]:,} of them in {name!r}, must "
            f"have at most {MOST_RECORD_BYTES:,}; keep fewer values of long lists: "
            "features.NAME.longest"
        )
    fields = [
        ("label", "<f4", (tasks,)) if tasks else ("label", "<f4"),
        ("dense", "<f4", (dense,)),
        *_of_features(ids, weights),
    ]
    if spans:
        fields.append(("spans", [(name, "<i4", (2,)) for name in spans]))
    if sample_weights:
        fields.append(("sample_weight", "<f4"))
    if event_words:
        fields.append(("events", "<i8", (event_words,)))
    return np.dtype(fields)


def layout_of_events(
    ids: tuple[tuple[str, int, np.dtype], ...],
    weights: tuple[tuple[str, int], ...] = (),
) -> np.dtype:
    """Returns the dtype of the record of a device's events; arguments are as in
    ``layout``, with the events that there is room for instead of a hotness.

    Raises:
      DataError: if the record would be too large for NumPy.
    """
    counts = [(room, type_.itemsize) for _, room, type_ in ids]
    counts += [(room, WORD_BYTES) for _, room in weights]
    size = sum(room * bytes_ for room, bytes_ in counts)
    if size > MOST_RECORD_BYTES:
        raise DataError(
            f"the events of a device's samples have {size:,} bytes, must have at most "
            f"{MOST_RECORD_BYTES:,}; lower the batch size"
        )
    return np.dtype(_of_features(ids, weights))


def _of_features(
    ids: tuple[tuple[str, int, np.dtype], ...],
    weights: tuple[tuple[str, int], ...],
) -> list[Any]:
    """Returns the fields that have one for each feature."""
    fields: list[Any] = [
        ("ids", [(name, type_.newbyteorder("<"), (hot,)) for name, hot, type_ in ids])
    ]
    if weights:
        fields.append(("weights", [(name, "<f4", (hot,)) for name, hot in weights]))
    return fields


def whole(records: np.ndarray) -> np.ndarray:
    """Returns a view of records as values without fields, which NumPy moves as a
    whole."""
    return records.view(f"V{records.dtype.itemsize}")
