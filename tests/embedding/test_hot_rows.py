"""Hot rows on all devices, cold rows sharded: a table as any other."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

import embark_jax as ej
from embark_jax.plans.placement import Placement
from tests.builders import make_plan
from tests.embedding import problems
from tests.embedding.problems import Problem, check
from tests.thorough import thorough

TABLE = ej.TableSpec("t", 29, 8)
FEATURES = [
    ej.FeatureSpec("bag", "t", 4, "mean", weighted=True),
    ej.FeatureSpec("sequence", "t", 3, "none"),
    ej.FeatureSpec("sum", "t", 2),
]
POOLED = [FEATURES[0], FEATURES[2]]


def features_of(cluster):
    """RB has no sequences."""
    return POOLED if cluster == "rb" else FEATURES


def placed(cluster, hot_rows, exchange="flat") -> Placement:
    """3 × 2 shards of the cold rows that lie unevenly on 8 devices."""
    if cluster == "dp":
        return Placement(TABLE, "dp")
    owners = (7, 0, 3, 7, 7, 1)
    return Placement(TABLE, cluster, 3, 2, owners, exchange, hot_rows=hot_rows)


@pytest.mark.parametrize(
    ("hot_rows", "cluster", "exchange"),
    thorough(
        itertools.product([1, 5, 26], ["rb", "ub"], ["flat", "hierarchical"]),
        [(5, "ub", "hierarchical")],
        unpack=True,
    ),
)
def test_a_bag_is_the_sum_of_its_hot_and_cold_rows(cluster, hot_rows, exchange):
    """Means, weights and sequences; a state of one value a row on both sides. Beside a
    table that has no hot rows, in the same storage."""
    other = Placement(ej.TableSpec("other", 9, 4), cluster, 2, 1, (1, 6), exchange)
    features = [*features_of(cluster), ej.FeatureSpec("other", hotness=2)]
    both = placed(cluster, hot_rows, exchange), other
    planned = make_plan(features, both, 2, 4, 16)
    assert {s.name for s in planned.storages if s.replicated} == {"dp_8"}
    check(Problem(planned, ej.RowwiseAdagrad(1.0, eps=1.0), seed=6))


@pytest.mark.slow
def test_gradients_of_hot_rows_are_summed_in_the_format_of_sums_alone():
    planned = make_plan(POOLED, [placed("rb", 5)], 2, 4, 16)
    exact = Problem(planned, ej.RowwiseAdagrad(1.0, eps=1.0), seed=4)
    wires = ej.Wire("bfloat16", "bfloat16"), ej.Wire(sums="bfloat16")
    rounded = [dataclasses.replace(exact, wire=wire) for wire in wires]
    rows, cold, hot = (problems.solve(each)[2]["t"] for each in (exact, *rounded))
    np.testing.assert_array_equal(cold[:5], rows[:5])
    assert np.abs(rows[5:] - cold[5:]).max() > 0
    np.testing.assert_array_equal(hot[5:], rows[5:])
    assert np.abs(rows[:5] - hot[:5]).max() > 0
    for near in (cold, hot):
        np.testing.assert_allclose(near, rows, atol=0.05)


def test_capacities_hold_cold_ids_alone():
    """A batch of hot ids needs no place in any bucket."""
    planned = make_plan(POOLED, [placed("rb", 5)], 2, 4, 16)
    collection = ej.EmbeddingCollection(planned, planned.make_mesh())
    rng = np.random.default_rng(0)
    ids = {f.name: rng.integers(0, 5, (16, f.hotness)).astype(np.int32) for f in POOLED}
    weights = {"bag": np.ones((16, 4), np.float32)}
    (needed,) = jax.jit(collection.route)(ids, weights).needed.values()
    assert needed == 0
    ids["sum"][3, 1] = 5  # one cold id, in both column shards
    (needed,) = jax.jit(collection.route)(ids, weights).needed.values()
    assert needed == 1
