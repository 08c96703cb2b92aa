"""Models of plain functions, of pytrees, and with a loss of their own: on a mesh, in
micro-batches, saved and restored, equal to a training loop in plain JAX."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import embark_jax as ej
from tests.builders import SMALL_BATCH, SMALL_DATA, losses, small_trainer

RATE = 0.1


def apply(params, dense, embeddings):
    return dense[:, 0] * params["d"] + (embeddings["a"] * embeddings["b"]) @ params["w"]


def in_batch_loss(params, embeddings, batch):
    """Softmax over the other samples of the batch: no mean of losses of samples that
    know nothing of each other."""
    scores = jnp.einsum("id,d,jd->ij", embeddings["a"], params["w"], embeddings["b"])
    losses = optax.softmax_cross_entropy_with_integer_labels(
        scores, jnp.arange(len(scores))
    )
    return losses.mean(), apply(params, batch.dense, embeddings)


def focal_loss(params, embeddings, batch):
    logits = apply(params, batch.dense, embeddings)
    return optax.sigmoid_focal_loss(logits, batch.labels, gamma=2.0), logits


def params() -> dict[str, jax.Array]:
    return {"d": jnp.float32(0.3), "w": jnp.linspace(-1, 1, 4)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Module:
    """As Equinox has modules: a pytree whose leaves are its parameters."""

    params: Any

    def __call__(self, dense, embeddings):
        return apply(self.params, dense, embeddings)


class FlaxModel(ej.models.ModelWithLoss):
    def __init__(self):
        self.d, self.w = map(nnx.Param, params().values())

    def __call__(self, dense, embeddings):
        return apply({"d": self.d[...], "w": self.w[...]}, dense, embeddings)

    def loss(self, embeddings, batch):
        values = {"d": self.d[...], "w": self.w[...]}
        return in_batch_loss(values, embeddings, batch)


def trainer_of(model, *mesh):
    rates = {"optimizer": ej.SGD(RATE), "dense_optimizer": optax.sgd(RATE)}
    return small_trainer(model, *mesh, **rates)


def tables_of(trainer) -> dict[str, np.ndarray]:
    return {name: trainer.table(name).rows for name in "ab"}


def by_hand(loss, tables, steps):
    """The losses of a loop over whole tables, without any of this package."""

    def of(inputs, batch):
        params, tables = inputs
        rows = {n: tables[n][batch.ids[n][:, 0]] for n in tables}
        losses, _ = loss(params, rows, batch)
        return losses.mean()

    inputs, found = (params(), tables), []
    for step in range(steps):
        value, gradient = jax.value_and_grad(of)(
            inputs, SMALL_DATA.train_batch(step, SMALL_BATCH)
        )
        inputs = jax.tree.map(lambda p, g: p - RATE * g, inputs, gradient)
        found.append(float(value))
    return inputs, found


@pytest.mark.parametrize(
    ("model", "loss", "devices", "micro_batches"),
    [
        (ej.models.FunctionModel(params(), apply, in_batch_loss), in_batch_loss, 8, 1),
        pytest.param(
            ej.models.FunctionModel(params(), apply, focal_loss),
            focal_loss,
            4,
            2,
            marks=pytest.mark.slow,
        ),
        pytest.param(FlaxModel(), in_batch_loss, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_training_equals_a_loop_in_plain_jax(model, loss, devices, micro_batches):
    trainer = trainer_of(model, devices, micro_batches)
    (trained, tables), expected = by_hand(loss, tables_of(trainer), 3)
    found = losses(trainer.iterate(SMALL_DATA, 3))
    np.testing.assert_allclose(found, [*enumerate(expected, 1)], rtol=1e-5)
    for name, rows in tables_of(trainer).items():
        np.testing.assert_allclose(rows, tables[name], rtol=1e-4, atol=1e-6)
    for leaf, after in zip(
        jax.tree.leaves(trainer.state.params), jax.tree.leaves(trained), strict=True
    ):
        np.testing.assert_allclose(leaf, after, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_pytree_of_another_library_trains_by_the_trainers_loss():
    model = Module(params())
    function = ej.models.FunctionModel(model, lambda m, *inputs: m(*inputs))
    trainer = trainer_of(function, 2)
    assert trainer.fit(SMALL_DATA, 2).step == 2
    ((batch, logits),) = trainer.predict(SMALL_DATA.test_batches(SMALL_BATCH))
    trained = trainer.model.params
    assert isinstance(trained, Module)
    rows = {n: table[batch.ids[n][:, 0]] for n, table in tables_of(trainer).items()}
    np.testing.assert_allclose(logits, trained(batch.dense, rows), rtol=1e-5)
