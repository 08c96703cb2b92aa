"""Reads Taobao's ad display and click data of eight days, 26.6 million samples
(https://tianchi.aliyun.com/dataset/56): ``raw_sample`` joined with ``ad_feature`` and
``user_profile``."""

from __future__ import annotations

from pathlib import Path

from embark_jax.data.columns import HistoryColumns, NumberColumn, Preparation
from embark_jax.data.manifest import LABEL
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare.raw_files import TextFile
from embark_jax.prepare.recipe import TEST, TIME, TRAIN, USER, Recipe, find
from embark_jax.prepare.values import Column

LAST_DAY_S = 1_494_604_800  # 2017-05-13, 0:00 in Beijing
_MISSING = ("", "NULL")


def _integers(*names: str, **options) -> tuple[Column, ...]:
    return tuple(Column(n, "integer", missing=_MISSING, **options) for n in names)


SAMPLES = (
    *_integers("user", "time_stamp", "adgroup_id", required=True),
    Column("pid", "category"),
    *_integers("nonclk", "clk", required=True, bounds=(0, 1)),
)
ADS = (
    *_integers("adgroup_id", required=True),
    *_integers("cate_id", "campaign_id", "customer", "brand"),
    Column("price", "number", bounds=(0, 1e12)),
)
USERS = (
    *_integers("userid", required=True),
    *_integers("cms_segid", "cms_group_id", "final_gender_code", "age_level"),
    *_integers("pvalue_level", "shopping_level", "occupation", "new_user_class_level"),
)
OF_SAMPLES = ("user", "adgroup_id", "pid")
OF_ADS = tuple(column.name for column in ADS[1:-1])
OF_USERS = tuple(column.name for column in USERS[1:])
LONGEST = 20
"""Length of the sequences of what ads were about that the user was shown before,
clicked or not: that of the behaviour that TBSM reads
(https://arxiv.org/abs/2008.11922)."""
QUERY = """
SELECT raw.*, ads.* EXCLUDE (adgroup_id), users.* EXCLUDE (userid)
FROM raw LEFT JOIN ads USING (adgroup_id) LEFT JOIN users ON raw."user" = userid
"""


def taobao(raw: Path) -> Recipe:
    """Reads the three files; the dense feature is the log of the price. Ads and users
    without a description have missing values. A split by time takes the last day as
    test set, as in DIN (https://arxiv.org/abs/1706.06978), and makes no validation
    set. Events of one time are in the order of the samples, and in none's past."""
    return Recipe(
        raw=[_file(raw, "raw_sample.csv", SAMPLES)],
        raw_columns=SAMPLES,
        select={LABEL: "clk::FLOAT", USER: '"user"', TIME: "time_stamp"},
        dense=("price",),
        features=tuple(map(FeatureSpec, (*OF_SAMPLES, *OF_ADS, *OF_USERS))),
        sides={
            "ads": (_file(raw, "ad_feature.csv", ADS), ADS),
            "users": (_file(raw, "user_profile.csv", USERS), USERS),
        },
        query=QUERY,
        history=HistoryColumns(columns=("cate_id", "brand"), longest=LONGEST),
        time_split=f"if(time_stamp >= {LAST_DAY_S}, {TEST}, {TRAIN})",
        usual=Preparation(split="time"),
        numbers={"price": NumberColumn(transform="log")},
    )


def _file(raw: Path, name: str, columns: tuple[Column, ...]) -> TextFile:
    names = tuple(column.name for column in columns)
    return TextFile(find(raw, name), names, ",", header=True)
