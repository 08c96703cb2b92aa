"""Finds a model's memory from shapes alone, without allocating anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.config import ModelConfig
from embark_jax.models.build import build
from embark_jax.models.function import FunctionModel, Model
from embark_jax.models.interface import JoinedModel, Packed, PackedModel
from embark_jax.models.kept_values import kept_bytes, peak_bytes, products
from embark_jax.models.retrieval import RetrievalModel
from embark_jax.plans.products import Product

T = TypeVar("T")
SAMPLES = 16
"""Samples of which memory is found, so that events of one need be no whole number."""


class Footprint(NamedTuple):
    """What a model needs of memory, and what it multiplies.

    Attributes:
      parameters: number of parameters of all layers.
      kept_bytes: bytes per sample that backward needs from forward.
      peak_bytes: bytes per sample that are there at once, if the layers are of packed
        sequences or on a single device: XLA makes the gradients of one such layer after
        the other, where those of others, which are summed over devices, all exist
        together with what is kept; or if samples are each other's negatives, whose
        scores count, too.
      products: matrix products of forward, if they are wanted.
      embedding_dtype: name of the data type in which it takes pooled embeddings.
    """

    parameters: int
    kept_bytes: int
    peak_bytes: int | None = None
    products: tuple[Product, ...] = ()
    embedding_dtype: str = "float32"


def footprint(
    config: ModelConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
    events: Mapping[str, float] | None = None,
    samples: int = SAMPLES,
    *,
    multiplied: bool = False,
    alone: bool = False,
) -> Footprint:
    """Returns the footprint of the model that ``build`` makes.

    Args:
      config, embedding_shapes, dense_features: those of ``build``, as are the errors.
      events: for each sequence the events of a sample that there is room for; None is
        the longest.
      samples: samples that go through the layers together, on all devices: those of
        models with negatives of the batch are compared with each other.
      multiplied: whether its products are wanted.
      alone: whether it is on a single device.
    """
    model = nnx.eval_shape(
        lambda: build(config, embedding_shapes, dense_features, nnx.Rngs(0))
    )
    params, state, apply = _split(model)

    def backward(held, *inputs):  # a pytree of what it needs from forward
        params, state = held

        def forward(params, dense, embeddings):
            return apply(params, state, dense, embeddings)

        return jax.vjp(forward, params, *inputs)[1]

    def embedding(name: str, batch: int) -> Any:
        shape = embedding_shapes[name]
        if len(shape) == 1 or not isinstance(model, PackedModel):
            return _array(batch, *shape)
        longest, dim = shape
        total = math.ceil(batch * (events or {}).get(name, longest))
        ids, spans = (_array(n, dtype=jnp.int32) for n in (total, batch))
        return Packed(_array(total, dim), ids, *[spans] * 3, longest=longest)

    def gradients(held, *inputs):
        params, state = held

        def total(params, dense, embeddings):
            if isinstance(model, RetrievalModel):
                graph = nnx.graphdef(model)
                module = nnx.merge(graph, params, state, copy=True)
                return module.loss(embeddings, _batch_of(dense, embeddings))[0].sum()
            return apply(params, state, dense, embeddings).sum()

        return jax.grad(total, (0, 1, 2), allow_int=True)(params, *inputs)

    def forward(held, dense, embeddings):
        return apply(*held, dense, embeddings)

    def of_samples(
        found: Callable[..., T], function: Callable[..., Any]
    ) -> Iterator[T]:
        """Returns what there is of ``SAMPLES``, of twice as many, and of all."""
        for batch in (SAMPLES, 2 * SAMPLES, samples):
            embeddings = {name: embedding(name, batch) for name in embedding_shapes}
            dense = _array(batch, dense_features)
            yield found(function, (params, state), dense, embeddings)

    def bytes_of(found: Callable[..., int], function: Callable[..., Any]) -> int:
        """Returns what there is of a sample; what does not grow with them is small."""
        few, twice, all_samples = of_samples(found, function)
        return (all_samples - (2 * few - twice)) // samples

    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    kept, peak, made = bytes_of(kept_bytes, backward), None, ()
    if alone or isinstance(model, PackedModel | RetrievalModel):
        peak = bytes_of(peak_bytes, gradients)
        in_turn = alone or isinstance(model, PackedModel)
        peak = peak if in_turn else max(peak, 2 * kept)
    if multiplied:
        few, twice, _ = of_samples(products, forward)
        pairs = zip(few, twice, strict=True)
        made = tuple(one for pair in pairs if (one := _of_sample(*pair)).times)
    takes = model.compute_dtype if isinstance(model, JoinedModel) else "float32"
    return Footprint(parameters, kept, peak, made, str(jnp.dtype(takes)))


class _Batch(NamedTuple):
    """The samples of a loss; see ``models.function.Samples``."""

    dense: jax.Array
    ids: dict[str, jax.Array]
    weights: dict[str, jax.Array]
    labels: jax.Array
    sample_weights: None = None


def _batch_of(dense: jax.Array, embeddings: Mapping[str, Any]) -> _Batch:
    """Returns samples of a batch, with one id for each row."""

    def ids_of(rows: Any) -> jax.Array:
        if isinstance(rows, Packed):
            return rows.ids
        rows_of_sample = math.prod(rows.shape[1:-1])  # of a pooled feature one
        return jnp.zeros((len(rows), rows_of_sample), jnp.int32)

    ids = {name: ids_of(rows) for name, rows in embeddings.items()}
    return _Batch(dense, ids, {}, jnp.ones(len(dense)))


def _of_sample(few: tuple[int, ...], many: tuple[int, ...]) -> Product:
    """Returns a product of one sample, of its sizes for ``SAMPLES`` and twice as many:
    what grows with them are its rows."""
    batch, left, right, inner = few
    if many[0] * many[1] == batch * left:  # the right side's rows
        few, many = ((n[0], n[2], n[1], n[3]) for n in (few, many))
        left, right = right, left
    rows = (many[0] * many[1] - batch * left) / SAMPLES
    weighted = many[2:] == few[2:] and many[0] == batch
    return Product(inner, right, rows, weighted)


def _array(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _split(model: Model) -> tuple[Any, Any, Callable[..., jax.Array]]:
    """Splits a model into the parameters that training changes, its other arrays, and
    ``(params, state, dense, embeddings) -> logits``."""
    if isinstance(model, FunctionModel):
        apply = model.apply
        return model.params, (), lambda params, _, *inputs: apply(params, *inputs)
    graph, params, state = nnx.split(model, nnx.Param, ...)

    def forward(params, state, dense, embeddings):
        return nnx.merge(graph, params, state, copy=True)(dense, embeddings)

    return params, state, forward
