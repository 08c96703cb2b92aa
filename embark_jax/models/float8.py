"""Matrix products whose operands have 8 bits, each scaled by its largest value.

The formats are those of https://arxiv.org/abs/2209.05433: e4m3 forward, and e5m2, of a
wider range, for gradients. Scales are those of the arrays at hand, not of steps before,
so that a model has no state of its own for them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

FORWARD = jnp.float8_e4m3fn
BACKWARD = jnp.float8_e5m2


class Scaled(NamedTuple):
    """An array as ``values * scale``.

    Attributes:
      values: its values in 8 bits; the largest is that of the format.
      scale: ``[]`` float32.
    """

    values: jax.Array
    scale: jax.Array


def scaled(x: jax.Array, dtype: DTypeLike) -> Scaled:
    """Returns an array rounded to a format of 8 bits, without overflow."""
    largest = jnp.max(jnp.abs(x)).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest / float(jnp.finfo(dtype).max), 1.0)
    return Scaled((x.astype(jnp.float32) / scale).astype(dtype), scale)


@jax.custom_vjp
def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """Returns ``x @ w`` ``[batch, outputs]`` in float32; sums are float32, backward
    too.

    Args:
      x: ``[batch, inputs]``; its gradient has its dtype.
      w: ``[inputs, outputs]`` float32.
    """
    return _forward(x, w)[0]


def _forward(x, w):
    operands = scaled(x, FORWARD), scaled(w, FORWARD)
    return _contract(*operands, 1, 0), (*operands, jnp.empty((0,), x.dtype))


def _backward(kept, gradient):
    x, w, like_x = kept
    gradient = scaled(gradient.astype(like_x.dtype), BACKWARD)
    x_gradient = _contract(gradient, w, 1, 1).astype(like_x.dtype)
    # XLA would not round what is widened again.
    return lax.optimization_barrier(x_gradient), _contract(x, gradient, 0, 0)


matmul.defvjp(_forward, _backward)


def _contract(a: Scaled, b: Scaled, a_axis: int, b_axis: int) -> jax.Array:
    dimensions = (((a_axis,), (b_axis,)), ((), ()))
    product = lax.dot_general(
        a.values, b.values, dimensions, preferred_element_type=jnp.float32
    )
    return product * (a.scale * b.scale)
