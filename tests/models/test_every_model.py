"""Every model of the registry, and its gradients, against its oracle, without dense
features and with some."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax import models
from embark_jax.planner.request.dense import dlrm, dlrm_dcnv2
from tests.models import oracle, small
from tests.models.slopes import assert_slopes
from tests.thorough import thorough

BATCH = 6


@pytest.mark.parametrize("dense_features", thorough([0, 3], [0]))
@pytest.mark.parametrize(
    ("kind", "changes"),
    thorough(small.CASES, [(kind, {}) for kind in small.KINDS], unpack=True),
)
def test_every_model_equals_its_oracle(kind, changes, dense_features):
    normalizes = {"batch_norm": True} if kind in oracle.KNOW_NORMS else {}
    config = small.small_config(small.KINDS[kind], **changes, **normalizes)
    shapes = small.shapes_of(config)
    model = models.build(config, shapes, dense_features, nnx.Rngs(0))
    model.eval()
    generator = np.random.default_rng(0)
    # Positive, so that no event of TBSM is cut to zero by its ReLU.
    rows = {
        name: generator.uniform(0.1, 1.0, (BATCH, *shape)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    dense = generator.normal(size=(BATCH, dense_features)).astype(np.float32)
    graph, params, statistics, rest = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
    statistics = jax.tree.map(
        lambda leaf: leaf + generator.uniform(0, 0.5, leaf.shape).astype(np.float32),
        statistics,
    )

    arrays = params, statistics, rows

    @jax.jit
    def logits_and_gradients(arrays):
        def loss(arrays):
            params, statistics, rows = arrays
            merged = nnx.merge(graph, params, statistics, rest, copy=True)
            logits = merged(dense, small.masked(rows))
            return jnp.sum(logits**2), logits

        gradients, logits = jax.grad(loss, has_aux=True)(arrays)
        return logits, gradients

    def formula(arrays):
        params, statistics, rows = arrays
        layers = nnx.to_pure_dict(nnx.merge_state(params, statistics))
        inputs = dense, small.masked(rows)
        return oracle.oracle_of(config)(layers, *inputs, "float32")

    logits, gradients = logits_and_gradients(arrays)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients[2].values())
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arrays)
    expected = formula(exact)
    error = np.abs(np.asarray(logits, np.float64).reshape(BATCH, -1) - expected.value)
    np.testing.assert_array_less(error, expected.error)
    assert_slopes(lambda arrays: np.sum(formula(arrays).value ** 2), exact, gradients)
    footprint = models.footprint(config, shapes, dense_features)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    assert footprint.parameters == sum(sizes)
    assert footprint.kept_bytes > 0


def test_the_planner_counts_no_bottom_mlp():
    crossed = dlrm_dcnv2(12, 0, (7, 5), (6, 1), cross_layers=1, cross_rank=3)
    assert (crossed.bottom, crossed.width) == ((), 12)
    assert crossed.parameters == 12 * 3 + 3 * 12 + 12 * 6 + 6
    dotted = dlrm(3, 12, 0, (7, 5), (6, 1))
    assert (dotted.bottom, dotted.width) == ((), 12)
    assert dotted.top == ((3, 6), (6, 1))  # three features make three pairs


@pytest.mark.parametrize(
    ("model", "shapes", "message"),
    [
        (models.DLRM, {"a": (4,)}, "'a' is alone, and there are no dense features"),
        (models.DLRM, {"a": (4,), "b": (6,)}, "'b' has dim 6, must be 4, as 'a' has"),
        (models.WideDeep, {"a": (1,)}, "every feature has dim 1"),
        (models.DeepFM, {"a": (1,), "b": (1,)}, "every feature has dim 1"),
    ],
)
def test_what_a_model_cannot_read_is_refused(model, shapes, message):
    with pytest.raises(ValueError, match=message):
        model(shapes, 0, rngs=nnx.Rngs(0))


def test_tbsm_needs_two_vectors_in_an_event():
    shapes = {"a": (4,), "past": (3, 4)}
    with pytest.raises(ValueError, match="'a' is alone in an event"):
        models.TBSM(shapes, 0, {"past": "a"}, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="'b' has dim 6, must be 4, as 'a' has"):
        models.TBSM(shapes | {"b": (6,)}, 0, {"past": "a"}, rngs=nnx.Rngs(0))
