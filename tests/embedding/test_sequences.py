"""Sequences lie packed on the devices, and come back padded as they were."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from embark_kernels import Adagrad

from embark_jax.plans.capacities import events_of
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.builders import (
    make_plan,
    tables_of,
)
from tests.embedding import problems
from tests.thorough import thorough

TABLE = TableSpec("t", 29, 8)
FEATURES = (
    FeatureSpec("past", "t", 6, "none"),
    FeatureSpec("rated", "t", 5, "none", weighted=True),
    FeatureSpec("item", "t", 2, "mean"),
)


def plan_of(placed: str, full: bool):
    """On 2 × 4 devices with two samples each, of which one at most is full: with room
    for two full sequences, or not."""
    shards = () if placed == "dp" else (3, 2, (7, 0, 3, 7, 7, 1))
    placement = Placement(
        TABLE, placed[:2], *shards, hot_rows=5 if placed == "ub, hot" else 0
    )
    plan = make_plan(FEATURES, [placement], 2, 4, 16)
    tight = {events_of("past"): 10, events_of("rated"): 8}
    capacities = plan.capacities | ({} if full else tight)
    return dataclasses.replace(plan, capacities=capacities)


def batch_of(kind: str):
    ids, weights, gradients = next(problems.batches(plan_of("dp", True), 3))
    for feature in FEATURES:
        if feature.sequence and kind != "some":
            ids[feature.name][:] = -1 if kind == "none" else 7
        if feature.sequence and kind != "full":
            ids[feature.name][::2, :2] = -1
    return ids, weights, gradients


@pytest.mark.parametrize(
    ("placed", "kind"),
    thorough(
        itertools.product(["dp", "ub", "ub, hot"], ["some", "none"]),
        [("ub, hot", "some")],
        unpack=True,
    ),
)
def test_packed_equals_padded_bit_by_bit(placed, kind):
    results = []
    for full in (True, False):
        begun = problems.begin(plan_of(placed, full), Adagrad(0.1))
        collection, storages, state, step = begun
        storages, state, lookups, routes = step(storages, state, batch_of(kind), 1)
        assert collection.fits(routes)
        results.append((tables_of(collection, storages), lookups))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_events_beyond_their_room_are_counted_and_change_nothing():
    begun = problems.begin(plan_of("ub", full=False), Adagrad(0.1))
    collection, storages, state, step = begun
    before = tables_of(collection, storages)
    storages, *_, routes = step(storages, state, batch_of("full"), 1)
    assert not collection.fits(routes)
    assert collection.needed(routes)[events_of("past")] == 2 * 6
    np.testing.assert_array_equal(tables_of(collection, storages)["t"], before["t"])
