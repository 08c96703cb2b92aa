"""The data sets that can be prepared, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from embark_jax.data.prepare import criteo
from embark_jax.data.prepare.recipe import Recipe


class Known(NamedTuple):
    """A data set: its recipe for a folder of raw files, and the usual split."""

    recipe: Callable[[Path], Recipe]
    split: Literal["time", "random"]


DATASETS = {
    "criteo-kaggle": Known(criteo.kaggle, "time"),
    "criteo-1tb": Known(criteo.terabyte, "time"),
}
