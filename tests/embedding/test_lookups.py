"""Pooled features in one array."""

import jax
import numpy as np

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.embedding.lookups import Lookups
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.builders import make_plan

DIMS = {"e": 4, "b": 12, "d": 4, "a": 8, "c": 12}


def collection_of(beside: int) -> EmbeddingCollection:
    tables = [TableSpec(name, 5, dim) for name, dim in DIMS.items()]
    placed = [Placement(table, "dp") for table in tables]
    plan = make_plan([FeatureSpec(name) for name in DIMS], placed, 1, 1, 3)
    return EmbeddingCollection(plan, plan.make_mesh(), beside=beside)


def test_features_of_several_dims_are_side_by_side_by_name():
    collection, rng = collection_of(beside=4), np.random.default_rng(0)
    pooled = rng.normal(size=(3, sum(DIMS.values()))).astype(np.float32)
    assert collection.width_beside == 0
    by_feature, gradient_of = jax.vjp(collection.by_feature, Lookups(pooled, {}))
    assert list(by_feature) == sorted(DIMS)
    assert {name: x.shape for name, x in by_feature.items()} == {
        name: (3, dim) for name, dim in DIMS.items()
    }
    np.testing.assert_array_equal(np.hstack(list(by_feature.values())), pooled)
    (gradient,) = gradient_of(by_feature)
    np.testing.assert_array_equal(gradient.pooled, pooled)
