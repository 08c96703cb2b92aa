"""Finds a model's memory from shapes alone, without allocating anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from embark_jax.config import ModelConfig
from embark_jax.models.build import build
from embark_jax.models.function import FunctionModel, Model
from embark_jax.models.interface import Joined, JoinedModel, Packed, PackedModel
from embark_jax.models.kept_values import kept_and_most_bytes, products
from embark_jax.models.retrieval import RetrievalModel
from embark_jax.plans.products import Product

SAMPLES = 16
"""Samples of which memory is found, so that events of one need be no whole number."""


class Footprint(NamedTuple):
    """What a model needs of memory, and what it multiplies.

    Attributes:
      parameters: number of parameters of all layers.
      kept_bytes: bytes per sample that backward needs from forward.
      activation_bytes: bytes per sample that are there at once at most, beside the
        embeddings or their gradients.
      products: matrix products of forward, if they are wanted.
      embedding_dtype: name of the data type in which it takes pooled embeddings.
    """

    parameters: int
    kept_bytes: int
    activation_bytes: float
    products: tuple[Product, ...] = ()
    embedding_dtype: str = "float32"


def footprint(
    config: ModelConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
    events: Mapping[str, float] | None = None,
    samples: int = SAMPLES,
    *,
    divided: Collection[str] = (),
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
      divided: pooled features whose gradients are divided by numbers of ids: on several
        devices both stay until it is known that a step is applied.
      multiplied: whether its products are wanted.
      alone: whether it is on a single device. On several, gradients of parameters are
        summed together, and XLA makes them when all others are there; but layers over
        packed sequences one after the other.
    """
    model = nnx.eval_shape(
        lambda: build(config, embedding_shapes, dense_features, nnx.Rngs(0))
    )
    params, state, apply = _split(model)

    def embedding(name: str, batch: int) -> Any:
        shape = embedding_shapes[name]
        if len(shape) == 1 or not isinstance(model, PackedModel):
            return _array(batch, *shape)
        longest, dim = shape
        total = math.ceil(batch * (events or {}).get(name, longest))
        ids, spans = (_array(n, dtype=jnp.int32) for n in (total, batch))
        return Packed(_array(total, dim), ids, *[spans] * 3, longest=longest)

    def embeddings_of(batch: int) -> Any:
        """Returns the embeddings of samples, as a step gives them to the model."""
        is_pooled = all(len(shape) == 1 for shape in embedding_shapes.values())
        if not (isinstance(model, JoinedModel) and is_pooled):
            return {name: embedding(name, batch) for name in embedding_shapes}
        dims = tuple((name, dim) for name, (dim,) in sorted(embedding_shapes.items()))
        width = model.beside + sum(dim for _, dim in dims)
        values = _array(batch, width, dtype=model.compute_dtype)
        return Joined(values, dims, model.beside)

    def gradients(held, *inputs):
        params, state = held

        def total(params, dense, embeddings):
            if isinstance(model, RetrievalModel):
                graph = nnx.graphdef(model)
                module = nnx.merge(graph, params, state, copy=True)
                return module.loss(embeddings, _batch_of(dense, embeddings))[0].sum()
            return apply(params, state, dense, embeddings).sum()

        loss, (of_params, of_rows) = jax.value_and_grad(total, (0, 2), allow_int=True)(
            params, *inputs
        )
        if isinstance(of_rows, Joined):
            of_rows = {min(divided, default=""): of_rows}
        means = {
            name: jax.tree.map(lambda x: x / 2, of_rows[name])
            for name in of_rows
            if name in divided
        }
        return loss, of_params, {**of_rows, **means} if alone else (of_rows, means)

    def forward(held, dense, embeddings):
        return apply(*held, dense, embeddings)

    def inputs_of(batch: int) -> tuple[Any, ...]:
        return (params, state), _array(batch, dense_features), embeddings_of(batch)

    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    late = not (alone or isinstance(model, PackedModel))
    found = (
        kept_and_most_bytes(gradients, len(sizes), late, *inputs_of(batch), alone=alone)
        for batch in (SAMPLES, 2 * SAMPLES, samples)
    )
    kept, most = (  # of a sample; what does not grow with them is small
        (all_samples - (2 * few - twice)) // samples
        for few, twice, all_samples in zip(*found, strict=True)
    )
    made = ()
    if multiplied:
        few, twice = (
            products(forward, *inputs_of(batch)) for batch in (SAMPLES, 2 * SAMPLES)
        )
        pairs = zip(few, twice, strict=True)
        made = tuple(one for pair in pairs if (one := _of_sample(*pair)).times)
    takes = jnp.dtype(
        model.compute_dtype if isinstance(model, JoinedModel) else "float32"
    )
    rows_bytes = sum(
        (4 if name in divided else takes.itemsize)
        * math.prod(shape)
        * (events or {}).get(name, shape[0])
        / shape[0]
        for name, shape in embedding_shapes.items()
    )
    return Footprint(sum(sizes), kept, max(0.0, most - rows_bytes), made, str(takes))


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
