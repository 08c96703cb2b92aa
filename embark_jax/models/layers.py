"""The layers that the models share.

Parameters are float32. The operands of a matrix product are rounded to
``compute_dtype``, and so are wide arrays between the products, both ways; sums and what
is computed from these arrays are float32.

Several devices may each hold a part of a parameter; ``split`` in its metadata names the
axis to split it along. Successive products are split by columns and by rows
alternately, so that only every second one ends in a sum over devices
(https://arxiv.org/abs/1909.08053). A product without a second one stays whole: its
columns would have to be gathered before the next layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from embark_jax.models import float8
from embark_jax.models.interface import Embeddings, Joined, joined

# torch.nn.Linear: uniform in ±1/sqrt(inputs). The MLPerf reference keeps it, since its
# MLPs are torchrec's (torchrec/modules/mlp.py).
_linear_init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
# xavier_normal_, as in torchrec/modules/crossnet.py. glorot_normal would truncate.
xavier_normal = nnx.initializers.variance_scaling(1.0, "fan_avg", "normal")


_LEAST_SQUARED_NORM = 1e-12
BATCH_NORM_MOMENTUM = 0.9
"""Share of the running statistics that a step keeps: 1 - PyTorch's ``momentum``."""


def matmul(
    x: jax.Array, w: jax.Array, compute_dtype: DTypeLike, in_float8: bool = False
) -> jax.Array:
    """Returns ``x @ w``, operands in ``compute_dtype``, sums in float32, backward too.

    Without this, autodiff multiplies the float32 gradient by a bf16 operand, which XLA
    widens to a float32 product, and then rounds the gradient of ``w`` to bf16.

    Inside ``shard_map`` with replicated ``w`` this needs ``check_vma=False``: the
    gradient of ``w`` is this device's part of the sum.

    Args:
      x: ``[batch, inputs]`` float32; its gradient is rounded to ``compute_dtype``.
      w: ``[inputs, outputs]`` float32.
      compute_dtype: dtype of the operands; it decides the speed and the rounding.
      in_float8: whether the operands are rounded to 8 bits, from ``compute_dtype``.

    Returns:
      ``[batch, outputs]`` float32.
    """
    if in_float8:
        return float8.matmul(x.astype(compute_dtype), w)
    return _matmul(x, w, jnp.dtype(compute_dtype))


def _multiply(x: jax.Array, w: jax.Array, compute_dtype: DTypeLike) -> jax.Array:
    return _matmul_forward(x, w, compute_dtype)[0]


def _matmul_forward(x, w, compute_dtype):
    x, w = x.astype(compute_dtype), w.astype(compute_dtype)
    return _contract(x, w, 1, 0), (x, w)


def _matmul_backward(compute_dtype, operands, gradient):
    x, w = operands
    gradient = gradient.astype(compute_dtype)
    x_gradient = _contract(gradient, w, 1, 1)
    return _as_held(x_gradient, compute_dtype), _contract(x, gradient, 0, 0)


def _contract(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
    dimensions = (((a_axis,), (b_axis,)), ((), ()))
    return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


_matmul = jax.custom_vjp(_multiply, nondiff_argnums=(2,))
_matmul.defvjp(_matmul_forward, _matmul_backward)


def held(x: jax.Array, compute_dtype: DTypeLike) -> jax.Array:
    """Returns float32 ``x`` rounded to ``compute_dtype``, and rounds its gradient.

    Both are in memory in that type, if at all. XLA removes a mere cast there and back.
    """
    return x if compute_dtype == jnp.float32 else made_once(x, compute_dtype)


def made_once(x: jax.Array, compute_dtype: DTypeLike) -> jax.Array:
    """Returns ``held(x)``, and its gradient, each made once, in one array.

    Without this, XLA makes ``x`` again from its parts for each layer that reads it, and
    adds up the gradients of several layers by ``x`` repeatedly: for each of the
    embeddings that ``x`` was made from, and for each check of them.
    """
    return _made_once(x, jnp.dtype(compute_dtype))


def side_by_side(
    first: jax.Array,
    embeddings: Embeddings | Joined,
    dims: tuple[tuple[str, int], ...],
    compute_dtype: DTypeLike,
) -> jax.Array:
    """Returns ``made_once`` of values and the embeddings of a ``JoinedModel`` side by
    side, in memory in ``compute_dtype``.

    Args:
      first: ``[batch, width]`` float32, for which embeddings may have room.
      embeddings: the embeddings.
      dims: ``(feature, dim)`` pairs, sorted by name.
      compute_dtype: that of the array.

    Returns:
      ``[batch, width + sum of dims]`` float32.

    Raises:
      ValueError: as ``interface.in_order`` does.
    """
    first, x = first.astype(compute_dtype), joined(embeddings, dims)
    x = x.astype(compute_dtype)
    if isinstance(embeddings, Joined) and embeddings.room:
        x = _fill(x, first)
    else:
        x = jnp.concatenate([first, x], axis=1)
    return made_once(x.astype(jnp.float32), compute_dtype)


@jax.custom_vjp
def _fill(x: jax.Array, first: jax.Array) -> jax.Array:
    """Returns ``x`` with other first columns. These have a gradient, too, by which
    nothing is updated: to set it to 0 would be a pass of its own."""
    return lax.dynamic_update_slice(x, first, (0, 0))


_fill.defvjp(
    lambda x, first: (_fill(x, first), first[:0]),
    lambda first, gradient: (gradient, gradient[:, : first.shape[1]]),
)


def stored(x: jax.Array, compute_dtype: DTypeLike) -> jax.Array:
    """Returns float32 ``x`` rounded to ``compute_dtype``, in which it is in memory; its
    gradient is not rounded, and made where it is used."""
    return _stored(x, jnp.dtype(compute_dtype))


def _as_held(x: jax.Array, compute_dtype: DTypeLike) -> jax.Array:
    return x if compute_dtype == jnp.float32 else _in_memory(x, compute_dtype)


def _in_memory(x: jax.Array, compute_dtype: DTypeLike) -> jax.Array:
    return lax.optimization_barrier(x.astype(compute_dtype)).astype(jnp.float32)


_stored = jax.custom_vjp(_as_held, nondiff_argnums=(1,))
_stored.defvjp(
    lambda x, dtype: (_as_held(x, dtype), None), lambda dtype, _, gradient: (gradient,)
)
_made_once = jax.custom_vjp(_in_memory, nondiff_argnums=(1,))
_made_once.defvjp(
    lambda x, dtype: (_in_memory(x, dtype), None),
    lambda dtype, _, gradient: (_in_memory(gradient, dtype),),
)


@jax.custom_vjp
def _linear(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """Returns ``x @ w + b`` in the dtype of ``x``; sums, and gradients of the float32
    ``w`` and ``b``, are float32."""
    return (_contract(x, w.astype(x.dtype), 1, 0) + b[None]).astype(x.dtype)


def _linear_backward(operands, gradient):
    x, w = operands
    x_gradient = _contract(gradient, w.astype(x.dtype), 1, 1).astype(x.dtype)
    b_gradient = gradient.sum(axis=0, dtype=jnp.float32)
    return x_gradient, _contract(x, gradient, 0, 0), b_gradient


_linear.defvjp(lambda x, w, b: (_linear(x, w, b), (x, w)), _linear_backward)


class Linear(nnx.Module):
    """``x @ w + b``, from ``[batch, inputs]`` to ``[batch, outputs]``, both float32.

    Args:
      inputs, outputs: widths of input and output.
      split: direction in which its parameters are split over several devices.
      compute_dtype, in_float8: of the matrix product's operands; see ``matmul``.
      rngs: its ``params`` stream draws the weights.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        split: Literal["columns", "rows"] | None = None,
        compute_dtype: DTypeLike,
        in_float8: bool = False,
        rngs: nnx.Rngs,
    ):
        w_split: dict[str, Any] = {}
        b_split: dict[str, Any] = {}
        if split is not None:
            w_split["split"] = 1 if split == "columns" else 0
        if split == "columns":
            b_split["split"] = 0
        self.w = nnx.Param(_linear_init(rngs.params(), (inputs, outputs)), **w_split)
        bound = inputs**-0.5
        self.b = nnx.Param(
            jax.random.uniform(rngs.params(), (outputs,), minval=-bound, maxval=bound),
            **b_split,
        )
        self.compute_dtype = jnp.dtype(compute_dtype)
        self.in_float8 = in_float8

    def __call__(self, x: jax.Array) -> jax.Array:
        product = matmul(x, self.w[...], self.compute_dtype, self.in_float8)
        return product + self.b[...][None]

    def rounded(self, x: jax.Array) -> jax.Array:
        """Returns the same in ``compute_dtype``: the only arrays of its outputs, and of
        their gradients, are of that type. Sums are float32."""
        if self.compute_dtype == jnp.float32:
            return self(x)
        x = x.astype(self.compute_dtype)
        return _linear(x, self.w[...], self.b[...])


class MLP(nnx.Module):
    """Linear layers with ReLU, or another activation, between them.

    A layer with ReLU is linear, batch normalization, ReLU, dropout, in this order; the
    last layer without ReLU is linear alone.

    Args:
      inputs: width of the input.
      widths: output width of each layer; () gives the identity.
      last_relu: whether the last layer ends in ReLU too; otherwise it is linear.
      compute_dtype: dtype of the matrix products' operands.
      in_float8: whether those of layers with ReLU are rounded to 8 bits.
      dropout: share of values that training sets to zero; the others grow to keep the
        mean.
      batch_norm: whether to normalize values by mean and variance: over the batch in
        training, and in evaluation by running statistics, of which a step keeps 0.9
        (https://arxiv.org/abs/1502.03167).
      activation: makes the module that takes the place of ReLU, of its width.
      rngs: its ``params`` stream draws the weights, its ``dropout`` stream the masks.

    Raises:
      ValueError: if there are layers but no inputs.
    """

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        *,
        last_relu: bool,
        compute_dtype: DTypeLike,
        in_float8: bool = False,
        dropout: float = 0.0,
        batch_norm: bool = False,
        activation: Callable[..., nnx.Module] | None = None,
        rngs: nnx.Rngs,
    ):
        if widths and inputs < 1:
            raise ValueError(
                f"the MLP of widths {list(widths)} has {inputs} inputs, must have at "
                "least 1: where the data have no dense features, take a model that "
                "has no MLP on them"
            )
        products = list(itertools.pairwise((inputs, *widths)))
        in_pairs = len(products) // 2 * 2
        hidden = widths if last_relu else widths[:-1]
        self.layers = nnx.List(
            Linear(
                fan_in,
                fan_out,
                split=None if i == in_pairs else "rows" if i % 2 else "columns",
                compute_dtype=compute_dtype,
                in_float8=in_float8 and i < len(hidden),
                rngs=rngs,
            )
            for i, (fan_in, fan_out) in enumerate(products)
        )
        self.norms = nnx.List(
            nnx.BatchNorm(width, momentum=BATCH_NORM_MOMENTUM, rngs=rngs)
            for width in hidden
            if batch_norm
        )
        self.activations = nnx.List(
            activation(width, rngs=rngs) for width in hidden if activation
        )
        self.dropouts = nnx.List(
            nnx.Dropout(dropout, rngs=rngs) for _ in hidden if dropout
        )
        self.hidden = len(hidden)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps ``[batch, inputs]`` to ``[batch, widths[-1]]``, both float32."""
        return self.after_first(self.layers[0](x)) if self.layers else x

    def after_first(self, x: jax.Array) -> jax.Array:
        """Returns the same, of what the first layer's product and bias give."""
        for i, layer in enumerate(self.layers):
            x = layer(x) if i else x
            if i < self.hidden:
                x = held(x, layer.compute_dtype)
                x = self.norms[i](x) if self.norms else x
                x = self.activations[i](x) if self.activations else nnx.relu(x)
                x = self.dropouts[i](x) if self.dropouts else x
        return x


class LowRankCross(nnx.Module):
    """One cross layer of DCN-V2: ``x0 * (W (V x) + b) + x``.

    It multiplies every pair of inputs, with ``2 × width × rank`` weights instead of
    ``width²`` (https://arxiv.org/abs/2008.13535).

    Args:
      width: width of its input and output.
      rank: rank of the product ``W V``.
      compute_dtype, in_float8: of the matrix products' operands; see ``matmul``.
      rngs: its ``params`` stream draws the weights.
    """

    def __init__(
        self,
        width: int,
        rank: int,
        *,
        compute_dtype: DTypeLike,
        in_float8: bool = False,
        rngs: nnx.Rngs,
    ):
        self.v = nnx.Param(xavier_normal(rngs.params(), (width, rank)), split=1)
        self.w = nnx.Param(xavier_normal(rngs.params(), (rank, width)), split=0)
        self.b = nnx.Param(jnp.zeros(width))
        self.compute_dtype = jnp.dtype(compute_dtype)
        self.in_float8 = in_float8

    def __call__(self, x0: jax.Array, x: jax.Array) -> jax.Array:
        """Takes the model's input ``x0`` and the layer's, ``[batch, width]``
        float32."""
        low = self._product(x, self.v[...])
        high = self._product(low, self.w[...])
        return stored(x0 * (high + self.b[...][None]) + x, self.compute_dtype)

    def _product(self, x: jax.Array, w: jax.Array) -> jax.Array:
        product = matmul(x, w, self.compute_dtype, self.in_float8)
        return held(product, self.compute_dtype)


class VectorCross(nnx.Module):
    """One cross layer of the first DCN: ``x0 (x · w) + b + x``.

    Its weight is one vector (https://arxiv.org/abs/1708.05123).

    Args:
      width: width of its input and output.
      compute_dtype: dtype of the product's operands.
      rngs: its ``params`` stream draws the weights.
    """

    def __init__(self, width: int, *, compute_dtype: DTypeLike, rngs: nnx.Rngs):
        self.w = nnx.Param(xavier_normal(rngs.params(), (width, 1)))
        self.b = nnx.Param(jnp.zeros(width))
        self.compute_dtype = jnp.dtype(compute_dtype)

    def __call__(self, x0: jax.Array, x: jax.Array) -> jax.Array:
        """Takes the model's input ``x0`` and the layer's, ``[batch, width]``
        float32."""
        scale = matmul(x, self.w[...], self.compute_dtype)
        return x0 * scale + self.b[...][None] + x


def unit(x: jax.Array) -> jax.Array:
    """Returns vectors of length one; one of zeros stays as it is."""
    squared = jnp.sum(x**2, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squared, _LEAST_SQUARED_NORM))


class FirstOrder(nnx.Module):
    """A linear model; the first columns of the embeddings are its weights of ids.

    Args:
      dense_features: number of dense features, for which it has additional weights and
        a bias; without any it has no parameters.
      compute_dtype: dtype of the matrix product's operands.
      rngs: its ``params`` stream draws the weights.
    """

    def __init__(
        self, dense_features: int, *, compute_dtype: DTypeLike, rngs: nnx.Rngs
    ):
        self.dense = (
            Linear(dense_features, 1, compute_dtype=compute_dtype, rngs=rngs)
            if dense_features
            else None
        )

    def __call__(
        self, dense: jax.Array, embeddings: Sequence[jax.Array]
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Returns the linear model's logits, and the rest of the embeddings.

        Args:
          dense: ``[batch, dense_features]`` float32.
          embeddings: ``[batch, dim]`` float32 each.

        Returns:
          ``[batch]`` float32, and ``[batch, dim - 1]`` for each embedding.
        """
        logits = jnp.zeros(dense.shape[:1])
        for embedding in embeddings:
            logits = logits + embedding[:, 0]
        if self.dense is not None:
            logits = self.dense(dense)[:, 0] + logits
        return logits, [embedding[:, 1:] for embedding in embeddings]
