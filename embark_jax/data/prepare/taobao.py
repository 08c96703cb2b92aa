"""Reads Taobao's ad display and click data of eight days, 26.6 million samples
(https://tianchi.aliyun.com/dataset/56): ``raw_sample`` joined with ``ad_feature`` and
``user_profile``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax.data.manifest import LABEL
from embark_jax.data.prepare.delimited import Column, Layout, with_header
from embark_jax.data.prepare.joins import SideTable
from embark_jax.data.prepare.recipe import (
    SPLIT,
    TEST,
    TRAIN,
    DelimitedFile,
    Recipe,
    find,
    given_split,
    missing_where,
)
from embark_jax.data.prepare.sequences import History
from embark_jax.plans.tables import FeatureSpec

LAST_DAY_S = 1_494_604_800  # 2017-05-13, 0:00 in Beijing


def _layout(*columns: Column) -> Layout:
    return with_header(columns, ",", missing=("", "NULL"))


SAMPLES = _layout(
    Column("user", "integer", required=True),
    Column("time_stamp", "integer", required=True),
    Column("adgroup_id", "integer", required=True),
    Column("pid"),
    Column("nonclk", "integer", required=True, bounds=(0, 1)),
    Column("clk", "integer", required=True, bounds=(0, 1)),
)
ADS = _layout(
    Column("adgroup_id", "integer", required=True),
    *(Column(n, "integer") for n in ("cate_id", "campaign_id", "customer", "brand")),
    Column("price", "number", bounds=(0, 1e12)),
)
USERS = _layout(
    Column("userid", "integer", required=True),
    *(
        Column(name, "integer")
        for name in (
            "cms_segid",
            "cms_group_id",
            "final_gender_code",
            "age_level",
            "pvalue_level",
            "shopping_level",
            "occupation",
            "new_user_class_level",
        )
    ),
)
OF_SAMPLES = ("user", "adgroup_id", "pid")
OF_ADS = tuple(column.name for column in ADS.columns[1:-1])
OF_USERS = tuple(column.name for column in USERS.columns[1:])
HISTORY = History(
    "user",
    "time_stamp",
    {f"past_{column}": column for column in ("cate_id", "brand")},
    length=20,
)
"""The sequence of the ads that the user was shown, clicked or not; as long as the
behaviour that TBSM reads (https://arxiv.org/abs/2008.11922)."""


def taobao(raw: Path) -> Recipe:
    """Reads the three files; the dense feature is the log of the price. Ads and users
    without a description have missing values. A split by time takes the last day as
    test set, as in DIN (https://arxiv.org/abs/1706.06978), and makes no validation set.
    HISTORY describes the sequences."""
    ads = SideTable(find(raw, "ad_feature.csv"), ADS, "adgroup_id")
    users = SideTable(find(raw, "user_profile.csv"), USERS, "userid")

    def samples(columns: pa.Table, file: int) -> pa.Table:
        ad = ads.rows_of(columns["adgroup_id"])
        user = users.rows_of(columns["user"])
        prices = ad["price"].fill_null(0).to_numpy()
        log_prices = np.log1p(prices).astype(np.float32)
        late = columns["time_stamp"].to_numpy() >= LAST_DAY_S
        return pa.table(
            {
                LABEL: columns["clk"].cast(pa.float32()),
                "price": missing_where(ad["price"], log_prices),
                **{name: columns[name] for name in (*OF_SAMPLES, HISTORY.time)},
                **{name: ad[name] for name in OF_ADS},
                **{name: user[name] for name in OF_USERS},
                SPLIT: np.where(late, TEST, TRAIN).astype(np.uint8),
            }
        )

    return Recipe(
        raw=[DelimitedFile(find(raw, "raw_sample.csv"), SAMPLES)],
        dense=("price",),
        features=(
            *map(FeatureSpec, (*OF_SAMPLES, *OF_ADS, *OF_USERS)),
            *(
                FeatureSpec(name, of, HISTORY.length, "none")
                for name, of in HISTORY.sequences.items()
            ),
        ),
        samples=samples,
        time_split=given_split,
        usual_split="time",
        history=HISTORY,
        sides=(ads.path, users.path),
    )
