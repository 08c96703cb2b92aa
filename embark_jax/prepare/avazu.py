"""Reads Avazu's click data of ten days: an hour, and 21 categories
(https://www.kaggle.com/c/avazu-ctr-prediction/data, 40.4 million samples)."""

from __future__ import annotations

from pathlib import Path

from embark_jax.data.manifest import LABEL
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare.raw_files import TextFile
from embark_jax.prepare.recipe import Recipe, find, last_share
from embark_jax.prepare.values import Column

DAYS = 10
CATEGORIES = (
    Column("C1", "integer"),
    Column("banner_pos", "integer"),
    *(
        Column(f"{source}_{what}", "hex")
        for source in ("site", "app")
        for what in ("id", "domain", "category")
    ),
    *(Column(f"device_{what}", "hex") for what in ("id", "ip", "model")),
    *(Column(f"device_{what}", "integer") for what in ("type", "conn_type")),
    *(Column(f"C{i}", "integer") for i in range(14, 22)),
)
COLUMNS = (
    Column("click", "integer", required=True, bounds=(0, 1)),
    Column("hour", "integer", required=True, bounds=(10_01_01_00, 99_12_31_23)),
    *CATEGORIES,
)
NAMES = tuple(column.name for column in CATEGORIES)


def avazu(raw: Path) -> Recipe:
    """Reads train.csv; the dense feature is the hour of the day, from 0 to 1. The file
    is in the order of time; a split by time holds out the last tenth."""
    path = find(raw, "train.csv", "train")
    columns = ("id", *(column.name for column in COLUMNS))
    return Recipe(
        raw=[TextFile(path, columns, ",", header=True)],
        raw_columns=COLUMNS,
        # The hour is YYMMDDHH.
        select={LABEL: "click::FLOAT", "hour": "hour % 100 / 23"},
        dense=("hour",),
        features=tuple(map(FeatureSpec, NAMES)),
        time_split=last_share(DAYS),
    )
