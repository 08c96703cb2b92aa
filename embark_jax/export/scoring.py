"""Makes the scoring of a model one unsharded JAX function, and serializes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export

from embark_jax import models
from embark_jax.config import AnyModelConfig
from embark_jax.data.batch import id_dtype
from embark_jax.tables import PADDING_ID, FeatureSpec, TableSpec
from embark_jax.train.checkpoint.layout import array_name

PLATFORMS = ("cpu", "cuda")
Arrays = Mapping[str, jax.Array]


def dense_function(
    config: AnyModelConfig,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    dense_features: int,
) -> tuple[Callable[[Arrays, jax.Array, Arrays], jax.Array], Any]:
    """``forward(params, dense, embeddings) -> logits [batch]``, and the shapes of
    ``params``: the model's parameters and running statistics by dotted path."""
    dims = {table.name: table.dim for table in tables}
    shapes = {
        f.name: (f.hotness, dims[f.table]) if f.pooling == "none" else (dims[f.table],)
        for f in features
    }
    model = nnx.eval_shape(
        lambda: models.build(config, shapes, dense_features, nnx.Rngs(0))
    )
    if isinstance(model, models.FunctionModel):
        leaves = jax.tree.leaves_with_path(model.params)
        structure = jax.tree.structure(model.params)
        named = {array_name(path): leaf for path, leaf in leaves}

        def apply(params, dense, embeddings):
            given = structure.unflatten([params[name] for name in named])
            return model.apply(given, dense, embeddings)

        return apply, named
    model.eval()
    graph, abstract, rest = nnx.split(model, (nnx.Param, nnx.BatchStat), ...)
    flat = dict(nnx.to_flat_state(abstract))
    paths = {".".join(map(str, path)): path for path in flat}

    def forward(params, dense, embeddings):
        state = nnx.from_flat_state(
            [(path, flat[path].replace(params[name])) for name, path in paths.items()]
        )
        return nnx.merge(graph, state, rest)(dense, embeddings)

    return forward, {
        name: jax.ShapeDtypeStruct(flat[path].shape, flat[path].dtype)
        for name, path in paths.items()
    }


def scoring_function(
    config: AnyModelConfig,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    dense_features: int,
) -> tuple[Callable[[Arrays, Arrays, jax.Array, Arrays, Arrays], jax.Array], Any]:
    """``score(params, tables, dense, ids, weights) -> logits [batch]``, and the shapes
    of ``params``, as in ``dense_function``.

    Ids are as in ``data.Batch``; an id out of range makes its sample's logit NaN.
    """
    forward, params = dense_function(config, tables, features, dense_features)

    def score(params, tables, dense, ids, weights):
        embeddings = {
            f.name: _embed(f, tables[f.table], ids[f.name], weights.get(f.name))
            for f in features
        }
        return forward(params, dense, embeddings)

    return score, params


def serialized_scoring(
    config: AnyModelConfig,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    dense_features: int,
) -> bytes:
    """Serializes ``score`` by ``jax.export``, for any batch size, on CPU and CUDA.

    It holds no parameters; they are arguments. Features of tables with more than
    2**31 - 1 rows take int64 ids, others int32.
    """
    score, params = scoring_function(config, tables, features, dense_features)
    (batch,) = export.symbolic_shape("batch")
    dtypes = {table.name: id_dtype(table.rows) for table in tables}

    def shape(*dims, dtype: Any = np.float32):
        return jax.ShapeDtypeStruct(dims, dtype)

    with jax.enable_x64(np.int64 in dtypes.values()):
        exported = export.export(jax.jit(score), platforms=PLATFORMS)(
            params,
            {table.name: shape(table.rows, table.dim) for table in tables},
            shape(batch, dense_features),
            {f.name: shape(batch, f.hotness, dtype=dtypes[f.table]) for f in features},
            {f.name: shape(batch, f.hotness) for f in features if f.weighted},
        )
    return bytes(exported.serialize())


def _embed(
    feature: FeatureSpec, table: jax.Array, ids: jax.Array, weights: jax.Array | None
) -> jax.Array:
    """What ``EmbeddingCollection.lookup`` returns, for an unsharded table."""
    present = ids != PADDING_ID
    # JAX would count negative ids from the end.
    rows = table.at[jnp.where(ids < 0, len(table), ids)].get(
        mode="fill", fill_value=jnp.nan
    )
    rows = jnp.where(present[:, :, None], rows, 0.0)
    factors = present.astype(jnp.float32)
    if weights is not None:
        factors = factors * weights
    if feature.pooling == "mean":
        total = factors.sum(axis=1, keepdims=True)
        factors = jnp.where(total == 0, 0.0, factors / jnp.where(total == 0, 1, total))
    weighted = rows * factors[:, :, None]
    return weighted if feature.pooling == "none" else weighted.sum(axis=1)
