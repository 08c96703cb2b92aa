"""Makes the scoring of a model one unsharded JAX function, and serializes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export, lax

from embark_jax import models
from embark_jax.checkpoint.layout import array_name
from embark_jax.config import AnyModelConfig
from embark_jax.data.batch import id_dtype
from embark_jax.embedding.initial import initial_value, table_seed
from embark_jax.plans.tables import PADDING_ID, FeatureSpec, TableSpec

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
    key: Sequence[int] = (0, 0),
) -> tuple[Callable[[Arrays, Any, jax.Array, Arrays, Arrays], jax.Array], Any]:
    """``score(params, tables, dense, ids, weights) -> logits [batch]``, and the shapes
    of ``params``, as in ``dense_function``.

    Ids are as in ``data.Batch``; an id out of range makes its sample's logit NaN. A
    dynamic table is ``(keys, rows)``, with keys in ascending order; a key that is not
    among them has its initial row, by the random key's two words ``key``.
    """
    forward, params = dense_function(config, tables, features, dense_features)
    specs = {table.name: table for table in tables}

    def rows_of(table, given, ids):
        if not table.is_dynamic:
            return _rows(given, ids)
        return _rows_by_key(*given, ids, initial(table, key))  # pyright: ignore

    def score(params, tables, dense, ids, weights):
        embeddings = {}
        for f in features:
            rows = rows_of(specs[f.table], tables[f.table], ids[f.name])
            embeddings[f.name] = _embed(f, rows, ids[f.name], weights.get(f.name))
        return forward(params, dense, embeddings)

    return score, params


def serialized_scoring(
    config: AnyModelConfig,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    dense_features: int,
    key: Sequence[int] = (0, 0),
) -> bytes:
    """Serializes ``score`` by ``jax.export``, for any batch size, on CPU and CUDA.

    It holds no parameters; they are arguments. Features of tables with more than
    2**31 - 1 rows, and of dynamic ones, take int64 ids, others int32. A dynamic table
    may have any number of rows.
    """
    score, params = scoring_function(config, tables, features, dense_features, key)
    dynamic = [table.name for table in tables if table.is_dynamic]
    named = ", ".join(["batch", *(f"rows{i}" for i in range(len(dynamic)))])
    batch, *counts = export.symbolic_shape(named)
    counts = dict(zip(dynamic, counts, strict=True))
    dtypes = {table.name: id_dtype(table.keys) for table in tables}

    def shape(*dims, dtype: Any = np.float32):
        return jax.ShapeDtypeStruct(dims, dtype)

    def table_shape(table: TableSpec):
        if not table.is_dynamic:
            return shape(table.rows, table.dim)
        count = counts[table.name]
        return shape(count, dtype=np.int64), shape(count, table.dim)

    with jax.enable_x64(np.int64 in dtypes.values()):
        exported = export.export(jax.jit(score), platforms=PLATFORMS)(
            params,
            {table.name: table_shape(table) for table in tables},
            shape(batch, dense_features),
            {f.name: shape(batch, f.hotness, dtype=dtypes[f.table]) for f in features},
            {f.name: shape(batch, f.hotness) for f in features if f.weighted},
        )
    return bytes(exported.serialize())


def random_key(seed: int) -> list[int]:
    """Returns the two words of the random key of a trainer's initial tables."""
    return np.asarray(jax.random.key_data(jax.random.key(seed))).tolist()


def initial(table: TableSpec, key: Sequence[int]) -> dict[str, Any]:
    """Returns the description of initial rows that ``lookup.KeyedRows`` takes."""
    return {"key": list(key), "table": table_seed(table.name), "scale": table.scale}


def _rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns ``[…, dim]`` rows of ``[…]`` ids, with NaN where there is none."""
    # JAX would count negative ids from the end.
    return table.at[jnp.where(ids < 0, len(table), ids)].get(
        mode="fill", fill_value=jnp.nan
    )


def _rows_by_key(
    keys: jax.Array, rows: jax.Array, ids: jax.Array, initial: Mapping[str, Any]
) -> jax.Array:
    """Returns ``[…, dim]`` rows of ``[…]`` keys, initial ones where there is none."""

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        below = keys.at[middle].get(mode="clip") < ids
        return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

    # The number of rows is known when it is called, and less than 2**63.
    bounds = jnp.zeros_like(ids), jnp.zeros_like(ids) + keys.shape[0]
    place, _ = lax.fori_loop(0, 63, halve, bounds)
    found = keys.at[place].get(mode="fill", fill_value=PADDING_ID) == ids
    key = jax.random.wrap_key_data(np.array(initial["key"], np.uint32))  # pyright: ignore
    value = functools.partial(
        initial_value, key, seed=jnp.int32(initial["table"]), scale=initial["scale"]
    )
    by_column = jax.vmap(
        lambda low, high, column: value(low, high, column), (None, None, 0)
    )
    columns = jnp.arange(rows.shape[1], dtype=jnp.int32)
    flat = ids.reshape(-1)
    low, high = (flat & 0xFFFFFFFF).astype(jnp.uint32), (flat >> 32).astype(jnp.uint32)
    new = jax.vmap(lambda low, high: by_column(low, high, columns))(low, high)
    new = new.reshape(*ids.shape, -1)
    there = rows.at[place].get(mode="clip")
    known = jnp.where(found[..., None], there, new)
    return jnp.where(ids[..., None] < 0, jnp.nan, known)


def _embed(
    feature: FeatureSpec, rows: jax.Array, ids: jax.Array, weights: jax.Array | None
) -> jax.Array:
    """What ``EmbeddingCollection.lookup`` returns, from the rows of all ids."""
    present = ids != PADDING_ID
    rows = jnp.where(present[:, :, None], rows, 0.0)
    factors = present.astype(jnp.float32)
    if weights is not None:
        factors = factors * weights
    if feature.pooling == "mean":
        total = factors.sum(axis=1, keepdims=True)
        factors = jnp.where(total == 0, 0.0, factors / jnp.where(total == 0, 1, total))
    weighted = rows * factors[:, :, None]
    return weighted if feature.pooling == "none" else weighted.sum(axis=1)
