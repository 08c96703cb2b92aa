"""Reads Avazu's click data of ten days: an hour, and 21 categories
(https://www.kaggle.com/c/avazu-ctr-prediction/data, 40.4 million samples)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax.data.manifest import LABEL
from embark_jax.data.prepare.delimited import Column, with_header
from embark_jax.data.prepare.recipe import DelimitedFile, Recipe, find, last_share
from embark_jax.plans.tables import FeatureSpec

DAYS = 10
LAYOUT = with_header(
    (
        Column("id", required=True),
        Column("click", "integer", required=True, bounds=(0, 1)),
        Column("hour", "integer", required=True, bounds=(10_01_01_00, 99_12_31_23)),
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
    ),
    ",",
)
CATEGORIES = tuple(column.name for column in LAYOUT.columns[3:])


def avazu(raw: Path) -> Recipe:
    """Reads train.csv; the dense feature is the hour of the day, from 0 to 1. The file
    is in the order of time; a split by time holds out the last tenth."""
    return Recipe(
        raw=[DelimitedFile(find(raw, "train.csv", "train"), LAYOUT)],
        dense=("hour",),
        features=tuple(map(FeatureSpec, CATEGORIES)),
        samples=lambda columns, file: _samples(columns),
        time_split=last_share(DAYS),
    )


def _samples(columns: pa.Table) -> pa.Table:
    hours = columns["hour"].to_numpy() % 100  # YYMMDDHH
    return pa.table(
        {
            LABEL: columns["click"].cast(pa.float32()),
            "hour": pa.array((hours / 23).astype(np.float32)),
            **{name: columns[name] for name in CATEGORIES},
        }
    )
