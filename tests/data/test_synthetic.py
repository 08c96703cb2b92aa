import itertools
import tracemalloc

import numpy as np
import pytest
import scipy.integrate
import scipy.sparse
import scipy.stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.synthetic import BLOCK, SyntheticClicks, power_law_ids
from embark_jax.plans.tables import FeatureSpec, TableSpec

TABLES = [
    TableSpec("user", rows=5_000, dim=8),
    TableSpec("item", rows=1_000, dim=8),
    TableSpec("tag", rows=50, dim=8),
    TableSpec("site", rows=5_000_000_000, dim=8),
]
FEATURES = [
    FeatureSpec("user"),
    FeatureSpec("item"),
    FeatureSpec("history", table="item", hotness=5, pooling="mean", weighted=True),
    FeatureSpec("tag", hotness=3),
    FeatureSpec("site"),
]


def clicks(**changes):
    options = {"train_samples": 40_000, "test_samples": 20_000, "seed": 3}
    return SyntheticClicks(TABLES, FEATURES, **options | changes)


def all_arrays(batch):
    return [batch.dense, batch.labels, *batch.ids.values(), *batch.weights.values()]


def mass(first, last, exponent):
    """Integral of the power law over [first, last), by quadrature over log x."""

    def integrand(log_x):
        return np.exp((1 - exponent) * log_x)

    return scipy.integrate.quad(integrand, np.log(first), np.log(last), epsabs=0)[0]


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.05, 1.2, 3.0])
@pytest.mark.parametrize("rows", [1, 2, 17, 5_000_000_000])
def test_ids_follow_the_power_law(rows, exponent):
    draws = 200_000
    ids = power_law_ids(np.random.default_rng(0).random(draws), rows, exponent)
    assert ids.dtype == (np.int64 if rows > 2**31 else np.int32)
    assert ids.min() >= 0
    assert ids.max() < rows
    # Single ids where there are few, then decades; too rare bins are merged.
    edges = [
        *range(min(rows, 10)),
        *(10**d for d in range(1, 10) if 10**d < rows),
        rows,
    ]
    edges = np.unique(edges)
    expected = np.array(
        [
            mass(a + 1, b + 1, exponent) / mass(1, rows + 1, exponent)
            for a, b in itertools.pairwise(edges)
        ]
    )
    observed = np.histogram(ids, edges)[0]
    common = expected * draws > 10
    expected = draws * np.array([*expected[common], expected[~common].sum()])
    observed = np.array([*observed[common], observed[~common].sum()])
    statistic = np.sum((observed - expected) ** 2 / np.maximum(expected, 1))
    assert statistic < scipy.stats.chi2.ppf(0.9999, df=len(expected))


def test_splitmix64_matches_the_published_sequence():
    # The first outputs from seed 1234567, https://rosettacode.org/wiki/Pseudo-random_
    # numbers/Splitmix64
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    counters = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN_GAMMA
    np.testing.assert_array_equal(splitmix64(counters), np.array(expected, np.uint64))


def test_seed_and_split_change_every_array():
    train = clicks().train_batch(0, BLOCK)
    others = [clicks(seed=4).train_batch(0, BLOCK), next(clicks().test_batches(BLOCK))]
    for other in others:
        for a, b in zip(all_arrays(train), all_arrays(other), strict=True):
            assert not np.array_equal(a, b)


@pytest.mark.parametrize("batch_size", [1, 96, 1000, 3000])
def test_a_sample_depends_on_its_position_alone(batch_size):
    data, again = (clicks(train_samples=2500) for _ in range(2))
    assert data.bayes_auc() == again.bayes_auc()
    epoch = all_arrays(again.train_batch(0, 2500))
    for step in (5, 0, 1):
        positions = np.arange(step * batch_size, (step + 1) * batch_size) % 2500
        batch = data.train_batch(step, batch_size)
        for whole, part in zip(epoch, all_arrays(batch), strict=True):
            np.testing.assert_array_equal(whole[positions], part)
        assert batch.locate(0) == f"training sample {positions[0]}"


def test_shapes_bags_and_weights():
    batch = clicks(dense_features=4).train_batch(0, 8192)
    assert batch.dense.shape == (8192, 4)
    assert {a.dtype for a in (batch.dense, batch.labels)} == {np.dtype(np.float32)}
    np.testing.assert_allclose(batch.dense.std(axis=0), 1, atol=0.05)
    assert batch.weights.keys() == {"history"}
    for feature in FEATURES:
        real = batch.ids[feature.name] >= 0
        assert real.shape == (8192, feature.hotness)
        lengths = real.sum(axis=1)
        np.testing.assert_array_equal(
            real, np.arange(feature.hotness) < lengths[:, None]
        )
        shares = np.bincount(lengths, minlength=feature.hotness + 1)[1:] / 8192
        np.testing.assert_allclose(shares, 1 / feature.hotness, atol=0.03)
        if feature.weighted:
            np.testing.assert_array_equal(batch.weights[feature.name] > 0, real)


def one_hot(data, batch):
    columns = [scipy.sparse.csr_matrix(batch.dense)]
    for feature in data.features[:4]:  # "site" has too many rows
        ids = batch.ids[feature.name]
        weights = batch.weights.get(feature.name, np.ones(ids.shape)) * (ids >= 0)
        weights = weights / weights.sum(axis=1, keepdims=True)
        sample, place = np.nonzero(ids >= 0)
        entries = weights[sample, place], (sample, ids[sample, place])
        shape = len(batch), data.table_rows[feature.table]
        columns.append(scipy.sparse.csr_matrix(entries, shape=shape))
    return scipy.sparse.hstack(columns).tocsr()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_teacher_can_be_learnt_and_not_beaten(seed):
    data = clicks(seed=seed)
    train, test = data.train_batch(0, 40_000), next(data.test_batches(20_000))
    assert 0.25 <= train.labels.mean() <= 0.30
    best = data.bayes_auc()
    assert 0.78 <= best <= 0.82

    # A linear model sees all but the interactions and the rows of "site".
    model = LogisticRegression(C=0.3, max_iter=200)
    model.fit(one_hot(data, train), train.labels)
    scores = model.decision_function(one_hot(data, test))
    shuffled = np.random.default_rng(0).permutation(test.labels)
    assert roc_auc_score(test.labels, scores) > 0.70
    assert roc_auc_score(test.labels, scores) < best
    assert abs(roc_auc_score(shuffled, scores) - 0.5) < 0.02


def test_memory_does_not_grow_with_the_table():
    tracemalloc.start()
    clicks().train_batch(0, BLOCK)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
