"""Positions of rows whose hot ones are listed, against sorting them by hand."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.embedding.hot_keys import index_hot_rows
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import TableSpec


def placed(name, rows, hot):
    return Placement(
        TableSpec(name, rows, 4),
        "ub",
        1,
        1,
        (0,),
        hot_rows=len(hot),
        hot_ids=tuple(sorted(hot)),
    )


hot_rows = st.integers(2, 300).flatmap(
    lambda rows: st.tuples(
        st.just(rows), st.sets(st.integers(0, rows - 1), min_size=1, max_size=rows - 1)
    )
)


@hypothesis.given(st.lists(hot_rows, min_size=1, max_size=3))
@hypothesis.settings(max_examples=8)
def test_positions_and_back(tables):
    """Of every row of every table, beside a table that lists none."""
    placements = [placed(f"t{i}", *each) for i, each in enumerate(tables)]
    index = index_hot_rows([Placement(TableSpec("dp", 9, 4), "dp"), *placements])
    assert index.tables == {f"t{i}": i for i in range(len(tables))}
    # As many as a table can have, so that few shapes are compiled.
    ids = np.full((301, len(tables)), -1, np.int32)
    expected = ids.copy()
    for i, (rows, hot) in enumerate(tables):
        order = [*sorted(hot), *(row for row in range(rows) if row not in hot)]
        ids[:rows, i] = np.arange(rows)
        expected[order, i] = np.arange(rows)
    table = np.arange(len(tables))
    found = index.positions(jnp.asarray(ids), table)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    with jax.enable_x64(True):
        wide = jnp.asarray(expected, jnp.int64)
        of_table = jnp.broadcast_to(jnp.asarray(table)[None], wide.shape)
        back = np.asarray(index.rows(jnp.maximum(wide, 0), of_table))
    np.testing.assert_array_equal(back[ids >= 0], ids[ids >= 0])


@pytest.mark.parametrize("rows", [1_000_000, 5_000_000_000])
def test_few_steps_find_a_row_of_many(rows):
    """Hot rows anywhere lie in buckets of a few; together, halving finds them."""
    rng = np.random.default_rng(0)
    spread = set(rng.integers(0, rows, 10_000).tolist())
    index = index_hot_rows([placed("t", rows, spread)])
    assert index.fullest <= 10
    dense = index_hot_rows([placed("t", rows, {*range(5_000), rows - 1})])
    for each, hot in ((index, sorted(spread)), (dense, [*range(5_000), rows - 1])):
        rng_ids = rng.integers(0, rows, 500)
        ids = np.concatenate([rng_ids, hot[:500], hot[-1:]])[:, None]
        rank = np.searchsorted(hot, ids)
        is_hot = np.isin(ids, hot)
        with jax.enable_x64(True):
            found = each.positions(jnp.asarray(ids), np.zeros(1, int))
        np.testing.assert_array_equal(
            found, np.where(is_hot, rank, len(hot) + ids - rank)
        )
