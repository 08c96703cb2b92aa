"""Reads MovieLens-100k: 100,000 ratings that 943 users gave 1,682 films, with who the
users and what the films are.

F. M. Harper and J. A. Konstan, https://doi.org/10.1145/2827872; terms of use:
https://grouplens.org/datasets/movielens/100k.
"""

from __future__ import annotations

from pathlib import Path

from embark_jax.data.columns import Columns
from embark_jax.data.download import fetch_movielens_100k
from embark_jax.prepare import own_files
from embark_jax.prepare.recipe import Recipe

_LOG = {"user": "user_id", "time": "timestamp"}
COLUMNS = {
    **_LOG,
    "label": "rating",
    "positive_from": 4,
    "join": {"ml-100k.user": "user_id", "ml-100k.item": "item_id"},
    "dense": {"timestamp": "standardize"},
    "features": {"movie_title": {"separator": " "}, "class": {"separator": " "}},
    "split": "random",
}
NEXT_COLUMNS = {
    **_LOG,
    "label": None,
    "features": {"item_id": {}},
    "others": False,
    "history": {"columns": ["item_id"], "ties": True, "least": 1, "every": 25},
    "split": "leave-one-out",
}
"""The next film of each user, by the protocol of next-item papers
(https://arxiv.org/abs/1808.09781, section IV-A): users of fewer than three films train
alone."""


def movielens_100k(raw: Path | None, columns: Columns) -> Recipe:
    """Reads the folder of ``fetch_movielens_100k``, which None fetches."""
    log = (fetch_movielens_100k() if raw is None else raw) / "ml-100k.inter"
    return own_files.csv(log, columns)
