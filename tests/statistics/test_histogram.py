"""Histograms of samples against the distributions that the samples were drawn from."""

import dataclasses

import numpy as np
import pytest
from scipy.special import comb

from embark_jax.planner import plan
from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.statistics.accesses import FeatureAccess, Statistics, TableAccess
from embark_jax.statistics.histogram import MOST_HOTTEST, Histogram
from embark_jax.statistics.skew import Zipf
from tests.planner.toy import one


def sampled(rows, exponent, draws):
    """A histogram, and the probability of each row: hot rows have any ids."""
    rng = np.random.default_rng(0)
    probability = np.arange(1.0, rows + 1) ** -exponent
    probability /= probability.sum()
    rng.shuffle(probability)
    counts = rng.multinomial(draws, probability)
    ids = np.flatnonzero(counts)
    return Histogram.from_counts(ids, counts[ids]), probability


def test_bins_and_hottest_by_hand():
    ids, counts = np.array([7, 3, 5, 0, 9]), np.array([1, 101, 1, 2, 100])
    histogram = Histogram.from_counts(ids, counts)
    # 101 and 100 are within 5 %; what was seen once or twice has its own bin.
    assert histogram.bins == ((2, 201), (1, 2), (2, 2))
    assert histogram.hottest == ((3, 101), (9, 100), (0, 2), (5, 1), (7, 1))
    assert (histogram.rows_seen, histogram.accesses) == (5, 205)


def test_values_of_a_vocabulary_are_in_order_behind_its_special_rows():
    ids, counts = np.arange(2, 7), np.array([900, 500, 300, 200, 100])
    assert Histogram.from_counts(ids, counts).in_order
    assert not Histogram.from_counts(20 * ids[::-1], counts).in_order


def test_a_part_of_the_sample_is_expected_to_show_what_subsets_do():
    counts = np.array([4, 2, 1, 1])
    histogram = Histogram.from_counts(np.arange(4), counts)
    # Over all subsets of 4 of the 8 draws; drawing each with 1/2 comes near it.
    missing = [comb(8 - count, 4) / comb(8, 4) for count in counts]
    assert histogram.expected_unique(100, 4) == pytest.approx(
        4 - sum(missing), abs=0.15
    )
    assert histogram.expected_unique(100, 8) == 4
    assert histogram.expected_unique(100, 0) == 0


@pytest.mark.parametrize("rows", [1000, 1_000_000])
@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_expected_unique_is_that_of_the_distribution(rows, exponent):
    draws = 200_000
    histogram, probability = sampled(rows, exponent, draws)
    for share, tolerance in ((0.05, 0.01), (0.5, 0.01), (1.0, 0.01), (2.0, 0.03)):
        exact = -np.expm1(share * draws * np.log1p(-probability)).sum()
        found = histogram.expected_unique(rows, share * draws)
        assert found == pytest.approx(exact, rel=tolerance)


def test_all_rows_seen_are_all_there_are():
    histogram, _ = sampled(10, 0.5, 1000)
    assert histogram.expected_unique(10, 1e9) == 10
    once = Histogram.from_counts(np.arange(7), np.ones(7, int))
    assert 7 < once.expected_unique(10, 14) < 10
    assert once.expected_unique(10, 1e9) == pytest.approx(10)


@pytest.mark.parametrize("row_shards", [1, 3, 8])
def test_hot_rows_count_where_they_are(row_shards):
    histogram, probability = sampled(100_000, 1.2, 1_000_000)
    assert len(histogram.hottest) == MOST_HOTTEST
    exact = np.bincount(np.arange(100_000) % row_shards, weights=probability)
    found = histogram.row_shard_shares(100_000, row_shards)
    np.testing.assert_allclose(found, exact, rtol=0.02)
    assert found.sum() == pytest.approx(1)


def test_rows_that_nobody_reads():
    none = Histogram.from_counts(np.zeros(0, int), np.zeros(0, int))
    assert none.expected_unique(10, 0) == 0
    np.testing.assert_allclose(none.row_shard_shares(3, 2), [2 / 3, 1 / 3])


@pytest.mark.parametrize("rows", [1000, 10_000_000])
@pytest.mark.parametrize("exponent", [0.5, 1.05, 1.5])
def test_the_exponent_is_found_again(rows, exponent):
    histogram, _ = sampled(rows, exponent, 200_000)
    assert histogram.zipf_exponent(rows) == pytest.approx(exponent, abs=0.03)


TABLES = [TableSpec("a", 1000, 8), TableSpec("b", 500, 8)]
FEATURES = [FeatureSpec("a", hotness=4), FeatureSpec("b"), FeatureSpec("c", "b", 3)]
STATISTICS = Statistics(
    400,
    {"a": FeatureAccess(1.5, 4, 300)},
    {"a": TableAccess(1000, sampled(1000, 1.2, 600)[0])},
)


def test_statistics_are_read_back():
    again = Statistics.from_json(STATISTICS.to_json())
    assert again.features == STATISTICS.features
    assert again.tables == STATISTICS.tables
    assert again.samples == 400


def test_statistics_of_another_model_are_refused():
    assert STATISTICS.problems(TABLES, FEATURES) == []
    other = [dataclasses.replace(TABLES[0], rows=10)]
    features = [FeatureSpec("a", hotness=2)]
    assert STATISTICS.problems(other, features) == [
        "statistics: table 'a' has 1000 rows, the model's 10",
        "statistics: feature 'a' has bags of 4 ids, the model's hold 2 at most",
    ]
    with pytest.raises(ValueError, match="table 'a' is not in the model"):
        plan(TABLES[1:], FEATURES[1:], fleet.dgx_h100(), 64, statistics=STATISTICS)


def test_each_table_has_its_own_skew_and_padding_is_not_sent():
    workload = Workload(fleet.dgx_h100(), 80, 0.5, 1.0, statistics=STATISTICS)
    seen, unseen = table_uses(TABLES, FEATURES, workload)
    assert seen == TableUse(
        dataclasses.replace(TABLES[0], name="alike"),
        rows=1000,
        hotness=4,
        filled=1.5 / 4,
        skew=STATISTICS.tables["a"].histogram,
    )
    assert unseen.skew == Zipf(0.5)
    # 10 samples a device have 15 ids on average, all of which the one owner gets.
    shape = one(seen, workload, "rb")
    certain, expected = shape.sent_ids
    np.testing.assert_allclose([certain, expected], [[0], [15]])
    np.testing.assert_allclose(shape.batch_ids, [120])


def test_the_plan_follows_the_statistics():
    # All samples look up one row of row shard 1, or each sample another row.
    one_row = Histogram.from_counts(np.array([1]), np.array([100_000]))
    all_rows = Histogram.from_counts(np.arange(10**5), np.ones(10**5, int))
    predicted = [
        plan(
            [TableSpec("a", 10**6, 16)],
            [FeatureSpec("a", hotness=20)],
            fleet.dgx_h100(),
            65_536,
            statistics=Statistics(10, {}, {"a": TableAccess(10**6, histogram)}),
        ).prediction.step_ms
        for histogram in (one_row, all_rows)
    ]
    assert predicted[0] < predicted[1]
