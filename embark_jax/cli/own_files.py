"""Columns of a user's own files: reads them from options, and prints their report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
from rich.table import Column, Table

from embark_jax._base import yaml_text
from embark_jax._base.config import ConfigError, read_text
from embark_jax.cli.arguments import console, say
from embark_jax.plans.tables import DYNAMIC_KEYS

if TYPE_CHECKING:
    from embark_jax.data.prepare.columns import Columns
    from embark_jax.data.prepare.report import Report

KEYS = "keys"
"""Number of rows of a column that is hashed to keys of a dynamic table."""
MOST_COLUMNS = 60
"""A report shows at most this many columns."""


def hashed_of(given: Iterable[str]) -> dict[str, int | None]:
    """The rows to which columns are hashed, as ``--hash-column`` says; None is
    ``--max-rows``.

    Raises:
      ConfigError: if a number of rows is none.
    """
    hashed: dict[str, int | None] = {}
    for name, rows in map(_halves, given):
        if rows is None:
            hashed[name] = None
        elif rows == KEYS:
            hashed[name] = DYNAMIC_KEYS
        elif rows.isdecimal() and 2 <= int(rows) <= DYNAMIC_KEYS:
            hashed[name] = int(rows)
        else:
            raise ConfigError(
                f"--hash-column {name}={rows}: {rows!r} is no number of rows, must be "
                f"a whole number from 2 on, or {KEYS}, for a dynamic table"
            )
    return hashed


def columns_of(
    file: Path | None,
    *,
    label: Sequence[str],
    dense: Iterable[str],
    missing: str,
    feature: Collection[str],
    list_: Iterable[str],
    sequence: Iterable[str],
    share: Iterable[str],
    longest: int | None,
    **others: Any,
) -> Columns:
    """The columns that the options of ``embark data prepare`` describe.

    Args:
      file: YAML that describes all columns, instead of the options.
      label: names of the columns of labels.
      dense: ``NAME`` or ``NAME=TRANSFORM``.
      missing: what missing numbers become.
      feature: names of the columns of categories.
      list_, sequence: ``NAME`` or ``NAME=SEPARATOR``.
      share: ``NAME=OTHER``.
      longest: how many values of a list or sequence are kept.
      others: further fields of ``Columns``.

    Raises:
      ConfigError: if the file cannot be read, or a value breaks a rule.
    """
    from embark_jax.data.prepare.columns import LIST_SEPARATOR, Columns

    if file is not None:
        return _checked(Columns, yaml_text.parse(read_text(file)), str(file))
    numbers: dict[str, Any] = {}
    for name, transform in map(_halves, dense):
        kind, _, quantiles = (transform or "none").partition(":")
        numbers[name] = {"transform": kind, "missing": missing}
        if quantiles:
            numbers[name]["quantiles"] = quantiles
    features: dict[str, Any] = {name: {} for name in feature}
    for given, is_sequence in ((list_, False), (sequence, True)):
        for name, separator in map(_halves, given):
            features[name] = {
                "separator": separator or LIST_SEPARATOR,
                "sequence": is_sequence,
                "longest": longest,
            }
    for name, other in map(_halves, share):
        if not other:
            raise ConfigError(f"--share {name}: must be NAME=OTHER")
        features.setdefault(name, {})["table"] = other
    if len(label) > 1:
        others["labels"] = tuple(label)
    elif label:
        others["label"] = label[0]
    asked = {
        "dense": numbers,
        "features": features,
        "others": not feature,
        **others,
    }
    return _checked(Columns, asked, "options")


def show(report: Report) -> None:
    """Prints what the columns hold, and warnings."""
    positive = f"{report.positive:.2%}"
    if report.labels:
        positive = ", ".join(f"{n} {share:.2%}" for n, share in report.labels.items())
    table = Table(
        Column("column", overflow="fold"),
        "values",
        "share of hottest 1 %",
        "once",
        "per sample",
        "largest",
        "missing",
        title=f"positive training samples: {positive}",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, feature in list(report.features.items())[:MOST_COLUMNS]:
        values = report.tables.get(feature.table)
        table.add_row(
            name,
            *(
                (f"{values.values:,}", f"{values.hottest:.1%}", f"{values.once:,}")
                if values
                else ("hashed", "", "")
            ),
            f"{feature.ids / max(feature.samples, 1):.2f}",
            f"{feature.longest:,}",
            f"{feature.empty / max(feature.samples, 1):.1%}",
        )
    console.print(table)
    if report.numbers:
        table = Table(Column("column", overflow="fold"))
        for heading in ("minimum", "median", "maximum", "mean", "deviation", "missing"):
            table.add_column(heading, justify="right")
        for name, each in list(report.numbers.items())[:MOST_COLUMNS]:
            numbers = each.least, each.median, each.most, each.mean, each.deviation
            share = each.missing / max(each.samples, 1)
            table.add_row(name, *(f"{n:.4g}" for n in numbers), f"{share:.1%}")
        console.print(table)
    for warning in report.warnings():
        say(f"warning: {warning}")


def _halves(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _checked(kind: type[Columns], given: Any, where: str) -> Columns:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: must be a mapping, such as label: clicked")
    try:
        return kind.model_validate(given)
    except pydantic.ValidationError as error:
        lines = [
            f"{'.'.join(map(str, each['loc']))}: {each['input']!r:.80} given, "
            + each["msg"].replace("Input should", "must")
            for each in error.errors(include_url=False)
        ]
        raise ConfigError("\n  ".join([f"{where}:", *lines])) from None
