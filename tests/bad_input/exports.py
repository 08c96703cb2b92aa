"""Samples given to the script that an export holds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bad_input.case import Case, samples


def _score(given: str, change: Callable[[dict[str, np.ndarray]], Any], *says: str):
    def damage():
        arrays = samples()
        change(arrays)
        np.savez("samples.npz", **arrays)

    return Case(given, "score.py samples.npz", ("samples.npz: ", *says), damage)


CASES = [
    _score("no dense features", lambda a: a.pop("dense"), "array 'dense' is missing"),
    _score(
        "a feature left out",
        lambda a: a.pop("ids/items"),
        "ids of features items: missing; needed are items, user",
    ),
    _score(
        "a feature that the model does not know",
        lambda a: a.update({"ids/town": a["ids/user"]}),
        "ids of features town: unknown to the model",
    ),
    _score(
        "an array that is no feature",
        lambda a: a.update(labels=a["ids/user"]),
        "array 'labels': must be dense, ids/… or weights/…",
    ),
    _score(
        "weights that the model does not take",
        lambda a: a.update({"weights/user": a["ids/user"]}),
        "weights of features user: unknown to the model; needed are none",
    ),
    _score(
        "ids in one dimension",
        lambda a: a.update({"ids/user": a["ids/user"].ravel()}),
        "ids/user: shape is [5], must be [5, 1]",
    ),
    _score(
        "bags that are too long",
        lambda a: a.update({"ids/user": np.zeros((5, 2), int)}),
        "ids/user: shape is [5, 2], must be [5, 1]",
    ),
    _score(
        "ids of other samples",
        lambda a: a.update({"ids/user": np.zeros((4, 1), int)}),
        "ids/user: shape is [4, 1], must be [5, 1]",
    ),
    _score(
        "ids that are no integers",
        lambda a: a.update({"ids/user": a["ids/user"] + 0.5}),
        "ids/user: dtype is float64, must be integers",
    ),
    _score(
        "an id beyond its table",
        lambda a: a.update({"ids/user": a["ids/user"] + 300}),
        "feature 'user': ids must be -1 (padding) to 299, are 300 to 304",
    ),
    _score(
        "a dense feature too many",
        lambda a: a.update(dense=np.zeros((5, 3))),
        "dense: shape is [5, 3], must be [samples, 2]",
    ),
    _score(
        "a dense feature that is not a number",
        lambda a: a.update(dense=np.full((5, 2), np.nan)),
        "dense: must be finite",
    ),
]
