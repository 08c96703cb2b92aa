"""Inputs: how often a batch reads the same row, in Meta's traces and by a power law."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import poisson

from embark_jax.statistics.skew import Zipf, row_probabilities
from experiments.predicted_measured.cases import Case, Constants, measured

ROWS = 10_000_000
"""Rows of each table, an assumption: the traces do not say how many there are."""


SHIFT = 100
"""Hottest rows that a power law of these traces has no more: of all numbers from 10 to
100 by tens the one whose MAPE is least, of the cases that are not kept aside."""


@functools.cache
def exponent(ids: float, unique: float, shift: int) -> float:
    """Returns the exponent with which so many ids of a table have so many distinct
    ones."""
    root = brentq(lambda e: Zipf(e, shift).expected_unique(ROWS, ids) - unique, 0.1, 4)
    return float(root)  # pyright: ignore[reportArgumentType] without full output


def predicted(record: dict[str, Any], shift: int) -> float:
    """Returns the percentage of lookups of rows that the batch reads more often than a
    record says, if ids follow one power law in all tables."""
    ids, unique = (record[key] / record["tables"] for key in ("ids", "unique"))
    zipf = Zipf(exponent(ids, unique, shift), shift)
    probability, rows = row_probabilities(ROWS, zipf)
    # Of a row that is looked up, the other lookups are a Poisson number.
    more = poisson.sf(record["more_than"] - 1, ids * probability)
    return float(100 * np.sum(rows * probability * more))


def cases(_: Constants, shift: int = 0) -> Iterator[Case]:
    """Yields a case for each trace and number of reads."""
    for record, address in measured("inputs"):
        yield Case(
            "inputs",
            record["name"],
            "% of lookups",
            record["percent"],
            predicted(record, shift),
            address,
        )
