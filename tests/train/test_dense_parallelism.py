"""The dense model replicated or in parts: the same losses, and really in parts."""

import functools

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import embark_jax as ej
from embark_jax.checkpoint import Checkpointer
from tests.builders import dlrm_dcnv2, losses, make_trainer
from tests.compiled import bytes_per_device

TABLES = (ej.TableSpec("a", 300, 8), ej.TableSpec("b", 40, 8))
FEATURES = (ej.FeatureSpec("fa", "a", hotness=3), ej.FeatureSpec("fb", "b"))
STEPS, BATCH, DENSE = 20, 64, 5
DATA = ej.SyntheticClicks(
    TABLES,
    FEATURES,
    dense_features=DENSE,
    train_samples=STEPS * BATCH,
    test_samples=BATCH,
)


@pytest.fixture(autouse=True, scope="module")
def standard_promotion():
    # optax's Adam raises a float to an integer step, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        yield


def trainer_of(dense, micro_batches=1):
    return make_trainer(
        ej.plan(TABLES, FEATURES, ej.fleets.dgx_h100(2, 4), BATCH),
        dlrm_dcnv2(DENSE, (16, 8), (16, 8, 1), rank=8, layers=2),
        dense_optimizer=optax.adamw(0.01, weight_decay=0.01),
        micro_batches=micro_batches,
        dense=dense,
    )


@pytest.fixture(scope="module")
def expected():
    return losses(trainer_of("replicated").iterate(DATA, STEPS))


@functools.cache
def trained(dense, parts=1):
    trainer = trainer_of(dense, parts)
    return trainer, losses(trainer.iterate(DATA, STEPS))


@pytest.mark.parametrize(
    ("dense", "parts"),
    [
        ("zero1", 1),
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
    trainer, _ = trained("zero1")
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


@pytest.mark.slow
def test_checkpoints_load_into_another_layout(tmp_path, expected):
    with Checkpointer(tmp_path, {}, keep=1) as checkpoints:
        first = trainer_of("zero1")
        losses(first.iterate(DATA, 10))
        checkpoints.save(first.state, 10, first.embeddings, {})
        for dense in ("replicated", "tensor"):
            second = trainer_of(dense)
            layout = jax.tree.map(lambda each: each.sharding, second.state)
            second.restore(checkpoints.restore(second.state, second.embeddings)[0])
            assert jax.tree.map(lambda each: each.sharding, second.state) == layout
            np.testing.assert_allclose(
                losses(second.iterate(DATA, STEPS)), expected[10:], rtol=1e-4
            )
