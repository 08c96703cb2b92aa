"""Counts what DLRMv4's dense layers compute, and what the compiled ones move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core

from embark_jax import models
from embark_jax.config.models import DLRMv4Config
from embark_jax.models.function import split
from experiments.step_bytes.audit import phase_of
from experiments.step_bytes.hlo import Program

DENSE_FEATURES = 4


def dense_flops(
    config: DLRMv4Config, shapes: Mapping[str, tuple[int, ...]], samples: int
) -> float:
    """Returns operations a sample of all matrix products, forward and backward, those
    that are computed twice to save memory included.

    Args:
      config: the model.
      shapes: shape of each feature's embedding.
      samples: number of samples that go through at once.
    """
    config = config.model_copy(update={"samples_at_once": samples})
    model = nnx.eval_shape(
        lambda: models.build(config, shapes, DENSE_FEATURES, nnx.Rngs(0))
    )
    params, state, apply = split(model)

    def floats(*shape: int) -> Any:
        return jax.ShapeDtypeStruct((2 * samples, *shape), jnp.float32)

    def loss(params, embeddings, state, dense):
        return jnp.sum(apply(params, state, dense, embeddings))

    embeddings = {name: floats(*shape) for name, shape in shapes.items()}
    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(
        params, embeddings, state, floats(DENSE_FEATURES)
    )
    return sum(_products(program.jaxpr)) / (2 * samples)


def _products(jaxpr: core.Jaxpr, turns: int = 1) -> Iterator[float]:
    """Yields the operations of each matrix product, over all turns of its loops."""
    for line in jaxpr.eqns:
        if line.primitive.name == "dot_general":
            (contracted, _), _ = line.params["dimension_numbers"]
            operand: Any = line.invars[0].aval
            result: Any = line.outvars[0].aval
            inner = math.prod(operand.shape[axis] for axis in contracted)
            yield 2.0 * turns * inner * math.prod(result.shape)
        inside = turns * line.params.get("length", 1)
        for called in jax.tree.leaves(
            list(line.params.values()),
            is_leaf=lambda leaf: isinstance(leaf, core.Jaxpr | core.ClosedJaxpr),
        ):
            if isinstance(called, core.ClosedJaxpr):
                called = called.jaxpr
            if isinstance(called, core.Jaxpr):
                yield from _products(called, inside)


def dense_bytes(hlo: str) -> float:
    """Returns what the dense layers of a compiled step read and write in memory."""
    moved = Program(hlo).moved()
    return sum(part.bytes for part in moved if phase_of(part.purpose) == "dense")
