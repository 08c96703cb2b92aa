"""The dense model replicated or in parts, with gradients that travel in float32 or
bfloat16: the same losses, and really in parts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import embark_jax as ej
from tests.builders import (
    SMALL_BATCH,
    SMALL_DATA,
    dlrm_dcnv2,
    losses,
    make_trainer,
    small_trainer,
)
from tests.compiled import bytes_per_device

STEPS, DEVICES, BATCH, DENSE, RATE = 20, 8, 64, 5, 0.5
ULP = 2.0**-8
"""Largest relative error of rounding to bfloat16, twice: one digit."""
TABLES = (ej.TableSpec("a", 300, 8), ej.TableSpec("b", 40, 8))
FEATURES = (ej.FeatureSpec("a", hotness=3), ej.FeatureSpec("b"))
DATA = ej.SyntheticClicks(
    TABLES, FEATURES, dense_features=DENSE, train_samples=STEPS * BATCH
)


@pytest.fixture(autouse=True, scope="module")
def standard_promotion():
    # optax's Adam raises a float to an integer step, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        yield


def trainer_of(**options) -> ej.Trainer:
    machines = ej.fleets.dgx_h100(2, DEVICES // 2)
    return make_trainer(
        ej.plan(TABLES, FEATURES, machines, BATCH, optimizer="adagrad"),
        dlrm_dcnv2(DENSE, (16, 8), (16, 8, 1), rank=8, layers=2),
        **options,
    )


def rounded(array) -> np.ndarray:
    return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float64)


def shares_by_hand(model, tables, batch):
    """Gradients of the mean loss by each device's samples, along a first axis, without
    this package's step."""
    graph, params = nnx.split(model)

    def loss(params, dense, embeddings, labels):
        logits = nnx.merge(graph, params)(dense, embeddings)
        return optax.sigmoid_binary_cross_entropy(logits, labels).sum() / BATCH

    pooled = {}
    for name, rows in tables.items():
        ids = batch.ids[name][:, :, None]
        pooled[name] = np.where(ids >= 0, rows[ids[:, :, 0]], 0).sum(axis=1)
    inputs = batch.dense, pooled, batch.labels
    inputs = jax.tree.map(
        lambda rows: rows.reshape(DEVICES, -1, *rows.shape[1:]), inputs
    )
    with jax.default_matmul_precision("highest"):
        by_device = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0)))
        return by_device(params, *inputs)


def test_gradients_are_rounded_once_on_each_device_and_summed():
    trainer = trainer_of(dense_wire="bfloat16", dense_optimizer=optax.sgd(RATE))
    model = trainer.model
    batch = DATA.train_batch(0, BATCH)
    tables = {name: trainer.table(name).rows for name in "ab"}
    shares = shares_by_hand(model, tables, batch)
    before = nnx.state(model)
    list(trainer.iterate_batches([batch]))
    exact = []
    leaves = map(jax.tree.leaves, (before, trainer.state.params, shares))
    for old, new, share in zip(*leaves, strict=True):
        found = (np.float64(old) - np.float64(new)) / RATE
        total = rounded(rounded(share).sum(axis=0).astype(np.float32))
        slack = ULP * np.abs(np.float64(share)).sum(axis=0)
        update = 2.0**-22 * np.abs(np.float64(old)) / RATE  # of its rounding
        assert (np.abs(found - total) <= slack + update + 1e-12).all()
        exact.extend((np.abs(found - total) <= update + 1e-12).flat)
    # Of the others, a share was rounded to the other side.
    assert np.mean(exact) > 0.95


@dataclasses.dataclass(frozen=True)
class Own:
    """A model of functions, whose loss is a mean or one of each sample."""

    mean: bool

    def apply(self, params, dense, embeddings):
        return (embeddings["a"] * embeddings["b"]) @ params + dense[:, 0]

    def loss(self, params, embeddings, batch):
        logits = self.apply(params, batch.dense, embeddings)
        each = optax.sigmoid_focal_loss(logits, batch.labels, gamma=2.0)
        return (each.mean() if self.mean else each), logits

    def model(self, **options) -> ej.FunctionModel:
        return ej.FunctionModel(jnp.ones(4), self.apply, self.loss, **options)


@pytest.mark.slow
def test_a_loss_of_each_sample_may_be_declared():
    model = Own(mean=False).model(independent_samples=True)
    trainers = [
        small_trainer(model, 4, dense_wire=wire) for wire in ("float32", "bfloat16")
    ]
    exact, found = (losses(each.iterate(SMALL_DATA, 5)) for each in trainers)
    assert found != exact
    np.testing.assert_allclose(found, exact, rtol=1e-2)


def batch_norm(shapes):
    return ej.models.DLRM(shapes, 1, (4,), (4, 1), batch_norm=True, rngs=nnx.Rngs(0))


def two_tower(shapes):
    return ej.models.TwoTower(shapes, 1, ["b"], (4,), rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (batch_norm, "arrays that are no parameters, must have none"),
        (two_tower, "has 1 arrays that are no parameters, must have none"),
        (Own(mean=False).model(), "has its own loss, which may compare samples"),
    ],
)
def test_samples_must_be_independent(model, message):
    with pytest.raises(ValueError, match=f"dense_wire is 'bfloat16', .*{message}"):
        small_trainer(model, dense_wire="bfloat16")


def test_a_mean_over_the_batch_is_refused():
    model = Own(mean=True).model(independent_samples=True)
    trainer = small_trainer(model, dense_wire="bfloat16")
    with pytest.raises(ValueError, match="is the mean of a batch, must be one of each"):
        list(trainer.iterate_batches([SMALL_DATA.train_batch(0, SMALL_BATCH)]))


def by_adam(dense, **options) -> ej.Trainer:
    rule = optax.adamw(0.01, weight_decay=0.01)
    return trainer_of(dense=dense, dense_optimizer=rule, **options)


@pytest.fixture(scope="module")
def expected():
    return losses(by_adam("replicated").iterate(DATA, STEPS))


@functools.cache
def trained(dense, parts=1):
    trainer = by_adam(dense, micro_batches=parts)
    return trainer, losses(trainer.iterate(DATA, STEPS))


@pytest.mark.parametrize(
    ("dense", "parts"),
    [
        pytest.param("zero1", 1, marks=pytest.mark.slow),
        ("tensor", 1),
        pytest.param("tensor", 2, marks=pytest.mark.slow),
    ],
)
def test_losses_are_those_of_a_replicated_model(dense, parts, expected):
    _, found = trained(dense, parts)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def sizes(arrays):
    """Bytes of arrays on one device, and of all of them."""
    return bytes_per_device(arrays), sum(
        leaf.nbytes for leaf in jax.tree.leaves(arrays)
    )


def test_zero1_shards_the_optimizer_state_alone():
    trainer = by_adam("zero1")
    list(trainer.iterate_batches([DATA.train_batch(0, BATCH)]))
    mine, whole = sizes(trainer.state.dense_state)
    assert mine < 1.2 * whole / 8  # the logit's bias is on all devices
    mine, whole = sizes(trainer.state.params)
    assert mine == whole


def test_tensor_shards_layers_inside_a_node():
    trainer, _ = trained("tensor")
    specs = {
        "/".join(map(str, path)): leaf[...].sharding.spec
        for path, leaf in nnx.to_flat_state(trainer.state.params)
    }
    columns, rows, everywhere = (
        PartitionSpec(None, "gpu"),
        PartitionSpec("gpu"),
        PartitionSpec(),
    )
    assert specs["bottom/layers/0/w"] == specs["cross/0/v"] == columns
    assert specs["bottom/layers/1/w"] == specs["cross/0/w"] == rows
    assert specs["bottom/layers/0/b"] == rows
    assert specs["bottom/layers/1/b"] == specs["cross/0/b"] == everywhere
