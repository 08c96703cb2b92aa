"""What two artefacts must agree in wherever they meet, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

IN_ORDER = ("dense", "features", "labels")
"""Mappings whose names must be in one order, too: a sample has its columns in it."""

EXTENSION = (
    "dataset",
    "columns",
    "min_count",
    "hashed",
    "hash_columns",
    "by_frequency",
    "dense",
    "features",
    "labels",
)
"""What data that extend others must have as those."""
WINDOW = ("dense", "features", "labels", "numbers", "columns", "hashed_tables")
"""What data of a time window must have as those of the window before."""


def parts(artefact: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the parts of an artefact that must agree; None for one that it lacks."""
    return {name: artefact.get(name) for name in names}


def differences(theirs: Any, ours: Any, there: str, where: str = "") -> list[str]:
    """Returns where two JSON-like values differ, by dotted path.

    Lists are compared in their order, and so are the names in a mapping of IN_ORDER.

    Args:
      theirs, ours: the values.
      there: says whose ``theirs`` is, such as "in the checkpoint".
      where: path of the values.
    """
    if not (isinstance(theirs, dict) and isinstance(ours, dict)):
        if theirs == ours:
            return []
        return [f"{where.lstrip('.')} is {theirs} {there}, {ours} here"]
    names = theirs.keys() | ours.keys()
    if where.rpartition(".")[2] in IN_ORDER and list(theirs) != list(ours):
        order = f"the order of {where.lstrip('.')}"
        if len(theirs) == len(ours) == len(names):
            return [f"{order} is {list(theirs)} {there}, {list(ours)} here"]
    return [
        difference
        for name in sorted(names)
        for difference in differences(
            theirs.get(name, "nothing"),
            ours.get(name, "nothing"),
            there,
            f"{where}.{name}",
        )
    ]
