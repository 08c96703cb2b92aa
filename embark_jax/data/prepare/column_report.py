"""Reports what the data hold, and warns of probable mistakes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.config import Config
from embark_jax.data.prepare.numbers import NumberSeen

SEPARATORS = "|;,"
_NEARLY_ALL = 0.9
_FEW_VALUES = 10
_MANY_VALUES = 100
_HALF = 0.5
_FAR = 20
"""A column has few very large numbers if its maximum is this many standard deviations
above its median."""


class ValuesSeen(Config):
    """The unique values of a table, over all features that read it.

    Attributes:
      values: how many values the training samples have.
      once: how many of these only one training sample has.
      hottest: share of all occurrences that the most frequent 1 % of the values take.
      separator: a separator that nearly all values contain.
      decimal: whether nearly all values are numbers with a decimal point.
    """

    values: int
    once: int
    hottest: float
    separator: str | None = None
    decimal: bool = False


class FeatureSeen(Config):
    """The bags of a feature.

    Attributes:
      table: the table that it reads.
      samples: number of training samples.
      empty: number of training samples without a value.
      ids: number of values of all training samples.
      longest: length of the longest list of all splits, before lists are cut.
      cut: number of values of all splits that are left out of too long lists.
    """

    table: str
    samples: int = 0
    empty: int = 0
    ids: int = 0
    longest: int = 0
    cut: int = 0


class Report(Config):
    """What the data hold, column by column.

    Attributes:
      positive: mean label of the training samples.
      labels: mean of each label, if samples have several.
      features, numbers: statistics by column.
      tables: statistics by table, for tables that are not hashed.
    """

    positive: float
    features: Mapping[str, FeatureSeen]
    tables: Mapping[str, ValuesSeen]
    numbers: Mapping[str, NumberSeen]
    labels: Mapping[str, float] = {}

    def warnings(self) -> list[str]:
        """Yields what is probably a mistake, and what to do about it."""
        return [
            *(
                text
                for name, positive in (self.labels or {"": self.positive}).items()
                for text in _of_labels(f" of {name!r}" if name else "", positive)
            ),
            *(
                f"column {name!r}: {text}"
                for name, feature in self.features.items()
                for text in _of_feature(name, feature, self.tables.get(feature.table))
            ),
            *(
                f"column {name!r}: {text}"
                for name, number in self.numbers.items()
                for text in _of_numbers(name, number)
            ),
        ]


def values_seen(counted: pa.Table) -> ValuesSeen:
    """Returns statistics from ``key`` and ``count`` of all values, the most frequent
    first."""
    counts = counted["count"].to_numpy()
    top = math.ceil(len(counts) / 100)
    separator, decimal = None, False
    keys = counted["key"].combine_chunks()
    if pa.types.is_string(keys.type) and len(keys) >= _FEW_VALUES:
        for candidate in SEPARATORS:
            if _share_matching(keys, re.escape(candidate)) >= _NEARLY_ALL:
                separator = separator or candidate
        decimal = _share_matching(keys, r"^[+-]?\d*\.\d+$") >= _NEARLY_ALL
    return ValuesSeen(
        values=len(counts),
        once=int((counts == 1).sum()),
        hottest=float(counts[:top].sum() / counts.sum()) if len(counts) else 0.0,
        separator=separator,
        decimal=decimal,
    )


def bags_seen(values: pa.Array, longest: int | None) -> tuple[np.ndarray, int]:
    """Returns the number of ids in each bag, and how many exceed the longest allowed
    bag."""
    if pa.types.is_list(values.type):
        lengths = values.value_lengths().fill_null(0).to_numpy()
    else:
        lengths = values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    cut = 0 if longest is None else int(np.maximum(lengths - longest, 0).sum())
    return lengths, cut


def _share_matching(values: pa.Array, pattern: str) -> float:
    options = pc.MatchSubstringOptions(pattern)
    matches = pc.call_function("match_substring_regex", [values], options)
    return float(matches.to_numpy(zero_copy_only=False).mean())


def _of_labels(of: str, positive: float) -> Iterator[str]:
    if positive in (0.0, 1.0):
        yield f"all labels{of} of the training samples are {positive:g}"
    elif not 0.001 <= positive <= 0.999:
        yield f"{positive:.3%} of the labels{of} of the training samples are positive"


def _of_feature(
    name: str, feature: FeatureSeen, seen: ValuesSeen | None
) -> Iterator[str]:
    if feature.cut:
        yield (
            f"lists have up to {feature.longest:,} values; {feature.cut:,} values are "
            "beyond the longest that is kept"
        )
    if feature.empty >= _HALF * max(feature.samples, 1):
        share = feature.empty / max(feature.samples, 1)
        yield f"{share:.1%} of the training samples have no value"
    if seen is None:
        return
    if seen.separator:
        yield (
            f"nearly all of its {seen.values:,} values contain {seen.separator!r}: if "
            f"they are lists, say so in --columns: features: {{{name}: {{separator: "
            f"{seen.separator!r}}}}}"
        )
    elif seen.decimal and seen.values > _MANY_VALUES:
        yield (
            f"its {seen.values:,} values are numbers: give dense.{name}=standardize, "
            f"or dense.{name}=quantiles to split them into ranges"
        )
    elif seen.values == 1:
        yield "has one value, which tells nothing: leave it out"
    elif seen.values > _MANY_VALUES and seen.once == feature.samples:
        yield "differs in every sample, like an id of samples: leave it out"
    elif seen.values > _MANY_VALUES and seen.once >= _HALF * seen.values:
        yield (
            f"{seen.once:,} of its {seen.values:,} values are in one training sample "
            "alone: --min-count 2 lets them share a row"
        )


def _of_numbers(name: str, seen: NumberSeen) -> Iterator[str]:
    if seen.missing_share >= _HALF:
        yield f"{seen.missing_share:.1%} of the training samples have no number"
    elif seen.minimum == seen.maximum:
        yield f"is always {seen.minimum:g}, which tells nothing: leave it out"
    elif (
        seen.transform == "none"
        and seen.minimum >= 0
        and seen.maximum - seen.median > _FAR * seen.deviation
    ):
        yield (
            f"has median {seen.median:g} and maximum {seen.maximum:g}: give "
            f"dense.{name}=log, or dense.{name}=quantiles"
        )
