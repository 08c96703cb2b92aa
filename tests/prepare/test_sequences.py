"""Sequences: of the same user, earlier, the last ones, and of nothing later."""

from pathlib import Path

import jax
import numpy as np
import pytest

from embark_jax.config.reading import load
from embark_jax.prepare import encode, taobao
from embark_jax.run import experiment
from tests.prepare.raw_files import prepared_by, samples, write_rows

CONFIGS = sorted(
    Path(__file__).parents[2].glob("configs/experiments/taobao_ads/*.yaml")
)


@pytest.fixture
def raw(tmp_path):
    """Taobao's files with 300 samples, not in order of time."""
    folder, rng = tmp_path / "raw", np.random.default_rng(0)
    folder.mkdir()
    day = 86_400
    rows = []
    for _ in range(300):
        user, ad, click = rng.integers([1, 1, 0], [8, 31, 2])
        time = taobao.LAST_DAY_S - 3 * day + 600 * rng.integers(4 * day // 600)
        rows.append((user, time, ad, "430548_1007", 1 - click, click))
    header = [column.name for column in taobao.SAMPLES]
    write_rows(folder / "raw_sample.csv", header, rows)
    # An ad's category is its number + 100; every third has no brand.
    ads = [
        (ad, ad + 100, 1, 1, "NULL" if ad % 3 == 0 else ad + 200, 9.5)
        for ad in range(1, 31)
    ]
    names = [column.name for column in taobao.ADS]
    write_rows(folder / "ad_feature.csv", names, ads)
    names = [column.name for column in taobao.USERS]
    write_rows(folder / "user_profile.csv", names, [(1, *[0] * 8)])
    return folder


def test_taobao_has_the_ads_that_were_shown_before(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    data = prepared_by(taobao.taobao(raw), tmp_path / "out", split="time")
    assert [f.hotness for f in data.features if f.pooling == "none"] == [20, 20]

    lines = (raw / "raw_sample.csv").read_text().splitlines()[1:]
    shown = [tuple(map(int, line.split(",")[:3])) for line in lines]
    by_time = sorted(shown, key=lambda event: event[1])  # of one time as in the file
    lengths = []
    for split, is_last_day in (("train", False), ("test", True)):
        mine = [s for s in shown if (s[1] >= taobao.LAST_DAY_S) == is_last_day]
        for sample, (user, time, ad) in zip(samples(data, split), mine, strict=True):
            assert (sample["user"], sample["adgroup_id"]) == (user, ad)
            before = [a for who, when, a in by_time if who == user and when < time][
                -20:
            ]
            assert sample["past_cate_id"] == [ad + 100 for ad in before]
            assert sample["past_brand"] == [
                None if ad % 3 == 0 else ad + 200 for ad in before
            ]
            lengths.append(len(before))
    assert {0, 20} < set(lengths)

    # Padding is in front: the latest event is always in the last place.
    (batch,) = data.test_batches(300)
    ids = np.asarray(batch.ids["past_cate_id"])
    assert (np.diff((ids >= 0).astype(int), axis=1) >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_fit_what_is_prepared(raw, tmp_path, path):
    data = prepared_by(taobao.taobao(raw), tmp_path / "out", split="time")
    config = load(path, [f"data.path={tmp_path}/out", "train.batch_size=16"])
    setup = experiment.build(config)
    sequences = [f for f in setup.features if f.name.startswith("past_")]
    assert len(sequences) == 2
    assert {f.pooling for f in sequences} == {
        "none" if config.model.kind == "tbsm" else "mean"
    }
    if config.model.kind != "dlrm":
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
            trainer = setup.trainer()
            results = list(trainer.iterate(setup.dataset, 10))
            batches = setup.dataset.test_batches(16)
            tested = trainer.evaluate(batches)
        assert np.isfinite([result.loss for result in results]).all()
        assert tested.samples == data.manifest.rows("test")
