"""Packed sequences: what models make of them is what they make of padded ones."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embark_kernels import attention
from embark_kernels.packing import pack
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax import models
from embark_jax.models.dlrm_v4 import DLRMv4
from embark_jax.models.hstu import HSTU
from embark_jax.models.next_item import NextItem
from tests.thorough import thorough

PLACES, DIM, BATCH, DENSE = 7, 8, 16, 3
SHAPES = {
    "item": (DIM,),
    "past": (PLACES, DIM),
    "kind": (DIM,),
    "past_kinds": (PLACES, DIM),
    "user": (DIM,),
}
BOTH = {"past": "item", "past_kinds": "kind"}
ONE = {n: shape for n, shape in SHAPES.items() if "kind" not in n}
MODELS = {
    "hstu": lambda rngs: HSTU(SHAPES, DENSE, BOTH, 16, 1, 2, rngs=rngs),
    "dlrm_v4": lambda rngs: DLRMv4(
        SHAPES, DENSE, BOTH, "past", width=16, layers=2, heads=2, rngs=rngs
    ),
    "sasrec": lambda rngs: NextItem(
        ONE, DENSE, {"past": "item"}, "sasrec", 1, every_position=True, rngs=rngs
    ),
    "hstu, next item": lambda rngs: NextItem(
        ONE, DENSE, {"past": "item"}, "hstu", 1, every_position=False, rngs=rngs
    ),
}


def ids_of_samples(rng: np.random.Generator) -> np.ndarray:
    """Empty histories, whole ones, and ones with padding on both sides and inside."""
    ids = rng.integers(0, 50, (BATCH, PLACES)).astype(np.int32)
    ids[rng.random(ids.shape) < 0.3] = -1
    ids[:3], ids[3:5] = -1, 7
    return ids


def packed(values, ids, devices: int, room: int):
    """A padded sequence as ``Packed``, with room on each device."""
    valid = ids != -1
    begin = np.argmax(valid, axis=1).astype(np.int32)
    end = PLACES - np.argmax(valid[:, ::-1], axis=1)
    length = np.where(valid.any(axis=1), end - begin, 0).astype(np.int32)
    by_device = length.reshape(devices, -1)
    first = (by_device.cumsum(axis=1) - by_device).astype(np.int32)
    spans = begin, length, first
    parts = np.array_split(np.arange(BATCH), devices)

    def joined(padded, fill):
        return jnp.concatenate(
            [
                pack(
                    padded[samples],
                    room,
                    *(jnp.asarray(x.reshape(-1)[samples]) for x in spans),
                    fill,
                )
                for samples in parts
            ]
        )

    mesh = None
    if devices > 1:
        mesh = Mesh(np.array(jax.devices()[:devices]).reshape(1, -1), ("node", "gpu"))
    arrays = joined(values, 0.0), joined(jnp.asarray(ids), -1)
    spans = (jnp.asarray(x.reshape(-1)) for x in spans)
    return models.Packed(*arrays, *spans, longest=PLACES, mesh=mesh)


def inputs_of(name: str):
    rng = np.random.default_rng(3)
    shapes = ONE if name != "hstu" and name != "dlrm_v4" else SHAPES
    ids = {n: ids_of_samples(rng) for n, s in shapes.items() if len(s) == 2}
    if "past_kinds" in ids:  # its spans are others, for the same places
        ids["past_kinds"][5:, 0] = -1
        ids["past_kinds"][6:9, 1:] = ids["past"][6:9, 1:]
    values = {}
    for feature, shape in shapes.items():
        drawn = rng.normal(size=(BATCH, *shape)).astype(np.float32)
        if feature in ids:
            drawn[ids[feature] == -1] = 0
        values[feature] = jnp.asarray(drawn)
    dense = jnp.asarray(rng.normal(size=(BATCH, DENSE)), jnp.float32)
    item_ids = jnp.asarray(rng.integers(0, 50, (BATCH, 1)), jnp.int32)
    labels = jnp.asarray(rng.integers(0, 2, BATCH), jnp.float32)
    return dense, values, ids, item_ids, labels


def results(name: str, as_taken):
    """Logits, losses, and gradients by parameters and values."""
    dense, values, ids, item_ids, labels = inputs_of(name)
    graph, params, state = nnx.split(MODELS[name](nnx.Rngs(0)), nnx.Param, ...)

    def loss(params, values):
        model = nnx.merge(graph, params, state, copy=True)
        embeddings = {
            n: as_taken(x, ids[n]) if n in ids else x for n, x in values.items()
        }
        logits = model(dense, embeddings)
        if not isinstance(model, NextItem):
            return jnp.sum(jnp.sin(logits)), (logits, logits)
        past = embeddings["past"]
        past_ids = past.ids if isinstance(past, models.Packed) else ids["past"]
        batch = types.SimpleNamespace(
            dense=dense,
            ids={"item": item_ids, "past": jnp.asarray(past_ids)},
            labels=labels,
        )
        losses, logits = model.loss(embeddings, batch)
        return jnp.sum(jnp.sin(losses)), (losses, logits)

    gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)
    (_, outputs), (by_params, by_values) = jax.jit(gradients)(params, values)
    by_values = {  # what padding holds is nobody's
        n: jnp.where(jnp.asarray(ids[n] != -1)[..., None], x, 0) if n in ids else x
        for n, x in by_values.items()
    }
    return outputs, by_params, by_values


@functools.cache
def padded_results(name: str):
    return results(name, lambda x, ids: models.Masked(x, jnp.asarray(ids != -1)))


CASES = [(name, devices) for name in MODELS for devices in (1, 4)]


@pytest.mark.parametrize(
    ("name", "devices"),
    thorough(CASES, [("hstu", 1), *((name, 4) for name in MODELS)], unpack=True),
)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_packed_sequences_are_those_of_padded_ones(
    name, devices, in_blocks, monkeypatch
):
    """Two features whose spans differ, holes in a history, room that is left over;
    attention to whole samples, or block by block."""
    padded_results(name)
    if in_blocks:
        for size, events in (("BLOCKS_FROM", 1), ("SMALLEST_BLOCK", 2)):
            monkeypatch.setattr(attention, size, events)
    room = BATCH // devices * PLACES + 5
    expected = padded_results(name)
    found = results(name, lambda values, ids: packed(values, ids, devices, room))
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", thorough(["hstu", "dlrm_v4"], ["dlrm_v4"]))
def test_padding_is_computed_nowhere(name):
    """No array of a packed model has a row for each place of a padded history, but for
    what attention takes apart."""
    dense, values, ids, _, _ = inputs_of(name)
    model = MODELS[name](nnx.Rngs(0))
    room = int((ids["past"] != -1).sum()) + BATCH
    embeddings = {
        n: packed(x, ids[n], 1, room) if n in ids else x for n, x in values.items()
    }
    text = str(jax.make_jaxpr(lambda d, e: model(d, e))(dense, embeddings))
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products
    assert not [line for line in products if f"[{BATCH * PLACES}," in line]


def test_the_sharding_of_events_stays():
    """On several devices no operation gathers the events of others."""
    dense, values, ids, _, _ = inputs_of("hstu")
    model = MODELS["hstu"](nnx.Rngs(0))
    embeddings = {
        n: packed(x, ids[n], 4, 40) if n in ids else x for n, x in values.items()
    }
    mesh = embeddings["past"].mesh
    by_sample = NamedSharding(mesh, PartitionSpec(("node", "gpu")))
    arguments = jax.device_put((dense, embeddings), by_sample)
    text = jax.jit(model).lower(*arguments).compile().as_text()
    assert "all-gather" not in text
    assert "all-to-all" not in text
