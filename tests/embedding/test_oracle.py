"""Any plan gives what the unsharded reference gives."""

import itertools

import hypothesis
import pytest
from embark_kernels import RowwiseAdagrad, _segments_kernel
from embark_kernels._mosaic import interpreted

from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.builders import make_plan
from tests.embedding import problems
from tests.embedding.problems import OPTIMIZERS, Problem, check
from tests.thorough import thorough


@pytest.mark.parametrize("examples", thorough([2, 12], [2]))
def test_any_plan_equals_the_reference(examples):
    @hypothesis.settings(max_examples=examples)
    @hypothesis.given(problems.problems())
    def check_each(problem):
        check(problem)

    check_each()


# Of UB, tests of hot rows have one.
@pytest.mark.parametrize(
    ("cluster", "mesh"),
    thorough(
        itertools.product(["rb", "ub"], [(1, 8), (2, 4), (4, 2), (8, 1)]),
        [("rb", (2, 4))],
        unpack=True,
    ),
)
def test_a_hierarchical_exchange_equals_the_reference(cluster, mesh):
    """Beside a flat one: row shards within a node, across nodes, twice on a device;
    column shards, weights and, but in RB, a sequence."""
    tables = [TableSpec("across", 29, 8), TableSpec("inside", 7, 4)]
    features = [
        FeatureSpec("bag", "across", 4, "mean", weighted=True),
        FeatureSpec("sequence", "across", 3, "sum" if cluster == "rb" else "none"),
        FeatureSpec("inside", hotness=2),
        FeatureSpec("flat", "flat", 2),
    ]
    placed = [
        Placement(tables[0], cluster, 4, 2, (7, 0, 3, 7, 7, 1, 2, 6), "hierarchical"),
        Placement(tables[1], cluster, 3, 1, (4, 5, 4), "hierarchical"),
        Placement(TableSpec("flat", 9, 4), cluster, 2, 1, (1, 6)),
    ]
    planned = make_plan(features, placed, *mesh, 16)
    names = {storage.name for storage in planned.storages}
    assert len({name for name in names if name.endswith("_hierarchical")}) == 2
    check(Problem(planned, RowwiseAdagrad(1.0, eps=1.0), seed=6))


@pytest.mark.parametrize("exchange", thorough(["flat", "hierarchical"], ["flat"]))
def test_a_row_shard_on_every_device_equals_the_reference(exchange):
    """Of rows that do not divide by the row shards, some of which no id asks for."""
    table = TableSpec("t", 3003, 4)
    placed = [Placement(table, "rb", 8, 1, tuple(range(8)), exchange)]
    features = [FeatureSpec("f", "t", hotness=50)]
    check(Problem(make_plan(features, placed, 2, 4, 64), OPTIMIZERS["sgd"], seed=7))


@pytest.mark.parametrize("cluster", ["dp", "rb", "ub", "two storages"])
def test_room_for_other_values_changes_no_embedding(cluster):
    """Of two features, in one storage on shards that lie unevenly, where the room is
    made by the lookup itself, or in several; what a model puts there has a gradient."""
    two = cluster == "two storages"
    tables = [TableSpec("t", 29, 8), TableSpec("other", 9, 8)]
    features = [
        FeatureSpec("bag", "t", 4, "mean", weighted=True),
        FeatureSpec("sum", "t", 2),
        *([FeatureSpec("also", "other", 3)] if two else []),
    ]
    shards = () if cluster == "dp" else (3, 2, (7, 0, 3, 7, 7, 1))
    placed = [
        Placement(tables[0], "ub" if two else cluster, *shards),
        *([Placement(tables[1], "dp")] if two else []),
    ]
    planned = make_plan(features, placed, 2, 4, 16)
    check(Problem(planned, OPTIMIZERS["sgd"], seed=5, beside=16))


CLUSTERS = ["dp", "rb", "ub"]
QUICK = [("dp", "adam"), ("rb", "decay"), ("ub", "decay")]
"""With a state as wide as a row, and one of a value a row; of others, tables that
follow rules of their own have some in each cluster."""


@pytest.mark.parametrize(
    ("cluster", "optimizer"),
    thorough(itertools.product(CLUSTERS, OPTIMIZERS), QUICK, unpack=True),
)
def test_a_shared_table_equals_the_reference(cluster, optimizer):
    """Two features, one a sequence but in RB, on 3 × 2 shards that lie unevenly on
    devices, or replicated."""
    table = TableSpec("t", 29, 8)
    features = [
        FeatureSpec("bag", "t", 4, "mean", weighted=True),
        FeatureSpec("sequence", "t", 3, "sum" if cluster == "rb" else "none"),
    ]
    shards = () if cluster == "dp" else (3, 2, (7, 0, 3, 7, 7, 1))
    placed = [Placement(table, cluster, *shards)]
    planned = make_plan(features, placed, 2, 4, 16)
    check(Problem(planned, OPTIMIZERS[optimizer], seed=5))


@pytest.mark.parametrize(
    ("cluster", "columns", "optimizer"),
    [
        ("dp", 1, "ftrl, decay"),
        pytest.param("rb", 2, "decay", marks=pytest.mark.slow),
        pytest.param("ub", 2, "rowwise_adagrad", marks=pytest.mark.slow),
        pytest.param("rb", 1, "decay", marks=pytest.mark.slow),
        pytest.param("ub", 1, "rowwise_adagrad", marks=pytest.mark.slow),
    ],
)
def test_kernels_equal_the_reference(cluster, columns, optimizer, monkeypatch):
    """In Pallas' interpreter, which runs on one device alone: several pieces of an
    output on one owner, rows that go on in other blocks, weights and a sequence."""
    monkeypatch.setattr(_segments_kernel, "IDS_PER_PROGRAM", 3)
    table = TableSpec("t", 7, 16)
    features = [
        FeatureSpec("bag", "t", 3, "mean", weighted=True),
        FeatureSpec("sequence", "t", 2, "sum" if cluster == "rb" else "none"),
    ]
    shards = () if cluster == "dp" else (2, columns, (0,) * 2 * columns)
    planned = make_plan(features, [Placement(table, cluster, *shards)], 1, 1, 3)
    with interpreted():
        check(Problem(planned, OPTIMIZERS[optimizer], seed=2), "mosaic_gpu")
