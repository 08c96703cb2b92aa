"""The data sets that can be prepared, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from embark_jax.data.prepare import avazu, criteo, movielens, tables, taobao
from embark_jax.data.prepare.recipe import Recipe
from embark_jax.data.prepare.tables import Columns


class Request(NamedTuple):
    """What a user asks of a recipe.

    Attributes:
      raw: folder of the files.
      columns: columns of the user's own files.
      multi_hot: whether to make Criteo's terabyte multi-hot.
    """

    raw: Path
    columns: Columns
    multi_hot: bool = False


class Known(NamedTuple):
    """A data set: its recipe, and its usual split."""

    recipe: Callable[[Request], Recipe]
    split: Literal["time", "random"] = "random"


DATASETS = {
    "criteo-kaggle": Known(lambda ask: criteo.kaggle(ask.raw), "time"),
    "criteo-1tb": Known(lambda ask: criteo.terabyte(ask.raw, ask.multi_hot), "time"),
    "avazu": Known(lambda ask: avazu.avazu(ask.raw)),
    "taobao": Known(lambda ask: taobao.taobao(ask.raw), "time"),
    "movielens-100k": Known(lambda ask: movielens.movielens_100k(ask.raw)),
    "movielens-1m": Known(lambda ask: movielens.movielens_1m(ask.raw)),
    "csv": Known(lambda ask: tables.csv(ask.raw, ask.columns)),
    "parquet": Known(lambda ask: tables.parquet(ask.raw, ask.columns)),
}
