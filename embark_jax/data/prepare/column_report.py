"""Reports what the data hold, and warns of probable mistakes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from embark_jax._base.config import Config
from embark_jax.data.prepare import sql
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


def values_seen(database: sql.Database, is_text: bool) -> ValuesSeen:
    """Returns statistics of the table ``counted``, with ``key`` and ``count`` of all
    values."""
    matches = [f"avg(contains(key, {sql.text(each)})::INT)" for each in SEPARATORS]
    matches.append(r"avg(regexp_full_match(key, '[+-]?\d*\.\d+')::INT)")
    shares = ", ".join(matches if is_text else [])
    values, once, total, *shares = database.rows(
        "SELECT count(*), count(*) FILTER (count = 1), coalesce(sum(count), 0), "
        f"{shares} FROM counted"
    )[0]
    (hottest,) = database.rows(
        "SELECT coalesce(sum(count), 0) FROM (SELECT count FROM counted "
        f"ORDER BY count DESC LIMIT {math.ceil(values / 100)})"
    )[0]
    if values < _FEW_VALUES:
        shares = []
    often = [(share or 0) >= _NEARLY_ALL for share in shares]
    return ValuesSeen(
        values=values,
        once=once,
        hottest=float(hottest / total) if total else 0.0,
        separator=next(
            (s for s, is_in in zip(SEPARATORS, often, strict=False) if is_in), None
        ),
        decimal=bool(often and often[-1]),
    )


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
