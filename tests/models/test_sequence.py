"""Sequence layers: padding, blocks and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax.models import sequence
from embark_jax.models.sequence import SequenceEncoder
from tests.thorough import thorough

LENGTH, DIM = 7, 8


@pytest.mark.parametrize("kind", thorough(["hstu", "sasrec"], ["hstu"]))
def test_whole_tiles_of_events_are_exact(kind, monkeypatch):
    """Eleven events go through layers as sixteen."""
    model = SequenceEncoder(
        kind,
        8,
        11,
        layers=2,
        heads=2,
        compute_dtype=jnp.float32,
        dropout=0.0,
        rngs=nnx.Rngs(0),
    )
    graph, params = nnx.split(model)
    events = jax.random.normal(jax.random.key(0), (2, 11, 8))
    valid = jnp.arange(11)[None] < jnp.array([[11], [4]])
    position = jnp.cumsum(valid, axis=1) - 1

    def results():
        def loss(params, events):
            seen = nnx.merge(graph, params)(events, position, valid)
            return jnp.sum(jnp.sin(seen)), seen

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, events)

    as_it_is = results()
    monkeypatch.setattr(sequence, "QUERIES_AT_ONCE", 4)
    padded = jax.make_jaxpr(lambda p: nnx.merge(graph, p)(events, position, valid))
    assert "f32[2,16,8]" in str(padded(params))
    for one, other in zip(*map(jax.tree.leaves, (results(), as_it_is)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
