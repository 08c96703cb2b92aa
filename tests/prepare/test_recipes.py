"""Every data set from files like those that users download, against what they say."""

import gzip
import math

import numpy as np
import pytest

from embark_jax.prepare import avazu, taobao
from tests.prepare.raw_files import (
    everything,
    prepared_by,
    samples,
    sizes,
    write_rows,
)


def test_avazu(tmp_path):
    names = ["id", *(column.name for column in avazu.COLUMNS)]
    rng, rows = np.random.default_rng(0), []
    for i in range(100):
        hexes = [f"{n:08x}" for n in rng.integers(2**32, size=9)]
        hour = 14102100 + 100 * (i // 24) + i % 24
        tail = [1, 0, 15706, 320, 50, 1722, 0, 35, -1, 79]
        rows.append([10**19 + i, i % 2, hour, 1005, 0, *hexes, *tail])
    text = "".join(",".join(map(str, line)) + "\n" for line in [names, *rows])
    (tmp_path / "train.gz").write_bytes(gzip.compress(text.encode()))
    data = prepared_by(avazu.avazu(tmp_path), tmp_path / "out", split="time")
    assert (len(data.features), data.dense_features) == (21, 1)
    # In the order of time: training, validation, test.
    for i, (sample, row) in enumerate(zip(everything(data), rows, strict=True)):
        assert sample["label"] == row[1]
        assert sample["dense hour"] == pytest.approx(row[2] % 100 / 23)
        assert sample["device_ip"] == (int(row[12], 16) if i < 90 else "rare")
        assert [sample["C20"], sample["C21"]] == [-1, 79]
    assert sizes(data) == [90, 5, 5]


def test_taobao(tmp_path):
    header = [column.name for column in taobao.SAMPLES]
    day = 86_400
    rows = [
        (1, taobao.LAST_DAY_S - day, 7, "430548_1007", 1, 0),
        (2, taobao.LAST_DAY_S, 8, "430539_1007", 0, 1),
        (3, taobao.LAST_DAY_S - 1, 8, "430539_1007", 0, 1),
    ]
    write_rows(tmp_path / "raw_sample.csv", header, rows)
    ads = [(7, 20, 30, 40, "NULL", 99.5), (8, 21, 31, 41, 51, 1)]
    write_rows(tmp_path / "ad_feature.csv", [c.name for c in taobao.ADS], ads)
    names = [column.name for column in taobao.USERS]
    users = [(1, 0, 8, 2, 4, "", 3, 0, ""), (3, 0, 8, 2, 5, 1, 3, 0, 2)]
    # The file as it is has a blank behind its last name.
    write_rows(tmp_path / "user_profile.csv", [*names[:-1], f"{names[-1]} "], users)
    data = prepared_by(taobao.taobao(tmp_path), tmp_path / "out", split="time")
    first, second = samples(data, "train")
    assert (first["label"], second["label"]) == (0, 1)
    assert (first["user"], first["adgroup_id"], first["pid"]) == (1, 7, rows[0][3])
    assert (first["cate_id"], first["brand"]) == (20, None)
    assert first["dense price"] == pytest.approx(math.log(100.5))
    assert (first["age_level"], first["pvalue_level"]) == (4, None)
    assert (second["brand"], second["age_level"]) == (51, 5)
    (last,) = samples(data, "test")
    assert last["adgroup_id"] == 8
    assert last["user"] == "rare"  # no training sample has this user
    assert last["age_level"] is None  # nor is it described
    assert data.manifest.rows("validation") == 0
    assert data.validation_batches(4) is None
