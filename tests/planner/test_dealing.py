"""Every row lies in one place, and row shards in RB are asked for alike."""

import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from embark_jax import fleet
from embark_jax.planner import ForcedPlacement, Placement, plan, plan_record
from embark_jax.planner.dealing import (
    DEALT_ROWS,
    EXPONENT,
    deal,
    dealing_of,
    deals,
    ids_at,
    in_turn,
    locate,
)
from embark_jax.planner.layout.storage import EVEN_LOAD
from embark_jax.tables import FeatureSpec, TableSpec


def unevenly(rows, row_shards):
    """With loads of all sizes; those of some can't be had."""
    dice = np.random.default_rng(row_shards)
    return deal(rows, row_shards, row_loads(dice.uniform(0.01, 2, row_shards)))


def row_loads(shares):
    """Whole numbers in these proportions."""
    ends = np.cumsum(shares) / np.sum(shares) * EVEN_LOAD * len(shares)
    return tuple(np.diff(np.round(ends).astype(int), prepend=0).tolist())


@hypothesis.given(
    st.integers(1, 8 * DEALT_ROWS),
    st.integers(1, 200),
    st.sampled_from([deal, in_turn, unevenly]),
)
@hypothesis.settings(max_examples=200)
def test_every_row_has_a_place_of_its_own(rows, row_shards, dealt):
    """In as many rows of each row shard as in turn, and the place leads back to it."""
    dealing, ids = dealt(rows, row_shards), np.arange(rows)
    first = np.minimum(ids, DEALT_ROWS - 1)
    row_shard, row = locate(np, ids, dealing.limits, dealing.order[first])
    position = row * row_shards + row_shard
    assert (np.sort(position) == ids).all()
    assert (row_shard < row_shards).all()
    dealt_ids = np.argsort(dealing.order)[np.minimum(position, DEALT_ROWS - 1)]
    back = ids_at(np, row_shard, row, dealing.limits, dealt_ids)
    assert (back == ids).all()
    if dealt is in_turn:
        assert (row_shard == ids % row_shards).all()


def test_worked_by_hand():
    """Weights 1, 0.47, 0.30, 0.22, 0.17, 0.14, 0.12, 0.10 on two shards, four each: the
    first takes row 0, the other rows 1, 2 and 3 (0.98) and its last, 4; the rest is
    the first's."""
    assert deal(8, 2).order[:8].tolist() == [0, 1, 3, 5, 7, 2, 4, 6]


def test_a_full_row_shard_takes_the_last_rows():
    """Of 8, the first is asked for 0.98 of a share by its hottest row alone."""
    rows = 1_000_000
    dealing = deal(rows, 8)
    assert dealing.full == 1
    assert dealing.cold == rows - (rows - DEALT_ROWS) // 8
    held_by = dealing.row_shards_of(np.arange(rows))
    assert (held_by[dealing.cold :] == 0).all()
    assert (held_by[DEALT_ROWS : dealing.cold] > 0).all()


@pytest.mark.parametrize(
    ("row_shards", "exponent", "excess", "in_turn_excess"),
    [
        (2, 1.1, 0.001, 0.08),
        (3, 1.1, 0.001, 0.18),
        (4, 1.1, 0.01, 0.28),
        (8, 1.1, 0.10, 0.72),
        (2, 1.05, 0.005, 0.06),
        (4, 1.05, 0.02, 0.21),
        (8, 1.05, 0.08, 0.54),
    ],
)
def test_shards_are_asked_for_alike(row_shards, exponent, excess, in_turn_excess):
    """What the one that is asked for most is above a share."""
    rows = 1_000_000
    ids = np.arange(rows)
    asked = (ids + 1.0) ** -exponent
    asked /= asked.sum()

    def excess_of(dealing):
        return np.bincount(dealing.row_shards_of(ids), asked).max() * row_shards - 1

    assert excess_of(deal(rows, row_shards)) <= excess
    assert excess_of(in_turn(rows, row_shards)) >= in_turn_excess


@pytest.mark.parametrize("row_shards", [2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_shards_are_asked_for_as_their_loads_say(row_shards, seed):
    """Within 1 % of a share; the first has the hottest row, a share by itself."""
    rows = 1_000_000
    shares = np.random.default_rng(seed).uniform(0.7, 1.3, row_shards)
    shares[0] = 1.1
    shares[1:] *= (row_shards - 1.1) / shares[1:].sum()
    asked = np.arange(1.0, rows + 1) ** -EXPONENT
    dealing = deal(rows, row_shards, row_loads(shares))
    found = np.bincount(dealing.row_shards_of(np.arange(rows)), asked) / asked.sum()
    np.testing.assert_allclose(found * row_shards, shares, atol=0.01)


def test_even_loads_are_those_of_no_loads():
    even = deal(10**6, 4, (EVEN_LOAD,) * 4)
    np.testing.assert_array_equal(even.order, deal(10**6, 4).order)


@pytest.mark.parametrize(
    ("cluster", "loads", "message"),
    [
        ("ub", (900, 1100), "cluster ub takes no row_loads"),
        ("rb", (1000,), r"row_loads is \(1000,\), must be a positive integer for each"),
        ("rb", (900, 1101), "of its 2 row shards, 1000 on average"),
        ("rb", (0, 2000), "must be a positive integer"),
    ],
)
def test_row_loads_that_cannot_be(cluster, loads, message):
    table = TableSpec("t", 100, 8)
    bad = Placement(table, cluster, 2, devices=(0, 1), row_loads=loads)
    (problem,) = bad.problems(2)
    assert re.search(message, problem)


def test_a_row_that_is_asked_for_more_than_a_share_has_cold_ones_beside_it():
    rows, row_shards = 1_000_000, 64
    asked = np.arange(1.0, rows + 1) ** -1.1
    held_by = deal(rows, row_shards).row_shards_of(np.arange(rows))
    shares = np.bincount(held_by, asked) / asked.sum()
    assert shares.max() < asked[0] / asked.sum() + 0.2 / row_shards


def test_a_record_says_which_rows_are_dealt():
    tables = [TableSpec(name, 10**6, 8) for name in ("rb", "ub", "whole")]
    forced = {
        "rb": ForcedPlacement("rb", row_shards=4),
        "ub": ForcedPlacement("ub", row_shards=4),
        "whole": ForcedPlacement("rb", row_shards=1),
    }
    features = [FeatureSpec(table.name) for table in tables]
    planned = plan(tables, features, fleet.dgx_h100(), 64, forced=forced)
    dealt = {each["table"]: each["dealt"] for each in plan_record(planned)["tables"]}
    assert dealt == {"rb": True, "ub": False, "whole": False}


def test_orders_are_listed_once():
    def placement(name, rows, row_shards, cluster="rb"):
        return Placement(
            TableSpec(name, rows, 8), cluster, row_shards, devices=(0,) * row_shards
        )

    placements = [
        placement("a", 10**6, 4),
        placement("b", 10**6, 4),
        placement("c", 10**6, 2),
        placement("d", 10**6, 4, "ub"),
        placement("e", 10**7, 2, "ub"),
    ]
    limits, orders, whose = deals(placements)
    assert len(orders) == 3
    assert whose[3] == whose[4]
    for each, own, order in zip(placements, limits.T, whose, strict=True):
        assert tuple(own) == dealing_of(each).limits
        np.testing.assert_array_equal(orders[order], dealing_of(each).order)
    assert dealing_of(placements[3]).limits == in_turn(10**6, 4).limits
