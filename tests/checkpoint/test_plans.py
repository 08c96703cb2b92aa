"""Any plan writes a checkpoint, any other plan reads it, bit for bit."""

import tempfile
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.checkpoint import Checkpointer
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.checkpoint.states import logical_tables, state_of
from tests.embedding import problems


def assert_moves(source, target, seed, memory=None):
    tables = logical_tables(source.plan.tables, seed)
    zeros = {name: np.zeros_like(rows) for name, rows in tables.items()}
    with tempfile.TemporaryDirectory() as folder:
        state, embeddings = state_of(source.plan, tables)
        with Checkpointer(Path(folder), {}, 1, memory) as checkpoints:
            checkpoints.save(state, 7, embeddings, {})
        expected, embeddings = state_of(target.plan, tables)
        blank, _ = state_of(target.plan, zeros)
        with Checkpointer(Path(folder), {}, None, memory) as checkpoints:
            found, _ = checkpoints.restore(blank, embeddings)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, theirs.ndim)
        if jnp.issubdtype(theirs.dtype, jax.dtypes.prng_key):
            mine, theirs = map(jax.random.key_data, (mine, theirs))
        np.testing.assert_array_equal(mine, theirs)


@st.composite
def two_plans(draw):
    """Two problems with the same tables, and all else different."""
    source = draw(problems.problems())
    nodes, gpus = draw(st.sampled_from(problems.MESHES))
    placed = draw(
        problems.placements(source.plan.tables, source.plan.features, nodes * gpus)
    )
    plan = problems.make_plan(source.plan.features, placed, nodes, gpus, nodes * gpus)
    return source, problems.Problem(plan, source.optimizer, 0)


@hypothesis.settings(max_examples=6)
@hypothesis.given(two_plans(), st.integers(0, 2**16))
def test_any_plan_reads_what_any_other_wrote(plans, seed):
    assert_moves(*plans, seed)


def placed(cluster, rows, columns, owners, hot_share=0.0):
    return lambda table: Placement(
        table,
        cluster,
        rows,
        columns,
        owners,
        hot_rows=round(hot_share * table.rows),
    )


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (placed("rb", 3, 1, (0, 1, 2)), placed("ub", 2, 2, (2, 2, 1, 0))),
        (placed("ub", 2, 2, (2, 2, 1, 0), 0.6), placed("rb", 2, 1, (2, 1), 0.3)),
    ],
    ids=["rows to columns", "from hot rows"],
)
def test_tables_of_several_pieces_move_in_little_memory(there, here):
    tables = TableSpec("large", 700_001, 4), TableSpec("small", 11, 4)
    features = [FeatureSpec(table.name, table.name) for table in tables]
    both = [
        problems.Problem(
            problems.make_plan(features, tuple(map(each, tables)), 3, 1, 3),
            problems.OPTIMIZERS["sgd"],
            0,
        )
        for each in (there, here)
    ]
    assert_moves(*both, seed=1, memory=1)
