"""What two artefacts must agree in wherever they meet, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

IN_ORDER = ("dense", "features", "labels")
"""Mappings whose names must be in one order, too: a sample has its columns in it."""

# What must agree, by kind of artefact; "*" stands for any name.
PLAN = ("mesh.nodes", "mesh.gpus_per_node", "train.batch_size")
"""A plan, and the config that it is used with; tables and features, too."""
CHECKPOINT = (
    "seed",
    "data_seed",
    "tables",
    "features",
    "dense_features",
    "model",
    "embedding_optimizer",
    "table_optimizers",
    "dense_optimizer",
    "values",
)
"""A checkpoint, and the run that loads it: what its arrays stand for, and the seeds, of
which the order of the data is a function. A run that goes on from it must agree in all
that it says."""
WARM_START = (
    "model",
    "dense_features",
    "features.*.table",
    "features.*.pooling",
    "features.*.weighted",
    "tables.*.dim",
    "tables.*.dtype",
)
"""A checkpoint, and a run that starts with its rows and dense parameters."""
OPTIMIZERS = ("embedding_optimizer", "table_optimizers", "dense_optimizer")
"""The same, where the state of the optimizers comes over."""
EXTENSION = (
    "dataset",
    "columns",
    "min_count",
    "hashed",
    "hash_columns",
    "dense",
    "features",
    "labels",
)
"""Prepared data, and those that they extend."""
WINDOW = ("dense", "features", "labels", "numbers", "columns", "tables.*.kind")
"""Prepared data, and later ones whose tables begin with their rows."""


def parts(artefact: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Returns the parts of an artefact that must agree, by the tables above."""
    by_name: dict[str, list[str]] = {}
    for field in fields:
        name, _, rest = field.partition(".")
        for each in artefact if name == "*" else {name} & artefact.keys():
            by_name.setdefault(each, []).append(rest)
    chosen = {name: artefact[name] for name in by_name}
    for name, rest in by_name.items():
        if isinstance(chosen[name], Mapping) and "" not in rest:
            chosen[name] = parts(chosen[name], rest)
    return chosen


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
