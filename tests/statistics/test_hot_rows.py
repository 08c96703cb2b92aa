"""Hot rows of a budget, and samples that need no others, row by row."""

from collections import Counter

import numpy as np
import pytest

from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig, reading
from embark_jax.run import experiment
from embark_jax.run.accesses import sample_accesses
from embark_jax.run.dataset import read_dataset
from embark_jax.statistics.accesses import Statistics, TableAccess
from embark_jax.statistics.histogram import Histogram
from embark_jax.statistics.hot_rows import within_budget

TABLES = {"item": {"rows": 300}, "city": {"rows": 40}, "rare": {"rows": 200}}
FEATURES = {
    "item": {},
    "city": {},
    "rare": {},
    "items": {"table": "item", "hotness": 3},
}


def make_config(**changed):
    return ExperimentConfig.model_validate(
        {
            "data": {"kind": "synthetic", "train_samples": 10_240},
            "embedding": {"tables": TABLES, "features": FEATURES, "dim": 8} | changed,
            "train": {"batch_size": 256},
        }
    )


def test_the_most_frequent_rows_of_all_tables_fit_the_budget():
    rng = np.random.default_rng(0)
    counts = {
        "a": np.sort(rng.integers(1, 10_000, 60))[::-1],
        "b": np.sort(rng.integers(1, 1_000, 25))[::-1],
    }
    statistics = Statistics(
        1000,
        {},
        {
            name: TableAccess(100, Histogram.from_counts(np.arange(len(seen)), seen))
            for name, seen in counts.items()
        },
    )
    row_bytes = {"a": 24, "b": 40}
    for budget in range(0, 3000, 77):
        hot = within_budget(statistics, row_bytes, budget)
        taken = sum(row_bytes[name] * rows for name, rows in hot.rows.items())
        assert taken <= budget
        # All others are rarer: by 5 % of a bin, at most.
        chosen = [seen[: hot.rows[name]] for name, seen in counts.items()]
        others = [seen[hot.rows[name] :] for name, seen in counts.items()]
        rarest, most = np.concatenate(chosen), np.concatenate(others).max(initial=0)
        if rarest.size and most:
            assert rarest.min() * 1.05 >= most
            assert budget - taken < max(row_bytes.values())


def test_of_rows_in_no_order_none_is_hot():
    rng = np.random.default_rng(0)
    ids, seen = rng.permutation(5000), np.sort(rng.integers(1, 99, 5000))
    histogram = Histogram.from_counts(ids, seen)
    statistics = Statistics(1, {}, {"a": TableAccess(5000, histogram)})
    hot = within_budget(statistics, {"a": 4}, 10**9)
    assert hot.rows == {"a": 0}
    assert hot.accesses == float("inf")


def test_how_many_samples_are_all_hot():
    """Counted sample by sample: those of one half by the other half's counts."""
    config = make_config()
    statistics = sample_accesses(config, 10_240)
    dataset, _, _, features = read_dataset(config)
    batches = [dataset.train_batch(step, 256) for step in range(40)]
    counts = {name: Counter() for name in TABLES}
    for batch in batches:
        for feature in features:
            counts[feature.table].update(batch.ids[feature.name][::2].ravel().tolist())
    rarest = [
        min(
            counts[f.table][row]
            for f in features
            for row in batch.ids[f.name][sample].tolist()
            if row >= 0
        )
        for batch in batches
        for sample in range(1, 256, 2)
    ]
    assert sum(samples for _, samples in statistics.rarest) == len(rarest) == 5120
    edges = [seen for seen, _ in statistics.rarest]
    assert edges == sorted(edges)
    assert edges[0] == min(rarest)
    for seen in edges:
        share = np.mean(np.array(rarest) >= seen)
        assert statistics.all_hot_share(2 * seen) == pytest.approx(share)
    assert Statistics.from_json(statistics.to_json()).rarest == statistics.rarest


def test_samples_are_taken_from_the_whole_epoch():
    steps = []
    sample_accesses(make_config(), 1024, lambda all_: steps.extend(all_) or all_)
    assert len(set(steps)) == 4
    assert steps == sorted(steps)
    assert 4 < max(steps) < 40
    again = []
    sample_accesses(make_config(), 1024, lambda all_: again.extend(all_) or all_)
    assert again == steps


def test_a_budget_gives_every_table_hot_rows(tmp_path):
    """One setting is enough for batches of hot rows alone."""
    config = make_config(hot_budget="8kB")
    hot = config.train.model_copy(update={"hot_batches": True})
    config = config.model_copy(update={"train": hot})
    reading.save(config, tmp_path / "config.yaml")
    assert reading.load(tmp_path / "config.yaml") == config
    setup = experiment.build(config)
    replicated = {p.table.name: p.replicated_rows for p in setup.plan.placements}
    assert all(replicated.values())
    batches = [setup.training_data.train_batch(step, 256) for step in range(32)]
    assert any(batch.hot for batch in batches)


def test_a_budget_needs_statistics(tmp_path):
    absent = ExperimentConfig.model_validate(
        {
            "data": {
                "kind": "prepared",
                "path": tmp_path / "absent",
                "dense_features": 1,
            },
            "model": {"kind": "dlrm", "bottom": [4], "top": [1]},
            "embedding": {
                "dim": 4,
                "hot_budget": "1MB",
                "tables": {"user": {"rows": 9}},
            },
        }
    )
    with pytest.raises(ConfigError, match=r"embedding\.hot_budget: needs statistics"):
        experiment.plan_model(absent)
