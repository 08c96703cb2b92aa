"""Models of data without dense features, against their NumPy oracles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax import models
from embark_jax.config import models as config
from embark_jax.planner.request.dense import dlrm, dlrm_dcnv2
from tests.models import oracle

BATCH, DIM, LENGTH = 6, 4, 3
PAST = {"past": "item"}
MODELS = {
    "dlrm_dcnv2": config.DLRMDCNv2Config(
        bottom=(7, 5), top=(6, 1), cross_layers=1, cross_rank=3
    ),
    "dlrm": config.DLRMConfig(bottom=(7, 5), top=(6, 1)),
    "wide_deep": config.WideDeepConfig(deep=(6,)),
    "deepfm": config.DeepFMConfig(deep=(6,)),
    "tbsm": config.TBSMConfig(
        history=PAST, bottom=(7, 5), event=(6,), attention=(), top=(1,)
    ),
    "dcn": config.DCNConfig(cross_layers=1, deep=(6,)),
    "autoint": config.AutoIntConfig(attention=(4,), deep=(6,)),
    "finalmlp": config.FinalMLPConfig(stream1=(6,), stream2=(6,), gate=(3,)),
    "din": config.DINConfig(history=PAST, activation=(3,), deep=(6,)),
    "two_tower": config.TwoTowerConfig(items=("item",), tower=(6, 4)),
    "mmoe": config.MMoEConfig(tasks=("a", "b"), experts=2, expert=(6,), tower=(3,)),
}


def shapes_of(kind: str) -> dict[str, tuple[int, ...]]:
    shapes = {"item": (DIM,), "place": (DIM,), "user": (DIM,)}
    return shapes | ({"past": (LENGTH, DIM)} if kind in ("tbsm", "din") else {})


ORACLES = {
    "dlrm_dcnv2": oracle.dlrm_dcnv2,
    "dlrm": oracle.dlrm,
    "dcn": oracle.dcn,
    "wide_deep": oracle.wide_deep,
    "deepfm": oracle.deepfm,
    "tbsm": functools.partial(oracle.tbsm, history=PAST),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_does_without_dense_features(kind):
    shapes = shapes_of(kind)
    model = models.build(MODELS[kind], shapes, 0, nnx.Rngs(0))
    generator = np.random.default_rng(0)
    # Positive, so that no event of TBSM is cut to zero by its ReLU.
    rows = {
        name: generator.uniform(0.1, 1.0, (BATCH, *shape)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def logits_and_gradients(params, rows):
        def loss(params, rows):
            logits = nnx.merge(graph, params, rest, copy=True)(
                jnp.zeros((BATCH, 0)), rows
            )
            return jnp.sum(logits**2), logits

        gradients, logits = jax.grad(loss, (0, 1), has_aux=True)(params, rows)
        return logits, gradients

    logits, gradients = logits_and_gradients(params, rows)
    assert np.isfinite(logits).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert all(np.abs(each).max() > 0 for each in gradients[1].values())
    if kind in ORACLES:
        exact = jax.tree.map(
            lambda leaf: np.asarray(leaf, np.float64), nnx.to_pure_dict(params)
        )
        expected = ORACLES[kind](exact, np.zeros((BATCH, 0)), rows, "float32")
        error = np.abs(np.asarray(logits, np.float64) - expected.value[:, 0])
        np.testing.assert_array_less(error, expected.error[:, 0])
    found = models.footprint(MODELS[kind], shapes, 0)
    assert found.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert found.kept_bytes > 0


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
