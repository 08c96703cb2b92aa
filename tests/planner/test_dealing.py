"""Rows are dealt, each once, so that row shards are asked for alike."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from embark_jax.planner import Placement
from embark_jax.planner.dealing import (
    DEALT_ROWS,
    deals,
    positions,
    row_shards_of,
)
from embark_jax.tables import TableSpec


@hypothesis.given(st.integers(1, 2 * DEALT_ROWS), st.integers(1, 200))
def test_every_row_has_a_position_of_its_own(rows, row_shards):
    found = positions(rows, row_shards)
    held = min(rows, DEALT_ROWS)
    assert sorted(found[:held]) == list(range(held))
    assert (found[held:] == np.arange(held, DEALT_ROWS)).all()


def test_worked_by_hand():
    """Weights 1, 0.47, 0.30, 0.22, 0.17, 0.14, 0.12, 0.10 on two shards, four each: the
    first takes row 0, the other rows 1, 2 and 3 (0.98) and its last, 4; the rest is
    the first's."""
    assert positions(8, 2)[:8].tolist() == [0, 1, 3, 5, 7, 2, 4, 6]


@pytest.mark.parametrize("row_shards", [2, 3, 4, 8])
@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.2])
def test_shards_are_asked_for_more_alike_than_in_turn(row_shards, exponent):
    rows = 1_000_000
    ids = np.arange(rows)
    weights = (ids + 1.0) ** -exponent
    weights /= weights.sum()
    dealt, in_turn = (
        np.bincount(held_by, weights).max() * row_shards
        for held_by in (row_shards_of(ids, rows, row_shards), ids % row_shards)
    )
    assert dealt <= in_turn + 1e-9
    assert dealt - 1 <= 0.65 * (in_turn - 1) + 1e-5
    if exponent == 1.05:
        assert dealt < 1.15  # in turn up to 1.52


def test_a_row_that_is_asked_for_more_than_a_share_is_nearly_alone():
    rows, row_shards = 1_000_000, 64
    weights = np.arange(1.0, rows + 1) ** -1.1
    held_by = row_shards_of(np.arange(rows), rows, row_shards)
    shares = np.bincount(held_by, weights) / weights.sum()
    alone = weights[0] / weights.sum()
    assert shares.max() < alone + 0.5 / row_shards


def test_ways_to_deal_are_listed_once():
    def placement(name, rows, row_shards):
        return Placement(
            TableSpec(name, rows, 8), "rb", row_shards, devices=(0,) * row_shards
        )

    splits = [(10**6, 4), (10**7, 4), (10**6, 2), (100, 4)]
    placements = [placement(f"t{i}", *split) for i, split in enumerate(splits)]
    found, way = deals(placements)
    assert len(found) == 3
    for (rows, row_shards), deal in zip(splits, way, strict=True):
        np.testing.assert_array_equal(found[deal], positions(rows, row_shards))
