"""Every model of the registry, and its gradients, against its oracle, without dense
features and with some."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax import models
from embark_jax.config import ModelConfig
from embark_jax.planner.request.dense import dlrm_network, network_of
from embark_jax.plans.tables import FeatureSpec, TableSpec
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
    assert [made[:2] for made in dotted.top] == [(3, 6), (6, 1)]  # three pairs


@pytest.mark.parametrize("kind", ["dlrm_dcnv2", "dlrm"])
def test_products_of_a_traced_model_are_those_of_its_formula(kind):
    """Those with weights; DLRM's dot products have none."""
    config = ModelConfig.model_validate({"kind": kind, "bottom": [8, 4], "top": [6, 1]})
    shapes = {"a": (4,), "b": (4,)}
    found = models.footprint(config, shapes, 3, multiplied=True).products
    tables = [TableSpec(name, 10, 4) for name in "ab"]
    features = [FeatureSpec(name) for name in "ab"]
    network = network_of(config, tables, features, 3)
    expected = [*network.bottom, *network.cross, *network.top]
    assert sorted(made for made in found if made.weighted) == sorted(expected)


def test_products_of_events_are_as_many_as_there_is_room_for():
    """STU layers of 2 heads of 4, and MLPs of events, for 5 of up to 16 events."""
    shapes = {"past": (16, 8), "item": (8,)}
    settings = {"history": {"past": "item"}, "content": "past", "width": 8, "layers": 2}
    settings |= {"hidden": 6, "heads": 2, "head_dim": 4, "deep": 5}
    config = ModelConfig.model_validate({"kind": "dlrm_v4", **settings})
    events = {"past": 5.0}
    found = models.footprint(config, shapes, 0, events, multiplied=True).products
    layers = [made for made in found if made[:2] in ((8, 32), (24, 8))]
    assert len(layers) == 4
    # The candidate is an event, too; room is for whole tiles of a batch.
    assert all(made.weighted and 6 <= made.times <= 16 for made in layers)
    assert any(not made.weighted for made in found)  # scores
