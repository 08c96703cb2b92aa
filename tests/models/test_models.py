"""What all models do alike: types, order, sharding; and what they refuse."""

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
from embark_jax.models.interface import PackedModel
from embark_jax.models.kept_values import kept_and_most_bytes
from embark_jax.planner.request.dense import dlrm_network
from tests.models import small
from tests.thorough import thorough

BATCH, DENSE = 16, 5
HISTORY = {"past_b": "b", "past_a": "a"}
TBSM_SHAPES = {"b": (6,), "past_b": (3, 6), "c": (6,), "past_a": (3, 6), "a": (6,)}
TBSM = section_of("tbsm")(
    history=HISTORY, bottom=(6,), event=(7,), attention=(5,), top=(8, 1)
)


def build(shapes, model_config, dtype="float32"):
    model_config = model_config.model_copy(update={"compute_dtype": dtype})
    model = models.build(model_config, shapes, DENSE, nnx.Rngs(0))
    model.eval()
    return model


def inputs(shapes):
    """Random."""
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((BATCH, DENSE), np.float32)
    embeddings = {
        name: rng.standard_normal((BATCH, *shape), np.float32)
        for name, shape in shapes.items()
    }
    return dense, embeddings


@pytest.fixture(params=thorough(MODELS, ["dlrm_dcnv2", "tbsm"]))
def case(request):
    """A model's small config, its shapes, and inputs."""
    config = small.small_config(small.KINDS[request.param])
    shapes = small.shapes_of(config)
    return config, shapes, inputs(shapes)


def test_bfloat16_rounds_products_alone(case):
    """Both operands of products with weights, whose sums are float32, backward too; so
    logits are near those of float32."""
    config, shapes, (dense, embeddings) = case
    graph, params, rest = nnx.split(build(shapes, config, "bfloat16"), nnx.Param, ...)

    def loss(params, embeddings):
        logits = nnx.merge(graph, params, rest, copy=True)(dense, embeddings)
        return jnp.sum(logits), logits

    step = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    lowered = step.lower(params, embeddings).as_text()
    dots = re.findall(r"dot_general .*contracting_dims.*: (\(.*)", lowered)
    linear = [dot for dot in dots if not re.search(r"<\d+x\d+x\d+x", dot)]
    assert len(linear) >= 6
    for dot in linear:
        operands, result = dot.split("->")
        assert operands.count("xbf16>") == 2, dot
        assert "xf32>" in result, dot
    gradients, logits = step(params, embeddings)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype("float32")}
    exact = build(shapes, config)(dense, embeddings)
    change = np.abs(logits - exact).max() / np.abs(exact).max()
    assert 1e-4 < change < 0.1


def test_the_order_of_mappings_does_not_matter(case):
    config, shapes, (dense, embeddings) = case
    expected = build(shapes, config)(dense, embeddings)
    shuffled = {name: embeddings[name] for name in sorted(shapes)[::-1]}
    model = build({name: shapes[name] for name in shuffled}, config)
    np.testing.assert_array_equal(model(dense, shuffled), expected)


def test_sharded_over_the_batch_equals_unsharded(case):
    config, shapes, arrays = case
    model = build(shapes, config)
    mesh = jax.make_mesh((2, 4), ("node", "gpu"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, PartitionSpec(("node", "gpu")))
    sharded = nnx.jit(model)(*jax.device_put(arrays, rows))
    # Events of packed models stay on their devices in a step, which packs them there.
    if not isinstance(model, PackedModel):
        assert sharded.sharding.is_equivalent_to(rows, sharded.ndim)
    np.testing.assert_allclose(sharded, model(*arrays), rtol=1e-5, atol=1e-6)


def test_embeddings_must_be_those_the_model_was_built_for(case):
    config, shapes, (dense, embeddings) = case
    model = build(shapes, config)
    embeddings["d"] = embeddings.pop("user")
    embeddings["item"] = embeddings["item"][:, :2]
    message = (
        r"feature 'd' is \[batch, 8\], must be absent.*; "
        r"feature 'item' is \[batch, 2\], must be \[batch, 8\]; "
        r"feature 'user' is missing, must be \[batch, 8\]"
    )
    with pytest.raises(ValueError, match=message):
        model(dense, embeddings)


def test_mlperf_has_the_parameters_counted_by_hand():
    shapes = {f"C{i}": (128,) for i in range(26)}
    model = nnx.eval_shape(lambda: models.DLRMDCNv2(shapes, 13, rngs=nnx.Rngs(0)))
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


def with_empty_places(embeddings, places):
    """Makes the first places of the first samples' sequences padding."""
    valid = np.ones((BATCH, 3), bool)
    valid[: BATCH // 4, :places] = False
    return {
        name: models.Masked(rows, valid) if rows.ndim == 3 else rows
        for name, rows in embeddings.items()
    }


def test_a_sample_without_any_past_has_finite_gradients():
    graph, state = nnx.split(build(TBSM_SHAPES, TBSM))
    dense, embeddings = inputs(TBSM_SHAPES)

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


def test_the_planner_knows_what_backward_needs():
    """Its count of values for DLRM-DCNv2, against what is really kept."""
    model_config = section_of("dlrm_dcnv2")(bottom=(5,), top=(7, 1), cross_rank=6)
    found = models.footprint(model_config, {"a": (64,), "b": (128,)}, DENSE)
    network = dlrm_network(192, DENSE, (5,), (7, 1), cross_layers=3, cross_rank=6)
    biases = 5 + 7 + 1 + 3 * 197
    assert found.parameters == network.parameters + biases
    # Beside it dense features, and masks of ReLUs; not the logit, nor the bottom MLP's
    # output, which the joined values have.
    left_out = 4 * DENSE + (5 + 7) - 4 - 4 * 5
    assert found.kept_bytes == 4 * network.kept_values + left_out


def test_what_elementwise_operations_make_again_is_not_kept():
    """Of a gate: its input, its two products, and what the last product reads; not
    the sigmoid, the tanh, or what their gradients need."""

    def apply(params, x):
        gate = jax.nn.sigmoid(x @ params["gate"]) * jnp.tanh(x @ params["value"])
        return (gate @ params["last"]).sum()

    def gradients(params, x):
        loss, gradients = jax.value_and_grad(apply, (0, 1))(params, x)
        return loss, *gradients

    shapes = {"gate": (8, 32), "value": (8, 32), "last": (32, 2)}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    for late in (False, True):
        found = kept_and_most_bytes(gradients, 3, late, params, jnp.zeros((10, 8)))
        assert found[0] == pytest.approx(10 * 4 * (8 + 32 + 32 + 32), rel=0.01)


def gradients(params, x):
    """A hidden layer with ReLU, and two layers over it."""

    def total(params, x):
        hidden = jax.nn.relu(x @ params["hidden"])
        return sum((hidden @ params[name]).sum() for name in ("one", "other"))

    loss, (of_params, of_x) = jax.value_and_grad(total, (0, 1))(params, x)
    return loss, of_params, of_x


@pytest.mark.parametrize(
    ("late", "values"),
    [
        # The gradients of the hidden layer by both layers over it, one in the place of
        # the other's sum; a byte of mask for each value; the input.
        (False, 2 * 32 + 32 / 4 + 8),
        # The hidden layer and its gradient stay until the inputs' gradient is there.
        (True, 2 * 32 + 32 / 4 + 32 + 8),
    ],
)
def test_what_is_there_at_once_depends_on_which_gradients_come_last(late, values):
    """Sums of gradients, which are elementwise, are made in the place of one."""
    shapes = {"hidden": (8, 32), "one": (32, 2), "other": (32, 2)}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    few, many = (
        kept_and_most_bytes(gradients, 3, late, params, jnp.zeros((n, 8)))[1]
        for n in (1000, 2000)
    )
    assert many - few == pytest.approx(1000 * 4 * values, rel=0.1)


def most_values(apply, params, late, samples):
    """Float32 values of a sample that are there at once at most, inputs included."""

    def gradients(params, x):
        loss, (of_params, of_x) = jax.value_and_grad(apply, (0, 1))(params, x)
        return loss, *jax.tree.leaves(of_params), of_x

    few, many = (
        kept_and_most_bytes(gradients, len(params), late, params, jnp.zeros((n, 8)))[1]
        for n in (samples, 2 * samples)
    )
    return (many - few) / (4 * samples)


def test_a_sum_is_made_with_the_gradient_that_reads_the_same():
    """Of a logit's weights: in the kernel of the gradient that passes ReLU."""

    def apply(params, x):
        hidden = jax.nn.relu(x @ params["first"])
        return (jax.nn.relu(hidden @ params["second"]) @ params["logit"]).sum()

    shapes = {"first": (8, 64), "second": (64, 32), "logit": (32, 1)}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    # Input, hidden layer with its mask, gradients of both layers; not the second one.
    values = 8 + 64 + 64 / 4 + 64 + 32
    assert most_values(apply, params, True, 1000) == pytest.approx(values, rel=0.05)


def test_a_mask_larger_than_what_it_is_made_of_is_made_again():
    """Of which samples have the same number, where all are compared with each other."""

    def apply(params, x):
        scores = (x @ params) @ x.T
        scores = jnp.where(x[:, :1] == x[:, 0][None], 0.0, scores)
        return jax.nn.logsumexp(scores, axis=1).sum()

    def gradients(params, x):
        loss, gradients = jax.value_and_grad(apply, (0, 1))(params, x)
        return loss, *gradients

    n = 1000
    params, x = jnp.zeros((8, 8)), jnp.zeros((n, 8))
    kept, _ = kept_and_most_bytes(gradients, 1, False, params, x)
    assert kept == pytest.approx(4 * n**2, rel=0.1)


@pytest.mark.parametrize(("alone", "arrays"), [(True, 1), (False, 2)])
def test_what_frees_more_than_it_makes_is_put_off_on_several_devices(alone, arrays):
    """The gradients of two halves of the scores: of what they give comes last, they
    are there together."""

    def apply(params, x, y):
        @jax.checkpoint
        def total(users):
            return jax.nn.logsumexp(users @ y.T, axis=1).sum()

        return sum(total(users) for users in jnp.split(x @ params, 2))

    def gradients(params, x, y):
        loss, (of_params, *of_rows) = jax.value_and_grad(apply, (0, 1, 2))(params, x, y)
        return loss, of_params, *of_rows

    n = 1000
    arguments = jnp.zeros((8, 8)), jnp.zeros((n, 8)), jnp.zeros((n, 8))
    _, most = kept_and_most_bytes(gradients, 1, False, *arguments, alone=alone)
    assert most / (4 * n**2 / 2) == pytest.approx(arrays, rel=0.1)


def test_a_product_by_a_vector_is_a_sum():
    """XLA reads what elementwise operations give where it adds, as cross layers of
    rank 1 do; the layers are made again of their input and three numbers."""
    config = section_of("dcn")(cross_layers=3, deep=(5,))
    found = models.footprint(config, {"a": (64,), "b": (128,)}, DENSE, alone=True)
    width = 4 * (192 + DENSE)
    assert width < found.kept_bytes < 1.2 * width
    assert width < found.activation_bytes < 1.2 * width  # beside the embeddings


def test_din_joins_no_pairs():
    """Of behaviour and candidate, which would be four times a history; its products are
    of the behaviours, of them times the candidate, and of the candidate alone."""
    shapes = {"past": (10, 8), "item": (8,)}
    config = section_of("din")(history={"past": "item"}, activation=(5,), deep=(7,))
    found = models.footprint(config, shapes, DENSE, multiplied=True, alone=True)
    first = [made.times for made in found.products if made[:2] == (8, 5)]
    assert sorted(first) == [1, 10, 10]
    history = 4 * 10 * 8
    assert found.kept_bytes < 2.5 * history + 4 * 10 * (2 * 5 + 2) + 4 * (
        8 + DENSE + 30
    )


def test_scores_of_negatives_are_counted():
    """One float32 of each sample and each other one, and at most its gradient."""
    config, shapes = section_of("two_tower")(items=("a",)), {"a": (8,), "b": (8,)}
    few, many = (
        models.footprint(config, shapes, DENSE, samples=n).activation_bytes
        for n in (2048, 16_384)
    )
    assert 4 * 16_384 * 0.8 < many - few < 2 * 4 * 16_384
