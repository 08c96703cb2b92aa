"""Rows and gradients that are rounded on the wire: exact but for that rounding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import SGD

from embark_jax.embedding import reference
from embark_jax.embedding.wire import decode, encode
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import SCALE_BYTES, Wire, row_bytes
from tests.builders import make_plan
from tests.embedding import problems
from tests.embedding.problems import Problem
from tests.thorough import thorough

ROUNDING = {"bfloat16": 2**-8, "float16": 2**-11, "float8_e4m3": 2**-4}
"""Relative, to nearest, with 7, 10 and 3 bits behind the leading one."""
FLOAT32 = 1e-5
"""Of a few hundred float32 roundings, as in the other comparisons with the oracle."""


@pytest.mark.parametrize("wire", ROUNDING)
def test_rows_are_rounded_to_nearest(wire):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 50, 8)) * 10.0 ** rng.integers(-30, 30, (3, 50, 1))
    rows[0, 0], rows[0, 1, 1:], rows[0, 2] = 0, 0, 1e-45
    coded = jax.jit(encode, static_argnums=1)(rows.astype(np.float32), wire)
    assert coded.shape[-1] * coded.dtype.itemsize == row_bytes(8, wire)
    found = np.asarray(jax.jit(decode, static_argnums=1)(coded, wire), np.float64)
    of = largest(rows) if SCALE_BYTES[wire] else np.abs(rows)
    error = np.abs(found - rows)
    smallest = float(jnp.finfo(jnp.float32).tiny)
    assert (error <= ROUNDING[wire] * of * (1 + FLOAT32) + smallest).all()
    assert error.max() > 0


def largest(rows):
    """Each value replaced by the largest magnitude of its row."""
    return np.broadcast_to(np.abs(rows).max(axis=-1, keepdims=True), rows.shape)


CASES = list(itertools.product(["rb", "ub"], ROUNDING))
QUICK = [("rb", "float8_e4m3"), ("ub", "bfloat16")]


@pytest.mark.parametrize("case", thorough(CASES, QUICK), ids=str)
def test_results_equal_the_reference_to_the_precision_of_the_wire(case):
    """A rounding of each term of a sum, so the sum is off by no more than that of the
    magnitudes of its terms."""
    cluster, wire = case
    table = TableSpec("t", 29, 8)
    features = (
        FeatureSpec("bag", "t", 4, "mean", weighted=True),
        FeatureSpec("sequence", "t", 3, "sum" if cluster == "rb" else "none"),
    )
    placed = [Placement(table, cluster, 3, 2, (7, 0, 3, 7, 7, 1))]
    plan = make_plan(features, placed, 2, 4, 16)
    problem = Problem(plan, SGD(0.5), seed=5, wire=Wire(wire, wire))
    initial, lookups, tables, _ = problems.solve(problem)

    rounding = ROUNDING[wire]
    magnitude = largest if SCALE_BYTES[wire] else np.abs
    exact = {"t": initial["t"].astype(np.float64)}
    error = {"t": np.zeros_like(exact["t"])}
    for found, batch in zip(lookups, problems.batches(plan, 5), strict=True):
        ids, weights, gradients = batch
        terms = {"t": magnitude(exact["t"]) + largest(error["t"])}
        expected = reference.lookup(exact, features, ids, weights)
        off = reference.lookup(error, features, ids, weights)
        of_terms = reference.lookup(terms, features, ids, weights)
        for name, value in expected.items():
            bound = off[name] + (rounding + FLOAT32) * of_terms[name]
            assert (np.abs(found[name] - value) <= bound + FLOAT32).all(), name
        sizes = {name: magnitude(value) for name, value in gradients.items()}
        gradient, touched = reference.row_gradients(
            exact, features, ids, weights, gradients
        )
        of_terms, _ = reference.row_gradients(exact, features, ids, weights, sizes)
        reference.update(exact["t"], {}, gradient["t"], touched["t"], SGD(0.5), 1)
        error["t"] += 0.5 * (rounding + FLOAT32) * of_terms["t"]
    difference = np.abs(tables["t"] - exact["t"])
    assert (difference <= error["t"] + FLOAT32).all()
    assert difference.max() > rounding / 100, "nothing was rounded"


def test_unknown_formats_are_named():
    with pytest.raises(ValueError, match="gradients is 'int8', must be one of float32"):
        Wire(gradients="int8")  # pyright: ignore[reportArgumentType]
