"""Rows and gradients that are rounded on the wire: exact but for that rounding."""

import numpy as np
import pytest
from embark_kernels import SGD

from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import Wire
from tests.builders import make_plan
from tests.embedding import problems, reference
from tests.embedding.problems import Problem

ROUNDING = 2**-8
"""Relative, to nearest, with the 7 bits of bfloat16 behind the leading one."""
FLOAT32 = 1e-5
"""Of a few hundred float32 roundings, as in the other comparisons with the oracle."""


@pytest.mark.parametrize("cluster", ["rb", "ub"])
def test_results_equal_the_reference_to_the_precision_of_the_wire(cluster):
    """A rounding of each term of a sum, so the sum is off by no more than that of the
    magnitudes of its terms."""
    table = TableSpec("t", 29, 8)
    features = (
        FeatureSpec("bag", "t", 4, "mean", weighted=True),
        FeatureSpec("sequence", "t", 3, "sum" if cluster == "rb" else "none"),
    )
    placed = [Placement(table, cluster, 3, 2, (7, 0, 3, 7, 7, 1))]
    plan = make_plan(features, placed, 2, 4, 16)
    problem = Problem(plan, SGD(0.5), seed=5, wire=Wire("bfloat16", "bfloat16"))
    initial, lookups, tables, _ = problems.solve(problem)

    exact = {"t": initial["t"].astype(np.float64)}
    error = {"t": np.zeros_like(exact["t"])}
    for found, batch in zip(lookups, problems.batches(plan, 5), strict=True):
        ids, weights, gradients = batch
        terms = {"t": np.abs(exact["t"]) + error["t"]}
        expected = reference.lookup(exact, features, ids, weights)
        off = reference.lookup(error, features, ids, weights)
        of_terms = reference.lookup(terms, features, ids, weights)
        for name, value in expected.items():
            bound = off[name] + (ROUNDING + FLOAT32) * of_terms[name]
            assert (np.abs(found[name] - value) <= bound + FLOAT32).all(), name
        sizes = {name: np.abs(value) for name, value in gradients.items()}
        gradient, touched = reference.row_gradients(
            exact, features, ids, weights, gradients
        )
        of_terms, _ = reference.row_gradients(exact, features, ids, weights, sizes)
        reference.update(exact["t"], {}, gradient["t"], touched["t"], SGD(0.5), 1)
        error["t"] += 0.5 * (ROUNDING + FLOAT32) * of_terms["t"]
    difference = np.abs(tables["t"] - exact["t"])
    assert (difference <= error["t"] + FLOAT32).all()
    assert difference.max() > ROUNDING / 100, "nothing was rounded"
