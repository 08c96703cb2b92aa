"""An id that is no row of its table changes no row of any table."""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.builders import make_plan
from tests.embedding import problems
from tests.embedding.problems import OPTIMIZERS, Problem
from tests.thorough import thorough

FAR = (-(2**31), -1000, -2, 2**31 - 1)
"""Ids that are rows of no table here."""


def with_garbage(plan, batch, seed, share):
    """The batch with a share of its ids replaced by bad ones; the same with padding in
    their place; and how many were replaced, for each device and feature."""
    ids, weights, gradients = batch
    rng = np.random.default_rng(seed)
    rows = {table.name: table.rows for table in plan.tables}
    bad, good, counts = {}, {}, []
    for feature in plan.features:
        mine = ids[feature.name]
        # Among them the first rows of the next table, were they taken for slots.
        candidates = [*FAR, *range(rows[feature.table], rows[feature.table] + 40)]
        chosen = rng.random(mine.shape) < share
        garbage = rng.choice(candidates, mine.shape).astype(np.int32)
        bad[feature.name] = np.where(chosen, garbage, mine)
        good[feature.name] = np.where(chosen, np.int32(-1), mine)
        counts.append(chosen.reshape(plan.devices, -1).sum(axis=1))
    return (bad, weights, gradients), (good, weights, gradients), np.stack(counts, 1)


def check(problem: Problem, share: float) -> None:
    """Lookups, rows and states are those of the batch without its bad ids, bit by bit;
    the update is applied, as nobody looks at whether there are any."""
    plan = problem.plan
    _, storages, state, step = problems.begin(plan, problem.optimizer, problem.seed)
    batch = next(problems.batches(plan, problem.seed))
    bad, good, counts = with_garbage(plan, batch, problem.seed, share)
    *found, with_bad = step(storages, state, bad, 1)
    *expected, without = step(storages, state, good, 1)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_array_equal(with_bad.bad_ids, counts)
    assert bool(with_bad.any_bad) == bool(counts.sum())
    assert not without.any_bad
    assert not np.asarray(without.bad_ids).any()
    if share == 1:
        jax.tree.map(np.testing.assert_array_equal, found[:2], [storages, state])


@pytest.mark.parametrize("examples", thorough([2, 8], [2]))
def test_garbage_changes_no_row_under_any_plan(examples):
    given = hypothesis.given(problems.problems(), st.sampled_from([0.01, 0.3, 1]))
    hypothesis.settings(max_examples=examples)(given(check))()


@pytest.mark.parametrize("cluster", ["dp", "rb", "ub"])
def test_an_id_beyond_one_table_is_no_row_of_the_next(cluster):
    """Both tables lie in one storage, the rows of one behind those of the other."""
    tables = TableSpec("user", 30, 4), TableSpec("item", 5, 4)
    shards = () if cluster == "dp" else (2, 1, (0, 1))
    placed = [Placement(table, cluster, *shards) for table in tables]
    features = [FeatureSpec("user", hotness=2), FeatureSpec("item")]
    planned = make_plan(features, placed, 1, 2, 4)
    check(Problem(planned, OPTIMIZERS["sgd"], seed=3), share=1)
