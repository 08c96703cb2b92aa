"""What preparing saw of the data, and what a person would say of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax.config import Config
from embark_jax.data.prepare.numbers import NumberSeen

FILE_NAME = "report.json"
SEPARATORS = "|;,"
_NEARLY_ALL = 0.9
_FEW_VALUES = 10
_MANY_VALUES = 100
_HALF = 0.5
_FAR = 20
"""Deviations from the median to the most, of a column with few very large numbers."""


class ValuesSeen(Config):
    """The different values of a table, of all features that read it.

    Attributes:
      values: how many there are in the training samples.
      once: those that only one training sample has.
      hottest: share of all occurrences that the most frequent hundredth takes.
      separator: that nearly all values have in them.
      decimal: whether nearly all are numbers with a decimal point.
    """

    values: int
    once: int
    hottest: float
    separator: str | None = None
    decimal: bool = False


class FeatureSeen(Config):
    """The bags of a feature.

    Attributes:
      table: that it reads.
      samples: training samples.
      empty: those without a value.
      ids: all values of all of them.
      longest: of all splits, before lists are cut.
      cut: values of all splits that are left out, as lists are too long.
    """

    table: str
    samples: int = 0
    empty: int = 0
    ids: int = 0
    longest: int = 0
    cut: int = 0


class Report(Config):
    """What preparing saw, column by column.

    Attributes:
      positive: mean label of the training samples.
      features, numbers: by column.
      tables: by name; hashed ones are not there.
    """

    positive: float
    features: Mapping[str, FeatureSeen]
    tables: Mapping[str, ValuesSeen]
    numbers: Mapping[str, NumberSeen]

    def warnings(self) -> list[str]:
        """What is probably not as it was meant, and what to do about it."""
        return [
            *_of_labels(self.positive),
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
    """Of ``key`` and ``count`` of all values of a table, the most frequent first."""
    counts = counted["count"].to_numpy()
    top = math.ceil(len(counts) / 100)
    separator, decimal = None, False
    keys = counted["key"].combine_chunks()
    if pa.types.is_string(keys.type) and len(keys) >= _FEW_VALUES:
        for each in SEPARATORS:
            if _share_matching(keys, re.escape(each)) >= _NEARLY_ALL:
                separator = separator or each
        decimal = _share_matching(keys, r"^[+-]?\d*\.\d+$") >= _NEARLY_ALL
    return ValuesSeen(
        values=len(counts),
        once=int((counts == 1).sum()),
        hottest=float(counts[:top].sum() / counts.sum()) if len(counts) else 0.0,
        separator=separator,
        decimal=decimal,
    )


def bags_seen(values: pa.Array, longest: int | None) -> tuple[np.ndarray, int]:
    """Ids in each bag, and how many are beyond the longest that a bag may be."""
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


def _of_labels(positive: float) -> Iterator[str]:
    if positive in (0.0, 1.0):
        yield f"all labels of the training samples are {positive:g}"
    elif not 0.001 <= positive <= 0.999:
        yield f"{positive:.3%} of the training samples are positive"


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
            f"they are lists, say --list '{name}={seen.separator}'"
        )
    elif seen.decimal and seen.values > _MANY_VALUES:
        yield (
            f"its {seen.values:,} values are numbers: say --dense {name}, or --dense "
            f"{name}=quantiles for ranges of them"
        )
    elif seen.values == 1:
        yield "has one value, which says nothing: leave it out"
    elif seen.values > _MANY_VALUES and seen.once == feature.samples:
        yield "every sample has a value of its own, as an id of samples: leave it out"
    elif seen.values > _MANY_VALUES and seen.once >= _HALF * seen.values:
        yield (
            f"{seen.once:,} of its {seen.values:,} values are in one training sample "
            "alone: --min-count 2 lets them share a row"
        )


def _of_numbers(name: str, seen: NumberSeen) -> Iterator[str]:
    if seen.missing >= _HALF * max(seen.samples, 1):
        share = seen.missing / max(seen.samples, 1)
        yield f"{share:.1%} of the training samples have no number"
    elif seen.least == seen.most:
        yield f"is always {seen.least:g}, which says nothing: leave it out"
    elif (
        seen.transform == "none"
        and seen.least >= 0
        and seen.most - seen.median > _FAR * seen.deviation
    ):
        yield (
            f"has a median of {seen.median:g} and a most of {seen.most:g}: say --dense "
            f"{name}=log, or {name}=quantiles"
        )
