"""Accesses counted by hand, and against all ids at once."""

from collections import Counter

import numpy as np

from embark_jax.config import ExperimentConfig, TrainConfig
from embark_jax.run.accesses import BagCounter, sample_accesses
from embark_jax.run.dataset import read_dataset


def test_bags_are_counted_as_by_hand():
    counter = BagCounter()
    counter.add(np.array([[5, 2, -1], [5, -1, -1], [-1, -1, -1]], np.int32))
    counter.add(np.array([[2, 5, 5]], np.int32))
    assert (counter.samples, counter.accesses, counter.max_hotness) == (4, 6, 3)
    ids, counts = counter.counts()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {2: 2, 5: 4}


def test_many_batches_count_as_one():
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.3, 20_000) % 2**40
    counter = BagCounter()
    for part in np.split(ids, 100):
        counter.add(part.reshape(-1, 4))
    found, counts = counter.counts()
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == Counter(
        ids.tolist()
    )


def test_a_table_counts_the_ids_of_all_its_features():
    config = ExperimentConfig.model_validate(
        {
            "data": {"kind": "synthetic", "train_samples": 130},
            "embedding": {
                "tables": {"item": {"rows": 50}, "city": {"rows": 9}},
                "features": {
                    **{"item": {}, "city": {}},
                    "items": {"table": "item", "hotness": 3},
                },
            },
            "train": TrainConfig(batch_size=64),
        }
    )
    steps = []
    found = sample_accesses(config, 1000, lambda all_: steps.extend(all_) or steps)
    assert steps == [0, 1]  # whole batches of one epoch
    assert found.samples == 128
    batch = read_dataset(config)[0].train_batch(0, 128)
    items = np.concatenate([batch.ids["item"].ravel(), batch.ids["items"].ravel()])
    expected = Counter(items[items >= 0].tolist())
    histogram = found.tables["item"].histogram
    assert dict(histogram.hottest) == expected
    assert histogram.accesses == expected.total()
    assert found.features["items"].mean_hotness == (batch.ids["items"] >= 0).sum() / 128
    assert found.features["items"].max_hotness == 3
    assert found.features["city"].ids_seen == len(np.unique(batch.ids["city"]))
    assert found.problems(*read_dataset(config)[2:]) == []
