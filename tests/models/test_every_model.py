"""Every model of the registry, and its gradients, against its oracle, without dense
features and with some."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax import models
from embark_jax.planner.request.dense import dlrm_network
from tests.models import oracle, sequence_oracle, small
from tests.models.slopes import assert_slopes
from tests.thorough import thorough

BATCH = 6
ONE_WIDE = {"dlrm", "dlrm_dcnv2", "tbsm"}
"""Models whose MLPs end in ReLUs of a few values: normalized, all may be zero."""


@pytest.mark.parametrize("dense_features", thorough([0, 3], [0]))
@pytest.mark.parametrize(
    ("kind", "changes"),
    thorough(
        small.CASES,
        [
            *((kind, {}) for kind in small.KINDS if kind != "dlrm_v4"),
            small.VARIANTS[-1],
        ],
        unpack=True,
    ),
)
def test_every_model_equals_its_oracle(kind, changes, dense_features):
    section = small.KINDS[kind]
    if "batch_norm" in section.model_fields and kind not in ONE_WIDE:
        changes = {"batch_norm": True, **changes}
    config = small.small_config(section, **changes)
    shapes = small.shapes_of(config)
    # Initial values are no part of this, and take long to compile.
    model = nnx.eval_shape(
        lambda: models.build(config, shapes, dense_features, nnx.Rngs(0))
    )
    model.eval()
    function = getattr(oracle, kind, None) or getattr(sequence_oracle, kind)
    _, _, _, *names = inspect.signature(function).parameters
    options = {name: getattr(config, name) for name in names}
    generator = np.random.default_rng(0)
    # Positive, so that no event of TBSM is cut to zero by its ReLU.
    rows = {
        name: generator.uniform(0.1, 1.0, (BATCH, *shape)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    dense = generator.normal(size=(BATCH, dense_features)).astype(np.float32)
    graph, params, statistics, rest = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
    params = jax.tree.map(
        lambda leaf: generator.normal(0.1, 0.3, leaf.shape).astype(np.float32), params
    )
    statistics = jax.tree.map(
        lambda leaf: generator.uniform(0.5, 1.0, leaf.shape).astype(np.float32),
        statistics,
    )

    arrays = params, statistics, rows

    @jax.jit
    def logits_and_gradients(arrays):
        def loss(arrays):
            params, statistics, rows = arrays
            merged = nnx.merge(graph, params, statistics, rest, copy=True)
            logits = merged(dense, small.joined(model, small.masked(rows)))
            return jnp.sum(logits**2), (logits, merged(dense, small.masked(rows)))

        gradients, both = jax.grad(loss, has_aux=True)(arrays)
        return both, gradients

    def formula(arrays):
        params, statistics, rows = arrays
        layers = nnx.to_pure_dict(nnx.merge_state(params, statistics))
        logits = function(layers, dense, small.masked(rows), **options)
        return logits.reshape(BATCH, -1)

    (logits, by_feature), gradients = logits_and_gradients(arrays)
    np.testing.assert_array_equal(logits, by_feature)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients[2].values())
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arrays)
    expected = formula(exact)
    scale = np.abs(expected).max()
    logits = np.reshape(logits, (BATCH, -1))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * scale)
    assert_slopes(lambda arrays: np.sum(formula(arrays) ** 2), exact, gradients)
    footprint = models.footprint(config, shapes, dense_features)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    assert footprint.parameters == sum(sizes)
    assert footprint.kept_bytes > 0


def test_the_planner_counts_no_bottom_mlp():
    crossed = dlrm_network(12, 0, (7, 5), (6, 1), cross_layers=1, cross_rank=3)
    assert (crossed.bottom, crossed.width) == ((), 12)
    assert crossed.parameters == 12 * 3 + 3 * 12 + 12 * 6 + 6
    dotted = dlrm_network(12, 0, (7, 5), (6, 1), dotted=3)
    assert (dotted.bottom, dotted.width) == ((), 12)
    assert dotted.top == ((3, 6), (6, 1))  # three features make three pairs
