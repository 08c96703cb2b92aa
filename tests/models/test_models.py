"""Every model against its NumPy oracle, and what it must refuse."""

import inspect
import pkgutil
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from embark_jax import models
from embark_jax.config.models import MODELS, section_of
from embark_jax.planner.request.dense import dlrm_dcnv2
from tests.models import oracle

BATCH, DENSE = 16, 5
HISTORY = {"past_b": "b", "past_a": "a"}
CASES = {
    "dlrm_dcnv2": (
        {"b": (3,), "c": (7,), "a": (4,)},
        section_of("dlrm_dcnv2")(
            bottom=(8, 6), top=(9, 1), cross_layers=2, cross_rank=3
        ),
    ),
    "parallel": (
        {"b": (3,), "c": (7,), "a": (4,)},
        section_of("dlrm_dcnv2")(
            structure="parallel", bottom=(6,), top=(9, 8, 1), cross_rank=3
        ),
    ),
    "dlrm": (
        {"b": (6,), "c": (6,), "a": (6,)},
        section_of("dlrm")(bottom=(8, 6), top=(9, 1)),
    ),
    "dcn": (
        {"b": (3,), "c": (7,), "a": (4,)},
        section_of("dcn")(cross_layers=2, deep=(9, 8)),
    ),
    "wide_deep": (
        {"b": (3,), "c": (1,), "a": (4,)},
        section_of("wide_deep")(deep=(9, 8)),
    ),
    "deepfm": (
        {"b": (4,), "c": (1,), "a": (4,)},
        section_of("deepfm")(deep=(9, 8)),
    ),
    "tbsm": (
        {"b": (6,), "past_b": (3, 6), "c": (6,), "past_a": (3, 6), "a": (6,)},
        section_of("tbsm")(
            history=HISTORY, bottom=(6,), event=(7,), attention=(5,), top=(8, 1)
        ),
    ),
}
MLPERF_SHAPES = {f"C{i}": (128,) for i in range(26)}


@pytest.fixture(params=CASES)
def case(request):
    shapes, model_config = CASES[request.param]
    return shapes, model_config, oracle.oracle_of(model_config)


def build(shapes, model_config, dtype="float32"):
    model_config = model_config.model_copy(update={"compute_dtype": dtype})
    return models.build(model_config, shapes, DENSE, nnx.Rngs(0))


def inputs(shapes):
    """Random."""
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((BATCH, DENSE), np.float32)
    embeddings = {
        name: rng.standard_normal((BATCH, *shape), np.float32)
        for name, shape in shapes.items()
    }
    return dense, embeddings


def with_empty_places(embeddings, places):
    """Makes the first places of the first samples' sequences padding."""
    valid = np.ones((BATCH, 3), bool)
    valid[: BATCH // 4, :places] = False
    return {
        name: models.Masked(rows, valid) if rows.ndim == 3 else rows
        for name, rows in embeddings.items()
    }


def as_numpy(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_equal_the_oracle_within_the_rounding_bound(case, dtype):
    shapes, model_config, reference = case
    model = build(shapes, model_config, dtype)
    dense, embeddings = inputs(shapes)
    embeddings = with_empty_places(embeddings, 1)
    logits = nnx.jit(model)(dense, embeddings)
    assert logits.shape == (BATCH,)
    assert logits.dtype == jnp.float32
    params = as_numpy(nnx.to_pure_dict(nnx.state(model)))
    expected = reference(params, dense, embeddings, dtype)
    error = np.abs(np.asarray(logits, np.float64) - expected.value[:, 0])
    np.testing.assert_array_less(error, expected.error[:, 0])
    # The bound is tight enough to mean something, and bf16 really rounds.
    scale = np.abs(expected.value).max()
    assert np.median(expected.error) < {"float32": 1e-4, "bfloat16": 0.1}[dtype] * scale
    unrounded = reference(params, dense, embeddings, "float32").value[:, 0]
    distance = np.abs(np.asarray(logits, np.float64) - unrounded).max()
    assert (distance > 1e-4 * scale) == (dtype == "bfloat16")


def test_gradients_equal_the_oracle_s_differences(case):
    shapes, model_config, reference = case
    model = build(shapes, model_config)
    dense, embeddings = inputs(shapes)
    graph, state = nnx.split(model)
    weights = np.linspace(0.5, 1.5, BATCH, dtype=np.float32)

    def loss(state, embeddings):
        return jnp.sum(nnx.merge(graph, state)(dense, embeddings) * weights)

    gradients = jax.grad(loss, argnums=(0, 1))(state, embeddings)
    gradients = nnx.to_pure_dict(gradients[0]), gradients[1]
    point = as_numpy((nnx.to_pure_dict(state), embeddings))
    leaves, tree = jax.tree.flatten(point)
    # Away from a ReLU's kink the loss is smooth: a central difference errs by about
    # step² and, by cancellation, 1e-16 / step.
    step = 1e-5
    for i, gradient in enumerate(as_numpy(jax.tree.leaves(gradients))):
        direction = np.random.default_rng(i).standard_normal(gradient.shape)
        up, down = (
            reference(
                *moved(tree, leaves, i, sign * step * direction, dense), "float32"
            ).value[:, 0]
            @ weights
            for sign in (1, -1)
        )
        actual = np.sum(gradient * direction)
        scale = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs(actual - (up - down) / (2 * step)) <= 1e-5 * scale


def moved(tree, leaves, i, change, dense):
    """(parameters, dense, embeddings) with leaf ``i`` moved by ``change``."""
    leaves = [*leaves[:i], leaves[i] + change, *leaves[i + 1 :]]
    params, embeddings = jax.tree.unflatten(tree, leaves)
    return params, dense, embeddings


def test_bf16_multiplies_bf16_and_sums_float32_backward_too(case):
    shapes, model_config, _ = case
    graph, state = nnx.split(build(shapes, model_config, "bfloat16"))
    dense, embeddings = inputs(shapes)

    def loss(state, embeddings):
        return jnp.sum(nnx.merge(graph, state)(dense, embeddings))

    step = jax.jit(jax.grad(loss, argnums=(0, 1)))
    lowered = step.lower(state, embeddings).as_text()
    dots = re.findall(r"dot_general .*contracting_dims.*: (\(.*)", lowered)
    linear = [dot for dot in dots if not re.search(r"<\d+x\d+x\d+x", dot)]
    assert len(linear) >= 2 * 4
    for dot in linear:
        operands, result = dot.split("->")
        assert operands.count("xbf16>") == 2, dot
        assert "xf32>" in result, dot
    for leaf in jax.tree.leaves(step(state, embeddings)):
        assert leaf.dtype == jnp.float32


def test_mlperf_has_the_parameters_counted_by_hand():
    model = nnx.eval_shape(
        lambda: models.DLRMDCNv2(MLPERF_SHAPES, 13, rngs=nnx.Rngs(0))
    )
    bottom = (13 * 512 + 512) + (512 * 256 + 256) + (256 * 128 + 128)
    width = 27 * 128
    cross = 3 * (2 * width * 512 + width)
    top = (
        (width * 1024 + 1024)
        + (1024 * 1024 + 1024)
        + (1024 * 512 + 512)
        + (512 * 256 + 256)
        + (256 + 1)
    )
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert sum(leaf.size for leaf in leaves) == bottom + cross + top == 16_044_545
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)


@pytest.mark.parametrize("kind", MODELS)
def test_a_section_has_the_arguments_of_the_constructor(kind):
    model = pkgutil.resolve_name(MODELS[kind])
    assert getattr(models, model.__name__) is model
    parameters = dict(inspect.signature(model.__init__).parameters)
    for name in ("self", "embedding_shapes", "dense_features", "rngs"):
        del parameters[name]
    parameters.pop("catalog", None)  # the rows of the item's table
    fields = section_of(kind).model_fields
    assert [*fields] == ["kind", *parameters]
    for name, parameter in parameters.items():
        assert fields[name].is_required() == (parameter.default is parameter.empty)
        assert fields[name].is_required() or fields[name].default == parameter.default
        assert fields[name].description[-1] == ".", name


def test_the_order_of_mappings_does_not_matter(case):
    shapes, model_config, _ = case
    reordered = dict(sorted(shapes.items()))
    assert list(reordered) != list(shapes)
    dense, embeddings = inputs(shapes)
    expected = build(shapes, model_config)(dense, embeddings)
    shuffled = {name: embeddings[name] for name in reordered}
    np.testing.assert_array_equal(
        build(reordered, model_config)(dense, shuffled), expected
    )


def test_sharded_over_the_batch_equals_unsharded(case):
    shapes, model_config, _ = case
    model = build(shapes, model_config)
    dense, embeddings = inputs(shapes)
    mesh = jax.make_mesh((2, 4), ("node", "gpu"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, PartitionSpec(("node", "gpu")))
    sharded = nnx.jit(model)(*jax.device_put((dense, embeddings), rows))
    assert sharded.sharding.is_equivalent_to(rows, 1)
    np.testing.assert_allclose(sharded, model(dense, embeddings), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"tbsm"}))
def test_a_sequence_feature_is_refused(name):
    _, model_config = CASES[name]
    rule = re.escape("feature 's' gives (10, 6) a sample, must be (dim,)")
    with pytest.raises(ValueError, match=rule):
        build({"a": (6,), "s": (10, 6)}, model_config)


def test_top_must_end_in_one_logit():
    with pytest.raises(ValueError, match=r"top is \(4, 2\), must end in 1"):
        models.DLRMDCNv2({"a": (6,)}, DENSE, top=(4, 2), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"top is \(\), must end in 1"):
        models.DLRM({"a": (6,)}, DENSE, bottom=(6,), top=(), rngs=nnx.Rngs(0))


def test_dlrm_names_every_feature_of_another_dim():
    shapes = {"a": (6,), "b": (4,), "c": (8,)}
    with pytest.raises(ValueError, match=r"'b' has dim 4, must be 6.*'c' has dim 8"):
        models.DLRM(shapes, DENSE, bottom=(8, 6), top=(1,), rngs=nnx.Rngs(0))


def test_embeddings_must_be_those_the_model_was_built_for(case):
    shapes, model_config, _ = case
    model = build(shapes, model_config)
    dense, embeddings = inputs(shapes)
    embeddings["d"] = embeddings.pop("a")
    embeddings["b"] = embeddings["b"][:, :2]
    message = (
        r"feature 'a' is missing, must be \[batch, \d\]; "
        r"feature 'b' is \[batch, 2\], must be \[batch, \d\]; "
        r"feature 'd' is \[batch, \d\], must be absent"
    )
    with pytest.raises(ValueError, match=message):
        model(dense, embeddings)


def test_an_empty_place_of_a_sequence_changes_nothing():
    shapes, model_config = CASES["tbsm"]
    model = build(shapes, model_config)
    dense, embeddings = inputs(shapes)

    def loss(embeddings):
        return jnp.sum(model(dense, with_empty_places(embeddings, 1)))

    gradients = jax.grad(loss)(embeddings)
    for name in HISTORY:
        np.testing.assert_array_equal(gradients[name][: BATCH // 4, 0], 0)
        assert np.abs(gradients[name][: BATCH // 4, 1:]).min(axis=(1, 2)).max() > 0


def test_a_sample_without_any_past_has_finite_gradients():
    shapes, model_config = CASES["tbsm"]
    graph, state = nnx.split(build(shapes, model_config))
    dense, embeddings = inputs(shapes)

    def loss(state, dense, embeddings):
        inputs = dense, with_empty_places(embeddings, 3)
        return jnp.sum(nnx.merge(graph, state)(*inputs))

    gradient = jax.jit(jax.grad(loss, argnums=(0, 2)))
    nothing = np.zeros_like(dense), jax.tree.map(np.zeros_like, embeddings)
    dead = jax.tree.map(lambda leaf: -abs(leaf), state)  # all ReLUs give zero
    for case in (
        (state, dense, embeddings),
        (state, *nothing),
        (dead, dense, embeddings),
    ):
        for leaf in jax.tree.leaves(gradient(*case)):
            assert np.isfinite(leaf).all()


def test_a_table_of_dim_1_is_in_the_wide_part_alone():
    shapes = {"cross": (1,), "item": (5,)}
    wide_deep = models.WideDeep(shapes, DENSE, deep=(7,), rngs=nnx.Rngs(0))
    deepfm = models.DeepFM(shapes, DENSE, deep=(7,), rngs=nnx.Rngs(0))
    dense, embeddings = inputs(shapes)
    moved = embeddings | {"cross": embeddings["cross"] + 0.25}
    for model in (wide_deep, deepfm):
        change = model(dense, moved) - model(dense, embeddings)
        np.testing.assert_allclose(change, 0.25, atol=1e-6)


def test_deepfm_names_every_feature_of_another_dim():
    shapes = {"a": (6,), "b": (4,), "c": (1,)}
    with pytest.raises(ValueError, match=r"^feature 'b' has dim 4, must be 6, .*$"):
        models.DeepFM(shapes, DENSE, rngs=nnx.Rngs(0))


def test_tbsm_names_all_that_is_wrong_with_its_history():
    shapes = {"a": (6,), "b": (4,), "s": (3, 6), "t": (2, 6), "u": (3, 6)}
    history = {"s": "a", "t": "a", "b": "s"}
    message = (
        "feature 'b' has dim 4, must be 6, the last of bottom: the dot interaction "
        "pairs them; feature 't' has hotness 2, must be 3, as the longest sequence "
        "has; feature 'u' is a sequence, must be in history; history.s is 'a', must "
        "not belong to another sequence; history.t is 'a', must not belong to "
        "another sequence; history has 'b', must be a feature with pooling none; "
        "history.b is 's', must be a feature that is pooled"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        models.TBSM(shapes, DENSE, history, bottom=(6,), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="history names no sequence feature"):
        models.TBSM(shapes, DENSE, {}, bottom=(6,), rngs=nnx.Rngs(0))


def test_the_planner_knows_what_backward_needs():
    """Its count of values for DLRM-DCNv2, against what is really kept."""
    model_config = section_of("dlrm_dcnv2")(bottom=(5,), top=(7, 1), cross_rank=6)
    found = models.footprint(model_config, {"a": (64,), "b": (128,)}, DENSE)
    network = dlrm_dcnv2(192, DENSE, (5,), (7, 1), cross_layers=3, cross_rank=6)
    biases = 5 + 7 + 1 + 3 * 197
    assert found.parameters == network.parameters + biases
    # Beside it dense features, masks of ReLUs, and inputs of that before a product; the
    # logit is not kept.
    left_out = 4 * DENSE + (5 + 7) + 4 * 7 - 4
    assert found.kept_bytes == 4 * network.kept_values + left_out


def test_the_footprint_of_every_model(case):
    shapes, model_config, _ = case
    found = models.footprint(model_config, shapes, DENSE)
    params = nnx.state(build(shapes, model_config, "float32"), nnx.Param)
    assert found.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))
    halved = model_config.model_copy(update={"compute_dtype": "bfloat16"})
    assert 0 < models.footprint(halved, shapes, DENSE).kept_bytes < found.kept_bytes
