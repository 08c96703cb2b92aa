"""The rows that a device updates have a capacity of their own."""

import dataclasses

import jax
import numpy as np
import pytest
from embark_kernels import RowwiseAdagrad

import embark_jax as ej
from embark_jax.plans.capacities import rows_of
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.builders import make_plan
from tests.embedding import problems
from tests.thorough import thorough

FEATURES = (FeatureSpec("x", "t", 3), FeatureSpec("y", "t", 1), FeatureSpec("z", "w"))
T, W = TableSpec("t", 300, 4), TableSpec("w", 5, 4)


def plans(cluster: str, nodes: int, gpus: int) -> ej.Plan:
    """``w`` has fewer rows than a batch has ids, so that DP sums it whole."""
    owners = 0, nodes * gpus - 1
    split = () if cluster == "dp" else (2, 1, owners)
    placed = [Placement(table, cluster, *split) for table in (T, W)]
    return make_plan(FEATURES, placed, nodes, gpus, 16)


@pytest.mark.parametrize(
    ("cluster", "mesh"),
    thorough(
        [("dp", (1, 1)), *((each, (2, 2)) for each in ("dp", "rb", "ub"))],
        [("dp", (1, 1)), ("dp", (2, 2)), ("rb", (2, 2))],
        unpack=True,
    ),
)
def test_as_many_rows_as_a_batch_touches_are_enough(cluster, mesh):
    ample = plans(cluster, *mesh)
    (storage,) = ample.storages
    name, needed = rows_of(storage.name), 0
    tight = dataclasses.replace(ample, capacities=ample.capacities | {name: 1})
    collection = ej.EmbeddingCollection(tight, tight.make_mesh())
    route = jax.jit(collection.route)
    for ids, weights, _ in problems.batches(tight, 7):
        touched = np.unique(np.concatenate([ids["x"], ids["y"]], axis=1))
        touched = touched[touched >= 0]
        routes = route(ids, weights)
        assert not collection.fits(routes)
        found, w_rows = int(routes.needed[name]), np.setdiff1d(ids["z"], -1)
        if cluster == "dp":
            summed_whole = W.rows if mesh != (1, 1) else len(w_rows)
            assert found == len(touched) + summed_whole
        else:  # even rows lie on one device, odd ones on another
            of_owners = np.bincount(touched % 2) + np.bincount(w_rows % 2, minlength=2)
            assert found == of_owners.max()
        needed = max(needed, found)
    enough = dataclasses.replace(ample, capacities=ample.capacities | {name: needed})
    problems.check(problems.Problem(enough, RowwiseAdagrad(1.0, eps=1.0), seed=7))
