"""Reads Criteo's click logs: 13 counts and 26 hashed categories, tab-separated.

Kaggle's display advertising challenge (``train.txt``, 45.8 million samples, 7 days) and
the terabyte of 24 days (``day_0`` … ``day_23``, 4.4 billion;
https://ailab.criteo.com/ressources/). Dense features become log(1 + x), with 0 for
missing and negative counts, as in DLRM (https://arxiv.org/abs/1906.00091).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from embark_jax.data.batch import DataError
from embark_jax.data.columns import NumberColumn, Preparation
from embark_jax.data.manifest import LABEL
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare.raw_files import TextFile
from embark_jax.prepare.recipe import (
    LAST_FILE,
    TEST,
    VALIDATION,
    Recipe,
    check_folder,
    find,
    last_share,
)
from embark_jax.prepare.values import Column

COUNTS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = (
    Column(LABEL, "integer", required=True, bounds=(0, 1)),
    *(Column(name, "integer") for name in COUNTS),
    *(Column(name, "hex") for name in CATEGORIES),
)
KAGGLE_DAYS = 7

# MLPerf's, in order of the features:
# https://github.com/mlcommons/training/tree/master/recommendation_v2/torchrec_dlrm
# fmt: off
MULTI_HOT = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
)
# fmt: on


def kaggle(raw: Path) -> Recipe:
    """Reads the Kaggle data. A split by time trains on six days; the first half of the
    last is the test set and the second the validation set, as in DLRM."""
    time_split = last_share(KAGGLE_DAYS, (TEST, VALIDATION))
    return _recipe([find(raw, "train.txt")], time_split)


def terabyte(raw: Path) -> Recipe:
    """Reads the days in the folder, from day_0 on. A split by time halves the last one
    into validation and test set, as in MLPerf.

    Args:
      raw: folder of day_0, day_1, …, plain or gzip.

    Raises:
      DataError: if a day is missing between others, or there are fewer than two.
    """
    check_folder(raw)
    days = {
        int(match[1]): path
        for path in raw.glob("day_*")
        if (match := re.fullmatch(r"day_(\d+)(\.gz)?", path.name))
    }
    if len(days) < 2 or sorted(days) != list(range(len(days))):
        names = ", ".join(sorted(path.name for path in days.values())) or "none"
        raise DataError(
            f"{raw}: must have day_0, day_1 and so on, two at least and none missing "
            f"between; has {names}"
        )
    return _recipe([days[day] for day in range(len(days))], LAST_FILE)


def terabyte_multi_hot(raw: Path) -> Recipe:
    """Reads the same days; reading the prepared data makes bags of MLPerf's hotness."""
    bags = dict(zip(CATEGORIES, MULTI_HOT, strict=True))
    return dataclasses.replace(terabyte(raw), bags_of_one_id=bags)


def _recipe(paths: Sequence[Path], time_split: str) -> Recipe:
    names = tuple(column.name for column in COLUMNS)
    return Recipe(
        raw=[TextFile(path, names) for path in paths],
        raw_columns=COLUMNS,
        select={LABEL: "label::FLOAT"},
        dense=COUNTS,
        features=tuple(map(FeatureSpec, CATEGORIES)),
        numbers=dict.fromkeys(COUNTS, NumberColumn(transform="log")),
        time_split=time_split,
        usual=Preparation(split="time"),
    )
