"""Lookups by feature, and of all features in one array."""

import jax
import numpy as np

from embark_jax.embedding.lookups import Lookups, join, split
from embark_jax.plans.tables import FeatureSpec

DIMS = {"e": 4, "b": 12, "d": 4, "a": 8, "c": 12}
POOLED = {
    dim: [FeatureSpec(name) for name in sorted(DIMS) if DIMS[name] == dim]
    for dim in (12, 4, 8)
}


def test_features_of_several_dims_are_side_by_side_by_name():
    rng = np.random.default_rng(0)
    pooled = {
        dim: rng.normal(size=(3, dim * len(features))).astype(np.float32)
        for dim, features in POOLED.items()
    }
    lookups = Lookups(pooled, {})
    embeddings, gradient_of_split = jax.vjp(lambda found: split(POOLED, found), lookups)
    joined, gradient_of_join = jax.vjp(lambda found: join(POOLED, found), lookups)
    expected = np.concatenate([embeddings[name] for name in sorted(DIMS)], axis=1)
    np.testing.assert_array_equal(joined, expected)

    gradient = rng.normal(size=joined.shape).astype(np.float32)
    ends = np.cumsum([DIMS[name] for name in sorted(DIMS)])[:-1]
    columns = np.split(gradient, ends, axis=1)
    by_feature = dict(zip(sorted(DIMS), columns, strict=True))
    jax.tree.map(
        np.testing.assert_array_equal,
        gradient_of_join(gradient),
        gradient_of_split(by_feature),
    )
