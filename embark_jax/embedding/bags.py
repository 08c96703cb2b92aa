"""Work on the ids of bags before they are routed: masks, mean factors, checks."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from embark_jax.embedding.indexing import StorageIndex
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import DYNAMIC_KEYS, PADDING_ID


def mask_bad(ids: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the ids, with padding for those that are no row of a table of
    ``rows`` rows; which are no padding, bool; and how many were masked, ``[]`` int32.
    All bits of 64-bit ids count, in any mode; any of them is a key of a dynamic
    table."""
    with jax.enable_x64(ids.dtype == jnp.int64):
        if rows == DYNAMIC_KEYS:
            return ids, ids != PADDING_ID, jnp.zeros((), jnp.int32)
        valid = ids >= 0
        if rows <= jnp.iinfo(ids.dtype).max:
            valid &= ids < rows
        bad = (~valid & (ids != PADDING_ID)).sum(dtype=jnp.int32)
        return jnp.where(valid, ids, PADDING_ID), valid, bad


def mean_factor(
    present: jax.Array, weights: Mapping[str, jax.Array], name: str
) -> jax.Array:
    """Returns ``[batch]``: one over each bag's total weight; zero if that is zero.
    ``present`` is ``[batch, hotness]`` bool."""
    factors = present.astype(jnp.float32)
    total = (factors * weights[name] if name in weights else factors).sum(axis=1)
    return jnp.where(total == 0, 0.0, 1.0 / jnp.where(total == 0, 1.0, total))


def shapes_of_ids(plan: Plan, packed: Container[str]) -> dict[str, tuple[int, int]]:
    """Returns the shape of each feature's ids, where these sequences are packed."""
    return {
        f.name: (plan.devices, plan.events[f.name])
        if f.name in packed
        else (plan.batch_size, f.hotness)
        for f in plan.features
    }


def check_arrays(
    what: str,
    arrays: Mapping[str, jax.Array],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Sequence[DTypeLike],
) -> None:
    """Raises ``ValueError`` if ids or weights are not those of a plan's batch.

    Args:
      what: name of the arrays in the message.
      arrays: arrays by feature.
      shapes: shapes of the features that must have them.
      dtypes: allowed dtypes.
    """
    if set(arrays) != set(shapes):
        raise ValueError(
            f"{what} are given for {sorted(arrays)}, must be for {sorted(shapes)}"
        )
    allowed = " or ".join(str(jnp.dtype(dtype)) for dtype in dtypes)
    problems = [
        f"{what} of feature {name!r} are {array.dtype} of shape {array.shape}, "
        f"must be {allowed} of shape {shapes[name]} ([batch, hotness] of the plan, or "
        "[devices, events])"
        for name, array in arrays.items()
        if array.shape != shapes[name] or array.dtype not in dtypes
    ]
    if problems:
        raise ValueError("; ".join(problems))


class Requests(NamedTuple):
    """What the features of a block ask for.

    Attributes:
      ids: ``[rows, columns]`` ids, -1 where padded.
      weights: ``[rows, columns]`` float32, or None if no feature has weights.
    """

    ids: jax.Array
    weights: jax.Array | None


def requests_of(
    index: StorageIndex,
    ids: Mapping[str, jax.Array],
    weights: Mapping[str, jax.Array],
) -> list[Requests]:
    """Returns the requests of each block of a storage. The arrays of a feature have the
    rows of its block."""
    wide = index.wide or any(
        ids[f.feature.name].dtype == jnp.int64 for f in index.features
    )
    weighted = any(f.feature.weighted for f in index.features)
    requests = []
    for block in index.blocks:
        names = [f.feature.name for f in block.features]
        with jax.enable_x64(wide):
            integer = jnp.int64 if wide else jnp.int32
            columns = jnp.concatenate([ids[n].astype(integer) for n in names], axis=1)
        factors = None
        if weighted:
            unweighted = [jnp.ones(ids[n].shape, jnp.float32) for n in names]
            factors = jnp.concatenate(
                [weights.get(n, w) for n, w in zip(names, unweighted, strict=True)],
                axis=1,
            )
        requests.append(Requests(columns, factors))
    return requests


def any_row(index: StorageIndex, requests: Sequence[Requests]) -> jax.Array:
    """Returns ``[]`` bool: whether the requests ask for any row of the storage."""
    owners = [
        block.expand(of_block.ids)[1]
        for block, of_block in zip(index.blocks, requests, strict=True)
    ]
    return jnp.stack([(owner < index.devices).any() for owner in owners]).any()
