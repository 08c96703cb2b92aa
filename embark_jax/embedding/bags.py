"""Work on the ids of bags before they are routed: masks, mean factors, checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from embark_jax.embedding.indexing import StorageIndex
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import PADDING_ID


def mask_bad(ids: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """Returns the ids, with padding for those that are no row of a table of
    ``rows`` rows, and their number, ``[]`` int32. All bits of 64-bit ids count, in any
    mode."""
    with jax.enable_x64(ids.dtype == jnp.int64):
        valid = ids >= 0
        if rows <= jnp.iinfo(ids.dtype).max:
            valid &= ids < rows
        bad = (~valid & (ids != PADDING_ID)).sum(dtype=jnp.int32)
        return jnp.where(valid, ids, PADDING_ID), bad


def mean_factor(
    ids: Mapping[str, jax.Array], weights: Mapping[str, jax.Array], name: str
) -> jax.Array:
    """Returns ``[batch]``: one over each bag's total weight; zero if that is zero."""
    present = (ids[name] >= 0).astype(jnp.float32)
    total = (present * weights[name] if name in weights else present).sum(axis=1)
    return jnp.where(total == 0, 0.0, 1.0 / jnp.where(total == 0, 1.0, total))


def check_arrays(
    plan: Plan,
    what: str,
    arrays: Mapping[str, jax.Array],
    expected: Sequence[str],
    dtypes: Sequence[DTypeLike],
) -> None:
    """Raises ``ValueError`` if ids or weights are not those of a plan's batch.

    Args:
      plan: plan with the features and the batch size.
      what: name of the arrays in the message.
      arrays: arrays by feature.
      expected: the features that must have them.
      dtypes: allowed dtypes.
    """
    if set(arrays) != set(expected):
        raise ValueError(
            f"{what} are given for {sorted(arrays)}, must be for {sorted(expected)}"
        )
    shapes = {f.name: (plan.batch_size, f.hotness) for f in plan.features}
    allowed = " or ".join(str(jnp.dtype(dtype)) for dtype in dtypes)
    problems = [
        f"{what} of feature {name!r} are {array.dtype} of shape {array.shape}, "
        f"must be {allowed} of shape {shapes[name]} ([batch, hotness] of the plan)"
        for name, array in arrays.items()
        if array.shape != shapes[name] or array.dtype not in dtypes
    ]
    if problems:
        raise ValueError("; ".join(problems))


def storage_columns(
    index: StorageIndex,
    ids: Mapping[str, jax.Array],
    weights: Mapping[str, jax.Array],
) -> tuple[jax.Array, jax.Array | None]:
    """Returns ``[batch, columns]`` ids of a storage, and weights if a feature has
    any."""
    names = [f.feature.name for f in index.features]
    wide = index.wide or any(ids[name].dtype == jnp.int64 for name in names)
    with jax.enable_x64(wide):
        integer = jnp.int64 if wide else jnp.int32
        columns = jnp.concatenate([ids[n].astype(integer) for n in names], axis=1)
    if not any(f.feature.weighted for f in index.features):
        return columns, None
    factors = [
        weights[n] if n in weights else jnp.ones(ids[n].shape, jnp.float32)
        for n in names
    ]
    return columns, jnp.concatenate(factors, axis=1)
